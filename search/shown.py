"""What a page or a report shows beyond records: architectures in YAML, memories probed untrained, published figures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from arch.backbone import BackboneSpec
from arch.mixers.mixer import MixerSpec
from arch.stack import flatten
from results import published
from results.architectures import Detail
from results.choose import row_names
from results.published import Published
from results.record import Record
from search import codec
from search.document import SpecError
from search.probe import probe

PAIRS = (2, 4, 8, 16, 32, 64, 128)  # that a page probes: an octave apart, for it is drawn along a logarithm
PATIENCE = 30.0  # seconds for all probing of a page; architectures that are dear to probe come last


def architectures(records: Iterable[Record]) -> dict[str, BackboneSpec]:
    """Every architecture that was trained and that this version reads, by its row in tables; online learners are none."""
    read = {row: _read(text) for row, text in _texts(records).items()}
    return {row: spec for row, spec in read.items() if isinstance(spec, BackboneSpec)}


def details(records: Iterable[Record]) -> dict[str, Detail]:
    """What is said of every architecture, by row. One that this version cannot read is shown as it was kept, and why."""
    found = {}
    for row, text in _texts(records).items():
        spec = _read(text)
        if isinstance(spec, BackboneSpec):
            mixers = {m.kind: (m.state_formula, m.equation) for m in _mixers(spec)}
            found[row] = Detail(yaml=codec.dump(spec), mixers=mixers)
        else:
            found[row] = Detail(yaml=f"# {spec}\n{json.dumps(json.loads(text), indent=1)}\n", mixers={})
    return found


def _texts(records: Iterable[Record]) -> dict[str, str]:
    records = list(records)
    names = row_names(records)
    kept = {names[r.key]: r.spec["arch"] for r in records if "stack" in r.spec.get("arch", {})}
    return {row: json.dumps(arch, sort_keys=True) for row, arch in kept.items()}


def probed(records: Iterable[Record], *, seconds: float = PATIENCE) -> list[dict[str, Any]]:
    """Rows of the probe for every architecture with a memory of pairs, `arch` being its row. The cheapest come first, and
    there are no more once `seconds` have gone by."""
    began = time.perf_counter()
    specs = architectures(records)
    rows: list[dict[str, Any]] = []
    for row in sorted(specs, key=lambda row: _floats(specs[row])):
        if time.perf_counter() - began > seconds:
            break
        rows += [{**found, "arch": row} for found in _probed(replace(specs[row], name="probed"))]
    return sorted(rows, key=lambda found: found["arch"])


def sources() -> list[Published]:
    """Everything published that comes with the package."""
    return [Published.from_dict(codec.read_published(name)) for name in published.names()]


@cache
def _read(text: str) -> BackboneSpec | str:
    """The architecture, or why this version cannot read it: dials come and go, records stay."""
    try:
        return codec.from_plain(BackboneSpec, json.loads(text))
    except SpecError as error:
        return f"this version cannot read it: {'; '.join(map(str, error.faults))}"


@cache
def _probed(spec: BackboneSpec) -> tuple[dict[str, Any], ...]:
    """Once for architectures that differ in name alone, and once for all pages that --watch writes."""
    try:
        return tuple(probe(spec, pairs=PAIRS, draws=1))
    except ValueError:  # none of its mixers has a memory of pairs
        return ()


def _mixers(spec: BackboneSpec) -> Iterator[MixerSpec]:
    """All that mix, also those that stand side by side in one block."""
    for block in flatten(spec.stack):
        parts = [getattr(block, name, None) for name in vars(block)]
        yield from (part for part in parts if isinstance(part, MixerSpec))


def _floats(spec: BackboneSpec) -> int:
    return sum(mixer.state_size(spec.width, PAIRS[-1]).total for mixer in _mixers(spec))
