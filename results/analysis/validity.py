"""Validity: whether scores on synthetic tasks order architectures as published language-model results do.

Papers differ in size, data and recipe, so that figures are compared within a paper only, as ranks. All papers of one lineage
share rows and count as one. Ranks are pooled over papers: the correlation of ranks that are centred within each paper.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recallmap.results.analysis.comparison import holm
from recallmap.results.analysis.confidence import LEVEL, Interval
from recallmap.results.analysis.measures import Measure, mean_of

FEWEST_ARCHITECTURES = 9  # for a number: at a true correlation of 0.6 nine have a power of a third
FEWEST_PAPERS = 3

OUTCOMES: Mapping[str, tuple[str, ...]] = {
    "recall": ("recall", "fda", "swde", "squad", "tqa", "nq", "drop"),
    "perplexity": ("ppl_val", "ppl_wiki", "ppl_lmb", "ppl_mean"),
    "zero-shot": ("zero_shot", "zero_shot_local", "zero_shot_global"),
}
MAD = (
    "in_context_recall",
    "noisy_in_context_recall",
    "fuzzy_in_context_recall",
    "memorization",
    "selective_copying",
    "compression",
)
PREDICTORS: Mapping[str, tuple[str, ...]] = {"MAD": MAD, "MQAR": ("mqar",), "needle": ("needle",)}
PRIMARY = (("MAD", "recall"), ("MAD", "perplexity"), ("MQAR", "recall"), ("MQAR", "perplexity"))  # corrected together

_DRAWS = 4000

Ranks = Mapping[str, Mapping[str, float]]  # of a lineage, of an architecture: from 0 (worst) to 1 (best)
Orders = Mapping[str, float]  # of an architecture: larger is better


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One published figure. `group` is what is comparable: a table's column at one size and number of tokens. `ours` are our
    architectures that correspond to it, the nearest first."""

    lineage: str
    group: str
    metric: str
    higher: bool
    ours: tuple[str, ...]
    value: float


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far a predictor orders architectures as papers do.

    correlation    of ranks within papers; None under 9 architectures or 3 papers, or where a side has one rank throughout
    interval       95 % bootstrap interval over architectures
    p              of the permutation test over architectures, two-sided; adjusted by Holm among the primary tests
    leaving_out    the smallest and the largest correlation of all architectures but one
    """

    predictor: str
    outcome: str
    architectures: int
    papers: int
    correlation: float | None = None
    interval: Interval | None = None
    leaving_out: Interval | None = None
    p: float | None = None
    adjusted: float | None = None


def figures(data: Mapping[str, Any]) -> list[Figure]:
    """The published figures of the file of language models. Raises ValueError where a row names an architecture that its source
    does not map, or has more or fewer values than there are columns."""
    found = []
    for source in data["sources"]:
        for table in source["tables"]:
            for row in table["rows"]:
                if row["arch"] not in source["zoo"]:
                    raise ValueError(
                        f"{source['name']}, {table['where']}: unknown row '{row['arch']}', expected a name in zoo"
                    )
                if len(row["values"]) != len(table["columns"]):
                    got = f"{len(row['values'])} values for {len(table['columns'])} columns"
                    raise ValueError(f"{source['name']}, {table['where']}: row {row['arch']} has {got}")
                for column, value in zip(table["columns"], row["values"], strict=True):
                    ours = tuple(source["zoo"][row["arch"]]["ours"])
                    if value is not None and ours:
                        group = (
                            f"{source['name']} {table['where']} {column['name']} {row.get('size')} {row.get('tokens')}"
                        )
                        higher = column["direction"] == "higher"
                        lineage, metric = source["lineage"], column["metric"]
                        found.append(
                            Figure(lineage=lineage, group=group, metric=metric, higher=higher, ours=ours, value=value)
                        )
    return found


def published_ranks(own: Iterable[Figure], metrics: Sequence[str], known: Callable[[str], bool]) -> Ranks:
    """The mean rank of every known architecture in every lineage, over the columns of `metrics` that have at least three."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in own:
        arch = next(filter(known, one.ours), None)
        if one.metric in metrics and arch is not None:
            groups[one.lineage, one.group][arch].append(one.value if one.higher else -one.value)
    ranks: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (lineage, _), values in groups.items():
        if len(values) >= 3:
            for arch, rank in _ranked({arch: float(np.mean(v)) for arch, v in values.items()}).items():
                ranks[lineage][arch].append(rank)
    return {lineage: {arch: float(np.mean(r)) for arch, r in by.items()} for lineage, by in ranks.items()}


def synthetic_orders(measured: Iterable[Measure], tasks: Sequence[str]) -> dict[str, float]:
    """The mean rank of every architecture over the tasks, of those that were trained on all; of a task over its settings. A
    setting counts where three architectures have it; several sizes of one architecture count by their mean."""
    return _over_settings(measured, tasks, mean_of)


def state_orders(measured: Iterable[Measure], tasks: Sequence[str]) -> dict[str, float]:
    """As `synthetic_orders`, by the bytes of the state."""
    return _over_settings(measured, tasks, lambda m: float(m.state_bytes))


