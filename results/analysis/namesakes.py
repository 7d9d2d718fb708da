"""Mixers whose name in a record is that of another model. Every table that shows one says below what it is.

The words are those of the mixers themselves (`MixerSpec.differs`), because records do not hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recallmap.results.analysis.outside_code import said_of

_UNSCALED = "reads with scale 1, the published layer with 1 / sqrt(K)"

_BASELINE = {"conv_v": False, "out_gate": False, "out_norm": "head"}


@dataclass(frozen=True, kw_only=True)
class Namesake:
    """A mixer of `kind` with the parameters `dials`, and what it is in words. None: the record lacks the parameter."""

    kind: str
    dials: Mapping[str, Any]
    said: str


NAMESAKES = (
    Namesake(
        kind="gla",
        dials={"gate": "scalar"},
        said="MesaNet's baseline of that name, with a scalar gate, unit keys and a write gate; GLA itself is gla_vector",
    ),
    Namesake(
        kind="mamba2",
        dials={"form": "mesanet"},
        said="MesaNet's baseline of that name, which is no state-space model; Mamba-2 itself is mamba2_shared_qk",
    ),
    Namesake(
        kind="deltanet",
        dials=_BASELINE,
        said="MesaNet's baseline, the zoo's deltanet_mesanet: v not convolved; deltanet is the published layer",
    ),
    Namesake(
        kind="gated_deltanet",
        dials=_BASELINE,
        said="MesaNet's baseline, the zoo's gated_deltanet_mesanet: no output gate; gated_deltanet is the published layer",
    ),
    Namesake(kind="deltanet", dials={"conv_v": True, "scale": None}, said=_UNSCALED),
    Namesake(kind="gated_deltanet", dials={"conv_v": True, "scale": None}, said=_UNSCALED),
    Namesake(kind="deltanet", dials={"out_gate": True}, said="has an output gate, the published layer none"),
)


def remark(leaves: Mapping[str, Any]) -> str:
    """The words on an architecture with these parameters by dotted path (see `leaves_of`), and on its code from outside; ""
    where its name is right and all of it is ours."""
    kinds = {path.removesuffix("kind"): kind for path, kind in leaves.items() if path.endswith(".kind")}
    said = [
        one.said
        for at, kind in kinds.items()
        for one in NAMESAKES
        if one.kind == kind and all(leaves.get(at + dial) == value for dial, value in one.dials.items())
    ]
    return "; ".join(dict.fromkeys([*said, *said_of(leaves)]))
