"""Synthetic scores are compared with published language models by rank within papers; too little gets no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from recallmap.results.analysis.measures import measures
from recallmap.results.analysis.validity import (
    OUTCOMES,
    PREDICTORS,
    Agreement,
    Figure,
    adjusted,
    agreement,
    figures,
    months,
    published_ranks,
    synthetic_orders,
)
from recallmap.results.publishing.validity_table import sentence, text_of
from recallmap.results.record import Record
from recallmap.search import codec

Make = Callable[..., Record]
ARCHS = [f"a{n}" for n in range(10)]


def papers(orders: dict[str, float], count: int = 3) -> dict[str, dict[str, float]]:
    return {f"paper {n}": orders for n in range(count)}


def test_every_published_row_is_known_to_the_zoo_and_has_a_month() -> None:
    data = codec.read_language()
    own = {arch for one in figures(data) for arch in one.ours}
    assert own <= {*codec.builtin("arch"), "gla", "mamba2"}  # two names of records
    assert own <= set(months(data))
    assert {one.metric for one in figures(data)} >= {metric for metrics in OUTCOMES.values() for metric in metrics}


def test_a_row_that_does_not_fit_its_table_is_refused() -> None:
    table: dict[str, Any] = {"where": "Table 1", "columns": [], "rows": [{"arch": "b", "values": []}]}
    data = {"sources": [{"name": "p", "lineage": "p", "zoo": {"a": {"ours": ["a"]}}, "tables": [table]}]}
    with pytest.raises(ValueError, match="p, Table 1: unknown row 'b'"):
        figures(data)
    table["rows"] = [{"arch": "a", "values": [1.0]}]
    with pytest.raises(ValueError, match="row a has 1 values for 0 columns"):
        figures(data)


def test_lower_is_better_for_perplexity_and_the_nearest_known_architecture_stands_for_a_row() -> None:
    own = [
        Figure(lineage="p", group="g", metric="ppl_val", higher=False, ours=(f"far{n}", f"a{n}"), value=10.0 + n)
        for n in range(3)
    ]
    assert published_ranks(own, ["ppl_val"], ARCHS.__contains__) == {"p": {"a0": 1.0, "a1": 0.5, "a2": 0.0}}
    assert published_ranks(own[:2], ["ppl_val"], ARCHS.__contains__) == {}  # two have no order


def test_within_one_order_the_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(0)
    one, other = ({a: float(v) for a, v in zip(ARCHS, rng.random(10), strict=True)} for _ in range(2))
    found = agreement("x", "y", one, papers(other))
    expected = stats.spearmanr(list(one.values()), list(other.values()))
    assert found.correlation == pytest.approx(expected.statistic)
    assert found.p == pytest.approx(expected.pvalue, abs=0.05)
    left = [stats.spearmanr(*([d[a] for a in ARCHS if a != out] for d in (one, other))).statistic for out in ARCHS]
    assert found.leaving_out == pytest.approx((min(left), max(left)), abs=1e-9)


@pytest.mark.parametrize(("archs", "count"), [(8, 3), (10, 2)])
def test_nothing_under_nine_architectures_or_three_papers_gets_a_number(archs: int, count: int) -> None:
    orders = {a: float(n) for n, a in enumerate(ARCHS[:archs])}
    found = agreement("MAD", "recall", orders, papers(orders, count))
    assert (found.architectures, found.papers, found.correlation, found.p) == (archs, count, None, None)
    assert sentence(found, [found]) == f"MAD and recall: too little to say ({archs} architectures, {count} papers)."


def test_of_unrelated_orders_one_in_twenty_has_a_small_p() -> None:
    rng = np.random.default_rng(1)
    drawn = [[dict(zip(ARCHS, rng.random(10).tolist(), strict=True)) for _ in range(2)] for _ in range(40)]
    small = [(agreement("x", "y", one, papers(other)).p or 1) < 0.05 for one, other in drawn]
    assert np.mean(small) <= 0.15  # 6 of 40, which a level of 0.05 passes in 1 of 100


def test_an_architecture_counts_where_it_was_trained_on_all_tasks(make: Make) -> None:
    def trained(arch: str, score: float, *tasks: str) -> list[Record]:
        return [make(arch=arch, task=task, score=score) for task in tasks]

    both = ("compression", "memorization")
    records = (
        trained("a", 0.9, *both) + trained("b", 0.5, *both) + trained("c", 0.7, *both) + trained("d", 0.6, both[0])
    )
    assert synthetic_orders(measures(records), both) == pytest.approx({"a": 1.0, "b": 0.0, "c": 7 / 12})


def test_the_sentence_says_whether_a_predictor_orders_and_what_does_it_as_well() -> None:
    known = {"architectures": 12, "papers": 4, "interval": (0.1, 0.9), "leaving_out": (0.5, 0.8), "p": 0.01}
    mad = Agreement(predictor="MAD", outcome="recall", correlation=0.7, **known)  # type: ignore[arg-type]
    state = Agreement(
        predictor="state size, where MAD is known",
        outcome="recall",
        correlation=0.8,
        **known,  # type: ignore[arg-type]
    )
    assert sentence(mad, [mad]) == "MAD and recall: orders architectures as papers do (+0.70)."
    assert sentence(mad, [mad, state]).endswith("(+0.70); state size alone does it as well or better.")
    assert "| MAD | recall | 12 | 4 | +0.70 [+0.10, +0.90] | [+0.50, +0.80] | 0.010 |  |" in text_of([mad, state])
    few = Agreement(predictor="MQAR", outcome="recall", architectures=3, papers=1)
    assert adjusted([mad, few, mad]) == [0.02, None, 0.02]
    assert set(PREDICTORS) == {"MAD", "MQAR", "needle"}