def agreement(predictor: str, outcome: str, orders: Orders, ranks: Ranks) -> Agreement:
    """The agreement of a predictor with published ranks, over architectures that both have."""
    papers = {
        lineage: {arch: rank for arch, rank in by.items() if arch in orders}
        for lineage, by in ranks.items()
        if sum(arch in orders for arch in by) >= 3
    }
    archs = sorted({arch for by in papers.values() for arch in by})
    found = Agreement(predictor=predictor, outcome=outcome, architectures=len(archs), papers=len(papers))
    if len(archs) < FEWEST_ARCHITECTURES or len(papers) < FEWEST_PAPERS:
        return found
    index = {arch: at for at, arch in enumerate(archs)}
    rows = [(number, index[arch], rank) for number, by in enumerate(papers.values()) for arch, rank in by.items()]
    paper_N, arch_N, rank_N = (np.array(column) for column in zip(*rows, strict=True))
    value_A = np.array([orders[arch] for arch in archs])
    count = len(archs)

    def pooled(value_DA: NDArray[np.float64], weight_DA: NDArray[np.float64]) -> NDArray[np.float64]:
        return _pooled(value_DA[:, arch_N], rank_N, paper_N, weight_DA[:, arch_N])

    once = np.ones((1, count))
    whole = float(pooled(value_A[None], once)[0])
    if np.isnan(whole):
        return found
    rng = np.random.default_rng(0)
    shuffled = pooled(rng.permuted(np.tile(value_A, (_DRAWS, 1)), axis=1), once)
    drawn = pooled(value_A[None], rng.multinomial(count, np.full(count, 1 / count), size=_DRAWS).astype(np.float64))
    left = [
        _pooled(value_A[None, arch_N[kept]], rank_N[kept], paper_N[kept], np.ones((1, int(kept.sum()))))[0]
        for kept in (arch_N != at for at in range(count))
    ]
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(drawn, [tail, 1 - tail])
    extreme = int((np.abs(shuffled) >= abs(whole) - 1e-12).sum())
    return replace(
        found,
        correlation=whole,
        interval=(float(low), float(high)),
        leaving_out=(float(np.nanmin(left)), float(np.nanmax(left))),
        p=(extreme + 1) / (_DRAWS + 1),
    )


def months(data: Mapping[str, Any]) -> dict[str, float]:
    """The month in which every architecture was published, counted in months: later is larger."""
    return {arch: 12.0 * int(text[:4]) + int(text[5:]) for arch, text in data["months"].items()}


def validity(data: Mapping[str, Any], measured: Sequence[Measure]) -> list[Agreement]:
    """The agreement of every predictor with every outcome, and below each that of the size of the state and of the month of
    publication on the same architectures."""
    own, born, found = figures(data), months(data), []
    for name, tasks in PREDICTORS.items():
        scores, states = synthetic_orders(measured, tasks), state_orders(measured, tasks)
        for outcome, metrics in OUTCOMES.items():
            ranks = published_ranks(own, metrics, scores.__contains__)
            found += [
                agreement(name, outcome, scores, ranks),
                agreement(f"state size, where {name} is known", outcome, states, ranks),
                agreement(f"month, where {name} is known", outcome, {a: born[a] for a in scores if a in born}, ranks),
            ]
    primary = [one for one in found if (one.predictor, one.outcome) in PRIMARY]
    told = {id(one): p for one, p in zip(primary, adjusted(primary), strict=True)}
    return [replace(one, adjusted=told.get(id(one))) for one in found]


def adjusted(primary: Sequence[Agreement]) -> list[float | None]:
    """Holm's adjusted p of every primary test; None where there was none."""
    told = holm([one.p for one in primary if one.p is not None])
    return [told.pop(0) if one.p is not None else None for one in primary]


def _over_settings(
    measured: Iterable[Measure], tasks: Sequence[str], of: Callable[[Measure], float]
) -> dict[str, float]:
    settings: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for m in measured:
        if m.task in tasks and m.values and not m.tested:
            settings[m.task, m.setting][m.arch].append(of(m))
    ranks: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (task, _), values in settings.items():
        if len(values) >= 3:
            for arch, rank in _ranked({arch: float(np.mean(v)) for arch, v in values.items()}).items():
                ranks[arch][task].append(rank)
    whole = {arch: own for arch, own in ranks.items() if len(own) == len(tasks)}
    return {arch: float(np.mean([np.mean(of_task) for of_task in own.values()])) for arch, own in whole.items()}


def _ranked(values: Orders) -> dict[str, float]:
    """Ranks from 0 (smallest) to 1 (largest); equal values share their mean rank."""
    from scipy.stats import rankdata

    ranks = (rankdata(list(values.values())) - 1) / (len(values) - 1)
    return dict(zip(values, ranks.tolist(), strict=True))


def _pooled(
    value_DN: NDArray[np.float64],
    rank_N: NDArray[np.float64],
    paper_N: NDArray[np.int64],
    weight_DN: NDArray[np.float64],
) -> NDArray[np.float64]:
    """float [D]: for each draw the weighted correlation of ranks within papers; NaN where a side does not vary. Ranks are those
    among all rows of a paper, whatever their weights."""
    from scipy.stats import rankdata

    draws = max(len(value_DN), len(weight_DN))
    weight_DN = np.broadcast_to(weight_DN, (draws, len(rank_N)))
    product, first, second = np.zeros(draws), np.zeros(draws), np.zeros(draws)
    for paper in np.unique(paper_N):
        at = paper_N == paper
        weights = weight_DN[:, at]
        whole = np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
        sides = []
        for values in (value_DN[:, at], rank_N[None, at]):
            ranks = (rankdata(values, axis=1) - 1) / max(at.sum() - 1, 1)
            sides.append(ranks - (weights * ranks).sum(axis=1, keepdims=True) / whole)
        product += (weights * sides[0] * sides[1]).sum(axis=1)
        first += (weights * sides[0] ** 2).sum(axis=1)
        second += (weights * sides[1] ** 2).sum(axis=1)
    scale = np.sqrt(first * second)
    return np.where(scale > 1e-9, product / np.where(scale > 1e-9, scale, 1.0), np.nan)
