"""Contents of a page or a report beyond records: architectures in YAML, memories probed untrained, published figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers import Mixer
from recallmap.arch.mixers.mixer import MixerSpec
from recallmap.arch.stack import flatten
from recallmap.results.analysis import published_figures
from recallmap.results.analysis.labels import row_names
from recallmap.results.analysis.measures import measures
from recallmap.results.analysis.published_figures import Published
from recallmap.results.analysis.validity import FEWEST_ARCHITECTURES, Agreement, months, validity
from recallmap.results.page import search_section
from recallmap.results.page.architecture_section import Detail
from recallmap.results.page.search_section import SearchView
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.cli import sources as records_sources
from recallmap.search.documents import built_in, yaml_text
from recallmap.search.documents.nodes import SpecError
from recallmap.search.documents.type_hints import plain
from recallmap.search.measurement.capacity_probe import probe
from recallmap.search.proposers import found_architecture, search_results, state_limits, what_repeats
from recallmap.search.proposers.generations import ranked, said_choices
from recallmap.search.proposers.journal import Journal
from recallmap.search.proposers.search_results import Candidate, Findings
from recallmap.search.space.search_space import ANCHORS, Search

PAIRS = (2, 4, 8, 16, 32, 64, 128)  # probed for a page: an octave apart, because the axis is logarithmic

PATIENCE = 20.0  # seconds for all probing of a page; expensive architectures come last

AT_ONCE = 1.0  # seconds; longer probing is announced


def architectures(records: Iterable[Record]) -> dict[str, BackboneSpec]:
    """Every trained architecture that this version reads, by its row in tables, without online learners."""
    read = {row: _read(text) for row, text in _texts(records).items()}
    return {row: spec for row, spec in read.items() if isinstance(spec, BackboneSpec)}


class Details(Mapping[str, Detail]):
    """Details of every architecture by row, read when they are asked for, because a page of very many shows only some. An
    architecture that this version cannot read is shown as it was kept, with the reason."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._texts = _texts(records)

    def __getitem__(self, row: str) -> Detail:
        text = self._texts[row]
        spec = _read(text)
        if isinstance(spec, BackboneSpec):
            mixers = {m.kind: (m.state_formula, m.equation) for m in _mixers(spec)}
            return Detail(yaml=yaml_text.dump(spec), mixers=mixers)
        return Detail(yaml=f"# {spec}\n{json.dumps(json.loads(text), indent=1)}\n", mixers={})

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def _texts(records: Iterable[Record]) -> dict[str, str]:
    records = list(records)
    names = row_names(records)
    kept = {names[r.key]: r.spec["arch"] for r in records if "stack" in r.spec.get("arch", {})}
    return {row: json.dumps(arch, sort_keys=True) for row, arch in kept.items()}


