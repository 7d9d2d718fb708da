"""What is named like another model is said below every table, in the words of the mixers themselves."""

from __future__ import annotations

from typing import Any

import pytest

from recallmap.arch.mixers import Mixer
from recallmap.results.analysis.labels import leaves_of
from recallmap.results.analysis.namesakes import NAMESAKES, Namesake, remark
from recallmap.results.publishing.readme_tables import Excerpt, Place, filled
from recallmap.results.record import Record
from recallmap.results.score_tables.breakdowns import further_tables
from recallmap.results.score_tables.rendering import render
from recallmap.results.score_tables.scores import table_of
from recallmap.search.documents import type_hints
from tests.results.conftest import Make

SCALAR = "MesaNet's baseline of that name, with a scalar gate, unit keys and a write gate; GLA itself is gla_vector"
UNSCALED = "reads with scale 1, the published layer with 1 / sqrt(K)"
GATED = "has an output gate, the published layer none"


def stack_of(**mixer: Any) -> dict[str, Any]:
    return {"stack": [{"kind": "block", "mixer": mixer}]}


@pytest.fixture
def records(make: Make) -> list[Record]:
    """Two architectures that are MesaNet's GLA, one that is GLA, and DeltaNet with and without its scale."""
    delta = {"kind": "deltanet", "conv_v": True, "out_gate": True, "out_norm": "shared"}
    return [
        make(arch="gla", score=0.9, arch_dials=stack_of(kind="gla", gate="scalar")),
        make(arch="conv_gla", score=0.8, arch_dials=stack_of(kind="gla", gate="scalar", heads=2)),
        make(arch="gla_vector", score=0.7, arch_dials=stack_of(kind="gla", gate="vector")),
        make(arch="deltanet", score=0.6, arch_dials=stack_of(**delta)),
        make(arch="deltanet", score=0.5, arch_dials=stack_of(**delta | {"out_gate": False, "scale": "key_dim"})),
    ]


@pytest.mark.parametrize("one", NAMESAKES, ids=lambda one: f"{one.kind} {one.dials}")
def test_a_remark_is_what_the_mixer_says_of_itself(one: Namesake) -> None:
    spec = type_hints.kinds_of(Mixer)[one.kind](
        **{name: value for name, value in one.dials.items() if value is not None}
    )
    assert one.said in spec.differs()


def test_a_mixer_that_is_a_baseline_by_default_has_a_remark() -> None:
    """Under the name of its kind alone, which is what tables show."""
    baselines = {}
    for kind, spec in type_hints.kinds_of(Mixer).items():
        said = [p for p in spec().differs() if ("itself is" in p or "the published layer" in p) and "wide" not in p]
        leaves = {f"mixer.{name}": value for name, value in type_hints.plain(spec()).items()}
        assert all(phrase in remark(leaves) for phrase in said), kind
        baselines[kind] = said
    assert {kind for kind, said in baselines.items() if said} == {"gla", "mamba2", "deltanet", "gated_deltanet"}


def test_an_architecture_that_is_what_its_name_says_has_none(records: list[Record]) -> None:
    assert [remark(leaves_of(r)) for r in records] == [SCALAR, SCALAR, "", f"{UNSCALED}; {GATED}", ""]


def test_every_table_of_scores_says_it_below(records: list[Record]) -> None:
    (table,) = table_of(records)
    notes = [f"conv_gla, gla: {SCALAR}.", f"deltanet: {UNSCALED}; {GATED}."]
    assert [note for note in table.notes if note in notes] == notes
    (costs,) = further_tables(records)
    assert set(notes) <= set(costs.notes)
    for form in ("markdown", "latex", "html"):
        assert "GLA itself is gla" in render([table], form)  # type: ignore[arg-type]
    assert not [note for note in table_of(records[2:3])[0].notes if "baseline" in note]


def test_a_text_says_it_below_its_excerpt_and_once(records: list[Record]) -> None:
    rows = {"GLA": "gla", "behind a convolution": "conv_gla", "vector": "gla_vector"}
    excerpt = Excerpt(
        every=Place(records="kept", column="length 64, pairs 4", of="score"),
        across={head: Place(row=row) for head, row in rows.items()},
        down={"here": Place()},
    )
    tables = {"kept": table_of(records)}
    made = filled("<!-- excerpt: names -->\n\nWords.\n", tables, {"names": excerpt})
    below = f"\n\nNames. GLA / behind a convolution: {SCALAR}.\n\nWords.\n"
    assert made.endswith(f"| here | 90.0 | 80.0 | 70.0 |{below}")
    assert filled(made, tables, {"names": excerpt}) == made


def test_it_names_the_head_that_the_architecture_comes_from(records: list[Record]) -> None:
    """Where a column says no more than the row's place, that is the row's."""
    excerpt = Excerpt(
        every=Place(records="kept", column="length 64, pairs 4"),
        across={"ours": Place(row="{}", of="score"), "state": Place(row="{}", of="state")},
        down={"GLA": Place(at="gla"), "vector": Place(at="gla_vector")},
    )
    made = filled("<!-- excerpt: names -->\n", {"kept": table_of(records)}, {"names": excerpt})
    assert made.endswith(f"\n\nNames. GLA: {SCALAR}.\n")
