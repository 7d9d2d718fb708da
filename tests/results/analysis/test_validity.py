"""Synthetic scores are compared with published language models by rank within papers; too little gets no number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from recallmap.results.analysis.measures import measures
from recallmap.results.analysis.published_figures import Published
from recallmap.results.analysis.validity import (
    BLIND,
    BLIND_TEST,
    OUTCOMES,
    PREDICTORS,
    Agreement,
    Figure,
    adjusted,
    agreement,
    by_task,
    figures,
    months,
    published_ranks,
    rival,
    synthetic_orders,
    unseen,
    validity,
    verdict,
)
from recallmap.results.publishing.validity_table import primary_table, sentence, task_table, text_of
from recallmap.results.record import Record
from recallmap.search import codec

Make = Callable[..., Record]
ARCHS = [f"a{n}" for n in range(10)]
SEEN = (
    "attention swa gla hawk mamba2 mlstm deltanet_mesanet gated_deltanet_mesanet titans omeganet atlas mesa hawk_mesa"
)


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


def test_those_that_count_are_ranked_among_all_and_they_alone_are_shuffled_and_left_out() -> None:
    """Three of twelve do not count. They are last by both orders."""
    archs = [*ARCHS[:9], "b0", "b1", "b2"]
    rng = np.random.default_rng(0)
    one, other = ({a: float(v) for a, v in zip(archs, [*rng.random(9), -1, -2, -3], strict=True)} for _ in range(2))
    found = agreement("x", "y", one, papers(other), ARCHS[:9])
    sides = [(stats.rankdata([d[a] for a in archs]) - 1) / 11 for d in (one, other)]
    first, second = ((side - side.mean())[:9] for side in sides)
    assert found.correlation == pytest.approx((first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum()))
    assert (found.architectures, found.papers) == (9, 3)
    assert (found.p or 0) > 0.05  # that the last three are last is no news
    assert (agreement("x", "y", one, papers(other)).p or 1) < 0.05
    assert agreement("x", "y", one, papers(other), archs) == agreement("x", "y", one, papers(other))
    assert agreement("x", "y", one, papers(other), ARCHS[:8]).correlation is None
    elsewhere = papers(other) | {"none that counts": {a: one[a] for a in archs[9:]}}
    assert agreement("x", "y", one, elsewhere, ARCHS[:9]) == found


def test_the_blind_test_waits_for_all_its_architectures(make: Make) -> None:
    seen = ("attention", "swa", "gla", "hawk", "mamba2", "deltanet_mesanet", "gated_deltanet_mesanet", "titans")
    archs = [*seen, *BLIND]

    def tested(archs: list[str]) -> list[Agreement]:
        records = [
            make(arch=a, task=task, score=n / 20, state_bytes=n)
            for n, a in enumerate(archs)
            for task in PREDICTORS["MAD"]
        ]
        return validity(codec.read_language(), measures(records))

    found = tested(archs)
    (one,) = [one for one in found if (one.predictor, one.outcome) == BLIND_TEST]
    assert (one.architectures, one.papers, one.adjusted) == (len(BLIND), 6, None)
    state = rival(one, found)
    assert state is not None
    assert state.correlation == one.correlation  # the scores above are as the sizes
    assert [line.split(" | ")[0] for line in primary_table(found).splitlines()[2:]][-1] == "| blind MAD"
    assert any(line.startswith("* blind MAD") for line in text_of(found).splitlines())
    for left in (archs[:-1], archs[9:], archs[:9]):
        assert not [one for one in tested(left) if "blind" in one.predictor]


def test_each_task_of_mad_stands_by_itself_beside_the_size_of_the_state_and_the_blind_architectures(make: Make) -> None:
    recall, other = "fuzzy_in_context_recall", "compression"
    data = codec.read_language()
    known = published_ranks(figures(data), OUTCOMES["recall"], {*SEEN.split(), *BLIND}.__contains__)
    ranks = {a: float(np.mean([by[a] for by in known.values() if a in by])) for a in [*SEEN.split(), *BLIND]}
    records = [make(arch=a, task=recall, score=rank, state_bytes=int(999 * (1 - rank))) for a, rank in ranks.items()]
    records += [make(arch=a, task=other, score=1 - rank) for a, rank in list(ranks.items())[:9]]
    found = by_task(data, measures(records))
    named = {one.predictor: one for one in found}
    good, state, blind = named[recall], named[f"state size, where {recall} is known"], named[f"blind {recall}"]
    assert (good.correlation or 0) > 0.7  # papers do not agree wholly
    assert (state.correlation or 0) < -0.7
    assert blind.architectures == len(BLIND)
    assert good.adjusted == pytest.approx(2 * (good.p or 0))  # of two tasks that have a p
    assert (named[other].correlation or 0) < -0.5
    assert f"blind {other}" not in named
    assert named["memorization"].correlation is None
    lines = task_table(found).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {task.replace('_', ' ')}" for task in PREDICTORS["MAD"]]
    assert lines[4].startswith("| fuzzy in context recall | 22 | ")
    assert text_of([], tasks=found).endswith(task_table(found))
    assert task_table(by_task(data, [])) not in text_of([], tasks=by_task(data, []))


def test_an_architecture_counts_where_it_was_trained_on_all_tasks(make: Make) -> None:
    def trained(arch: str, score: float, *tasks: str) -> list[Record]:
        return [make(arch=arch, task=task, score=score) for task in tasks]

    both = ("compression", "memorization")
    records = (
        trained("a", 0.9, *both) + trained("b", 0.5, *both) + trained("c", 0.7, *both) + trained("d", 0.6, both[0])
    )
    assert synthetic_orders(measures(records), both) == pytest.approx({"a": 1.0, "b": 0.0, "c": 7 / 12})


def test_a_place_does_not_depend_on_whom_an_architecture_met(make: Make) -> None:
    """Settings on which only the strongest were trained leave places as they are, where they order these alike."""
    scores = {"a": 0.9, "b": 0.5, "c": 0.7, "d": 0.6, "e": 0.4}
    everywhere = [make(arch=arch, dials={"length": 64}, score=score) for arch, score in scores.items()]
    further = [make(arch=arch, dials={"length": 128}, score=scores[arch] / 2) for arch in "acd"]
    found = synthetic_orders(measures([*everywhere, *further]), ["mqar"])
    assert found == synthetic_orders(measures(everywhere), ["mqar"])
    assert found == pytest.approx({"a": 1.0, "c": 0.75, "d": 0.5, "b": 0.25, "e": 0.0})


def test_equals_share_a_place_and_a_lead_counts_by_the_settings_on_which_it_is_one(make: Make) -> None:
    lengths = {64: {"a": 0.9, "b": 0.5, "c": 0.5}, 128: {"a": 0.4, "b": 0.5, "c": 0.5}}
    trained = [
        make(arch=arch, dials={"length": n}, score=score) for n, by in lengths.items() for arch, score in by.items()
    ]
    assert synthetic_orders(measures(trained), ["mqar"]) == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.5})


def test_the_rule_finds_a_true_relation_and_no_false_one_on_the_rows_that_are_published() -> None:
    """Of scores made up for the architectures that MAD has records of, on the published rows of recall. Those that follow the
    papers, with noise of six tenths of their spread, are shown in 8 of 10 worlds at least; unrelated ones in one of 15 at
    most. Both are corrected for four tests. The same holds for a size of state that orders as well as chance."""
    ours = SEEN.split()
    ranks = published_ranks(figures(codec.read_language()), OUTCOMES["recall"], ours.__contains__)
    of_arch = {
        a: np.mean([by[a] for by in ranks.values() if a in by]) for a in {a for by in ranks.values() for a in by}
    }
    rng, spread = np.random.default_rng(0), np.std(list(of_arch.values()))
    chance = {arch: rng.normal() for arch in sorted(of_arch)}
    state = agreement("state size, where MAD is known", "recall", chance, ranks)

    def said(related: bool) -> str:
        drawn = {arch: related * of_arch[arch] / spread + (0.6 if related else 1) * rng.normal() for arch in chance}
        one = agreement("MAD", "recall", drawn, ranks)
        return verdict(replace(one, adjusted=min(1.0, 4 * (one.p or 1.0))), [one, state])

    assert [said(related=True) for _ in range(10)].count("shown") >= 8
    assert [said(related=False) for _ in range(15)].count("shown") <= 1


def test_the_blind_test_finds_a_true_relation_and_no_false_one() -> None:
    """On scores that are made up for the published rows of recall. Those of the architectures that the rule had seen follow the
    papers, with noise of six tenths of their spread. Those of the others do, too, or are by chance, as their sizes of state."""
    known = [*SEEN.split(), *BLIND]
    ranks = published_ranks(figures(codec.read_language()), OUTCOMES["recall"], known.__contains__)
    of_arch = {a: float(np.mean([by[a] for by in ranks.values() if a in by])) for a in known}
    rng, spread = np.random.default_rng(0), np.std(list(of_arch.values()))
    middle = np.mean(list(of_arch.values()))

    def said(related: bool) -> str:
        drawn = {a: (mean - middle) / spread + 0.6 * rng.normal() for a, mean in of_arch.items()}
        chance = {arch: rng.normal() for arch in BLIND}
        state = agreement(f"state size, where {BLIND_TEST[0]} is known", "recall", drawn | chance, ranks, BLIND)
        if not related:
            drawn |= {arch: rng.normal() for arch in BLIND}
        return verdict(agreement(*BLIND_TEST, drawn, ranks, BLIND), [state])

    assert [said(related=True) for _ in range(10)].count("shown") >= 8
    assert [said(related=False) for _ in range(15)].count("shown") <= 1


def test_a_predictor_is_refuted_below_a_correlation_of_three_tenths_or_below_the_size_of_the_state() -> None:
    def one(predictor: str, correlation: float | None, p: float = 0.01) -> Agreement:
        return Agreement(
            predictor=predictor, outcome="recall", architectures=12, papers=4, correlation=correlation, p=p
        )

    state = one("state size, where MAD is known", 0.5)
    assert [verdict(one("MAD", c), [state]) for c in (0.7, 0.49, None)] == ["shown", "refuted", ""]
    assert verdict(one("MAD", 0.7, p=0.06), [state]) == "open"
    assert verdict(replace(one("MAD", 0.7), adjusted=0.06), [state]) == "open"
    assert verdict(one("MAD", 0.29), [one("state size, where MAD is known", 0.1)]) == "refuted"
    assert verdict(one("MAD", 0.7), []) == ""


def test_mad_as_a_paper_has_it_is_compared_with_the_language_models_of_that_paper_alone(make: Make) -> None:
    columns = [{"name": "PPL", "metric": "ppl_val", "direction": "lower"}]

    def source(name: str, ppl: dict[str, float]) -> dict[str, Any]:
        rows = [{"arch": f"{name} {a}", "values": [value]} for a, value in ppl.items()]
        table = {"where": "Table 1", "columns": columns, "rows": rows}
        return {"name": name, "lineage": name, "zoo": {f"{name} {a}": {"ours": [a]} for a in ppl}, "tables": [table]}

    def mad(name: str, averages: dict[str, float]) -> Published:
        rows = [{"arch": f"{name} {a}", "values": [value]} for a, value in averages.items()]
        table = {"about": "mad", "where": "Table 2", "columns": [{"name": "average", "mean": True}], "rows": rows}
        return Published.from_dict({"name": name, "source": name, "tables": [table]})

    names = [ARCHS[:4], ARCHS[3:7], ARCHS[6:10]]  # papers share an architecture, and each has a scale of its own
    papers_own = [
        {a: scale + 0.1 * n for n, a in enumerate(own)} for scale, own in zip((0.1, 0.5, 0.2), names, strict=True)
    ]
    language = [source(f"p{n}", {a: 9 - v for a, v in own.items()}) for n, own in enumerate(papers_own)]
    data = {"sources": [*language, source("silent", dict.fromkeys(ARCHS, 5.0))], "months": {}}
    known = [mad(f"p{n}", own) for n, own in enumerate(papers_own)]
    records = [make(arch=a, task=task, score=0.5) for a in ARCHS for task in PREDICTORS["MAD"]]
    found = validity(data, measures(records), [*known, mad("no language model", {"a0": 1.0})])
    (own,) = [one for one in found if (one.predictor, one.outcome) == ("own MAD, where MAD is known", "perplexity")]
    assert (own.architectures, own.papers, own.correlation, own.p) == (10, 3, pytest.approx(1.0), None)
    assert unseen(data, measures(records[6:]), "MAD", "perplexity") == ["a0"]


def test_the_sentence_says_whether_a_predictor_orders_and_what_does_it_as_well() -> None:
    known = {"architectures": 12, "papers": 4, "interval": (0.1, 0.9), "leaving_out": (0.5, 0.8), "p": 0.01}
    mad = Agreement(predictor="MAD", outcome="recall", correlation=0.7, **known)  # type: ignore[arg-type]
    state = Agreement(
        predictor="state size, where MAD is known",
        outcome="recall",
        correlation=0.8,
        **known,  # type: ignore[arg-type]
    )
    less = replace(state, correlation=0.6)
    assert sentence(mad, [mad, less]) == "MAD orders architectures by recall as papers do (+0.70)."
    assert sentence(mad, [mad, state]) == (
        "MAD does not order architectures by recall as papers do, by the rule (+0.70); state size alone does as well or better."
    )
    assert "| MAD | recall | 12 | 4 | +0.70 [+0.10, +0.90] | [+0.50, +0.80] | 0.010 |  |" in text_of([mad, state])
    assert text_of([mad], ["samba"]).endswith("and no score of MAD is here, of samba.\n")
    assert primary_table([mad, less]).splitlines()[2] == (
        "| MAD | recall | 12 | 4 | +0.70 [+0.10, +0.90] | [+0.50, +0.80] |  | +0.60 [+0.10, +0.90] | shown |"
    )
    few = Agreement(predictor="MQAR", outcome="recall", architectures=3, papers=1)
    assert adjusted([mad, few, mad]) == [0.02, None, 0.02]
    assert set(PREDICTORS) == {"MAD", "MQAR", "needle"}