def probed(
    records: Iterable[Record],
    *,
    only: Collection[str] | None = None,
    seconds: float = PATIENCE,
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Rows of the probe for every architecture with a memory of pairs, where `arch` is its row; `only` limits the rows. The
    cheapest come first, and probing stops after `seconds`. `say` receives a line where it takes long or leaves some out."""
    began = time.perf_counter()
    texts = {row: text for row, text in _texts(records).items() if only is None or row in only}
    specs = {row: spec for row, text in texts.items() if isinstance(spec := _read(text), BackboneSpec)}
    rows: list[dict[str, Any]] = []
    said = False
    for number, row in enumerate(sorted(specs, key=lambda row: _floats(specs[row]))):
        gone = time.perf_counter() - began
        if gone > seconds:
            say(f"probed {number} of {len(specs)} architectures in {gone:.0f} s; the page shows those")
            break
        if gone > AT_ONCE and not said:
            said = True
            say(
                f"probing the untrained memories of {len(specs)} architectures, at most {seconds:.0f} s; --no-probe skips it"
            )
        rows += [{**found, "arch": row} for found in _probed(_memories(specs[row]), specs[row].width)]
    return sorted(rows, key=lambda found: found["arch"])


def searched(source: str, sets: Sequence[str], ledger: Path | None, records: Iterable[Record]) -> SearchView | None:
    """The points of a search; None where the source is records or a grid, or none of its points is done."""
    study = None if records_sources.holds_records(source) else codec.read_study(source, overrides=sets)
    if study is None or not isinstance(study.space, Search):
        return None
    path = ledger or records_sources.default_ledger(study)
    found = search_results.findings_of(study, records, Journal(records_sources.journal_at(path)))
    if not found.candidates:
        return None
    values = [one.chosen for one in found.candidates]
    best = [found.candidates[index] for index in ranked(values, found.maximise)]
    distinct: dict[tuple[str, ...], str] = {}  # samplers may propose the same point
    for one in best:
        distinct.setdefault(tuple(sorted(record.key for record in one.records)), one.name)
    wanted = tuple(distinct.values())[: search_section.MOST_SHOWN]
    return SearchView(
        goals=tuple(search_section.Goal(name=g.name, maximise=g.direction == "maximise") for g in study.goals),
        points=tuple(_search_point(found, one, with_yaml=one.name in wanted) for one in found.candidates),
        best=wanted,
        volumes=search_results.volumes(found),
        anchors=ANCHORS,
        repeated=what_repeats.repeated_in(found),
        limits=state_limits.cells_of(found, state_limits.within_limits(found)),
    )


def _search_point(found: Findings, one: Candidate, *, with_yaml: bool) -> search_section.SearchPoint:
    spec = getattr(one.trial, "arch", None)
    mixers = list(_mixers(spec)) if isinstance(spec, BackboneSpec) else []
    said = [{name: value for name, value in plain(mixer).items() if name != "kind"} for mixer in mixers]
    return search_section.SearchPoint(
        name=one.name,
        sampler=one.proposer,
        values=one.chosen,
        tested=one.tested,
        blocks=tuple((mixer.kind, said_choices(own)) for mixer, own in zip(mixers, said, strict=True)),
        parent=f"{one.proposer} {one.parents[0]}" if one.parents else "",
        change=one.change,
        arch=one.trial.name,
        yaml=found_architecture.arch_document(found, one, Path()) if with_yaml and mixers else "",
    )


def sources() -> list[Published]:
    """All published figures that come with the package."""
    return [Published.from_dict(codec.read_published(name)) for name in published_figures.names()]


def agreements(records: Sequence[Record]) -> list[Agreement]:
    """How far the scores of records order architectures as papers of language models do; empty for too few architectures."""
    archs = {record.arch for record in records}
    if len(archs) < FEWEST_ARCHITECTURES:
        return []
    language = codec.read_language()
    if len(archs & months(language).keys()) < FEWEST_ARCHITECTURES:  # of a search, whose architectures nobody published
        return []
    return validity(language, [m for m in measures(records) if m.values], sources())


@cache
def _read(text: str) -> BackboneSpec | str:
    """The architecture, or why this version cannot read it: options come and go, records stay."""
    try:
        return built_in.from_plain(BackboneSpec, json.loads(text))
    except SpecError as error:
        return f"this version cannot read it: {'; '.join(map(str, error.faults))}"


@cache
def _probed(mixers: tuple[MixerSpec, ...], width: int) -> tuple[dict[str, Any], ...]:
    """Rows of the probe, measured once for architectures with equal memories, and once for all pages that --watch writes."""
    if not mixers:
        return ()
    spec = BackboneSpec(name="probed", width=width, stack=tuple(Block(mixer=cast(Mixer, mixer)) for mixer in mixers))
    try:
        return tuple(probe(spec, pairs=PAIRS, draws=1))
    except ValueError:  # none of its mixers has a memory of pairs
        return ()


def _memories(spec: BackboneSpec) -> tuple[MixerSpec, ...]:
    """The mixers of an architecture that `probe` measures, each once."""
    return tuple(dict.fromkeys(block.mixer for block in flatten(spec.stack)))


def _mixers(spec: BackboneSpec) -> Iterator[MixerSpec]:
    """All mixers, also those that share one block."""
    for block in flatten(spec.stack):
        parts = [getattr(block, name, None) for name in vars(block)]
        yield from (part for part in parts if isinstance(part, MixerSpec))


def _floats(spec: BackboneSpec) -> int:
    return sum(mixer.state_size(spec.width, PAIRS[-1]).total for mixer in _mixers(spec))
