"""Validity: whether scores on synthetic tasks order architectures as published language-model results do.

Papers differ in size, data and recipe, so that figures are compared within a paper only, as ranks. All papers of one lineage
share rows and count as one. Ranks are pooled over papers: the correlation of ranks that are centred within each paper.

The rule by which a predictor is judged: it is refuted where its correlation is below 0.3, or below that of the size of the
state on the same rows. It is shown to order architectures where it is not refuted and p, adjusted among the primary tests, is
below 0.05. All else is open. The rule was written down when the first figures were known. It is blind for the nine
architectures of `BLIND`, so that these are tested by themselves. Their ranks are those among all architectures of a paper, but
they alone count in the correlation, and they alone are shuffled and drawn. How it is tested was written down before any of
their scores was looked at, and there is no number until all nine are trained.

An architecture's place on a task was its mean rank in each setting until settings came that few have. There ranks depend on
who else is there, and the place of a state moved that had not changed. So places are by pairs, on what both have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.results.analysis.comparison import ALPHA, holm
from recallmap.results.analysis.confidence import LEVEL, Interval
from recallmap.results.analysis.measures import Measure, mean_of
from recallmap.results.analysis.published_figures import Published

FEWEST_ARCHITECTURES = 9  # for a number: at a true correlation of 0.6 nine have a power of a third
FEWEST_PAPERS = 3

LEAST = 0.3  # correlation below which a predictor is refuted

STATE = "state size"  # a baseline

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
BLIND = (  # recall is published; when the rule was written down there was no record of MAD
    "based",
    "gated_deltanet_h1",
    "gated_deltanet_h2",
    "gla_vector",
    "hgrn2",
    "mamba1",
    "mamba2_shared_qk",
    "retnet",
    "samba",
)
BLIND_ONLY = "blind"  # begins the name of what counts `BLIND` alone
BLIND_TEST = (f"{BLIND_ONLY} MAD", "recall")
PRIMARY = (("MAD", "recall"), ("MAD", "perplexity"), ("MQAR", "recall"), ("MQAR", "perplexity"))  # corrected together

_DRAWS = 4000

Ranks = Mapping[str, Mapping[str, float]]  # of a lineage, of an architecture: from 0 (worst) to 1 (best)
Orders = Mapping[str, float]  # of an architecture: larger is better


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One published figure. `group` is what is comparable: a table's column at one size and number of tokens. `ours` are our
    architectures that correspond to it, the nearest first."""

    source: str = ""
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
    p              of the permutation test over architectures, two-sided; None where the predictor has a value for each paper.
                   Adjusted by Holm among the primary tests
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
                            Figure(
                                source=source["name"],
                                lineage=lineage,
                                group=group,
                                metric=metric,
                                higher=higher,
                                ours=ours,
                                value=value,
                            )
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
    """The mean place of every architecture over the tasks, of those that were trained on all: in a task, how many others it
    beats on the settings that both have. A setting counts where three architectures have it; several sizes of one architecture
    count by their mean."""
    return _over_settings(measured, tasks, mean_of)


def state_orders(measured: Iterable[Measure], tasks: Sequence[str]) -> dict[str, float]:
    """As `synthetic_orders`, by the bytes of the state."""
    return _over_settings(measured, tasks, lambda m: float(m.state_bytes))


def agreement(
    predictor: str, outcome: str, orders: Orders, ranks: Ranks, counted: Collection[str] | None = None
) -> Agreement:
    """The agreement of a predictor with published ranks, over architectures that both have. `counted` are those that count,
    where not all do: the others take part in the ranks of a paper."""
    return _agreement(predictor, outcome, dict.fromkeys(ranks, orders), ranks, orders, counted)


def _agreement(
    predictor: str,
    outcome: str,
    by_paper: Mapping[str, Orders],
    ranks: Ranks,
    everywhere: Orders | None = None,
    counted: Collection[str] | None = None,
) -> Agreement:
    """The agreement of a predictor's values in every lineage, which are `everywhere` the same, or not (None)."""
    papers = {
        lineage: {arch: rank for arch, rank in by.items() if arch in by_paper[lineage]}
        for lineage, by in ranks.items()
        if sum(arch in by_paper.get(lineage, ()) for arch in by) >= 3
    }
    if counted is not None:
        papers = {lineage: by for lineage, by in papers.items() if any(arch in counted for arch in by)}
    known = sorted({arch for by in papers.values() for arch in by})
    archs = [arch for arch in known if counted is None or arch in counted]
    found = Agreement(predictor=predictor, outcome=outcome, architectures=len(archs), papers=len(papers))
    if len(archs) < FEWEST_ARCHITECTURES or len(papers) < FEWEST_PAPERS:
        return found
    archs += [arch for arch in known if arch not in archs]  # those that count are first
    index = {arch: at for at, arch in enumerate(archs)}
    rows = [(number, index[arch], rank) for number, by in enumerate(papers.values()) for arch, rank in by.items()]
    paper_N, arch_N, rank_N = (np.array(column) for column in zip(*rows, strict=True))
    value_1N = np.array([[by_paper[lineage][arch] for lineage, by in papers.items() for arch in by]])
    count = found.architectures
    counts_N = arch_N < count
    once = np.ones((1, len(rows)))
    whole = float(_pooled(value_1N, rank_N, paper_N, once, counts_N)[0])
    if np.isnan(whole):
        return found
    rng = np.random.default_rng(0)
    p = None
    if everywhere is not None:
        value_A = np.array([everywhere[arch] for arch in archs])
        shuffled_DA = np.tile(value_A, (_DRAWS, 1))
        shuffled_DA[:, :count] = rng.permuted(shuffled_DA[:, :count], axis=1)
        shuffled = _pooled(shuffled_DA[:, arch_N], rank_N, paper_N, once, counts_N)
        p = (int((np.abs(shuffled) >= abs(whole) - 1e-12).sum()) + 1) / (_DRAWS + 1)
    weight_DA = np.ones((_DRAWS, len(archs)))
    weight_DA[:, :count] = rng.multinomial(count, np.full(count, 1 / count), size=_DRAWS)
    drawn = _pooled(value_1N, rank_N, paper_N, weight_DA[:, arch_N], counts_N)
    left = [
        _pooled(value_1N[:, kept], rank_N[kept], paper_N[kept], np.ones((1, int(kept.sum()))), counts_N[kept])[0]
        for kept in (arch_N != at for at in range(count))
    ]
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(drawn, [tail, 1 - tail])
    return replace(
        found,
        correlation=whole,
        interval=(float(low), float(high)),
        leaving_out=(float(np.nanmin(left)), float(np.nanmax(left))),
        p=p,
    )


def months(data: Mapping[str, Any]) -> dict[str, float]:
    """The month in which every architecture was published, counted in months: later is larger."""
    return {arch: 12.0 * int(text[:4]) + int(text[5:]) for arch, text in data["months"].items()}


def own_averages(data: Mapping[str, Any], published: Iterable[Published]) -> dict[str, dict[str, float]]:
    """The averages of MAD that papers with language models publish, by the paper's source and by the names of ours that stand
    for a row there or for the language model of its name. Averages of two papers are not of the same tasks."""
    zoos = {source["name"]: source["zoo"] for source in data["sources"]}
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for paper in published:
        for table in paper.tables if paper.name in zoos else ():
            at = next((n for n, column in enumerate(table.columns) if column.mean), None)
            for row in table.rows if table.about == "mad" else ():
                if at is not None and (value := row.values[at]) is not None:
                    named = (*row.ours, *zoos[paper.name].get(row.arch, {}).get("ours", ()))
                    found[paper.name] |= {arch: value for arch in named if arch not in found[paper.name]}
    return dict(found)


def validity(
    data: Mapping[str, Any], measured: Sequence[Measure], published: Iterable[Published] = ()
) -> list[Agreement]:
    """The agreement of every predictor with every outcome, and below each that of its baselines on the same architectures: the
    size of the state, MAD as each paper has it that publishes both, and the month of publication. Where all of `BLIND` are
    trained on MAD, the blind test and its baseline follow."""
    own, born, found = figures(data), months(data), []
    averages = own_averages(data, published)
    both = [replace(one, lineage=one.source) for one in own if one.source in averages]
    for name, tasks in PREDICTORS.items():
        scores, states = synthetic_orders(measured, tasks), state_orders(measured, tasks)
        dated = {arch: born[arch] for arch in scores if arch in born}
        papers_own = {source: {a: v for a, v in by.items() if a in scores} for source, by in averages.items()}
        for outcome, metrics in OUTCOMES.items():
            ranks = published_ranks(own, metrics, scores.__contains__)
            of_both = published_ranks(both, metrics, scores.__contains__)
            found += [
                agreement(name, outcome, scores, ranks),
                agreement(f"{STATE}, where {name} is known", outcome, states, ranks),
                _agreement(f"own MAD, where {name} is known", outcome, papers_own, of_both),
                agreement(f"month, where {name} is known", outcome, dated, ranks),
            ]
    scores, states = synthetic_orders(measured, MAD), state_orders(measured, MAD)
    if all(arch in scores for arch in BLIND):
        name, outcome = BLIND_TEST
        ranks = published_ranks(own, OUTCOMES[outcome], scores.__contains__)
        found += [
            agreement(name, outcome, scores, ranks, BLIND),
            agreement(f"{STATE}, where {name} is known", outcome, states, ranks, BLIND),
        ]
    primary = [one for one in found if (one.predictor, one.outcome) in PRIMARY]
    told = {id(one): p for one, p in zip(primary, adjusted(primary), strict=True)}
    return [replace(one, adjusted=told.get(id(one))) for one in found]


def by_task(data: Mapping[str, Any], measured: Sequence[Measure]) -> list[Agreement]:
    """The agreement of each task of MAD by itself with recall, then that of the size of the state on the same rows, and of the
    architectures of `BLIND` alone where all have the task. p is adjusted by Holm among the tasks. These are explorations, and
    no test was planned: they say where to look next."""
    own, outcome = figures(data), "recall"
    found, rest = [], []
    for task in MAD:
        scores, states = synthetic_orders(measured, [task]), state_orders(measured, [task])
        ranks = published_ranks(own, OUTCOMES[outcome], scores.__contains__)
        found.append(agreement(task, outcome, scores, ranks))
        rest.append(agreement(f"{STATE}, where {task} is known", outcome, states, ranks))
        if all(arch in scores for arch in BLIND):
            rest.append(agreement(f"{BLIND_ONLY} {task}", outcome, scores, ranks, BLIND))
    return [*(replace(one, adjusted=p) for one, p in zip(found, adjusted(found), strict=True)), *rest]


def rival(one: Agreement, found: Iterable[Agreement], baseline: str = STATE) -> Agreement | None:
    """The agreement of a baseline on the rows of a predictor."""
    name = f"{baseline}, where {one.predictor} is known"
    return next((other for other in found if (other.predictor, other.outcome) == (name, one.outcome)), None)


def verdict(one: Agreement, found: Iterable[Agreement]) -> Literal["shown", "refuted", "open", ""]:
    """What the rule says of a predictor; "" where there is no number, or no size of state to beat."""
    state = rival(one, found)
    if one.correlation is None or state is None or state.correlation is None:
        return ""
    if one.correlation < max(LEAST, state.correlation):
        return "refuted"
    p = one.p if one.adjusted is None else one.adjusted
    return "shown" if p is not None and p < ALPHA else "open"


def unseen(data: Mapping[str, Any], measured: Sequence[Measure], predictor: str, outcome: str) -> list[str]:
    """Architectures of ours whose outcome is published and that no record has for this predictor: on these it can be tested
    blindly, by the rule, once they are trained."""
    seen = synthetic_orders(measured, PREDICTORS[predictor])
    own = [one for one in figures(data) if one.metric in OUTCOMES[outcome]]
    return sorted({one.ours[0] for one in own if not any(map(seen.__contains__, one.ours))})


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
    scores: dict[str, dict[str, dict[str, float]]] = {task: defaultdict(dict) for task in tasks}
    for (task, setting), by in settings.items():
        if len(by) >= 3:
            for arch, own in by.items():
                scores[task][arch][setting] = float(np.mean(own))
    places = [_places(by) for by in scores.values()]
    whole = [arch for arch in places[0] if all(arch in of_task for of_task in places)]
    return {arch: float(np.mean([of_task[arch] for of_task in places])) for arch in whole}


def _places(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The place of every architecture among the others, from 0 (last) to 1 (first): the mean over rivals of the share of
    settings on which its value is larger, of those that both have. Equal values count half. Where all have all settings it is
    the mean rank; where they have not, nobody is placed by whom it met."""
    found = {}
    for arch, own in values.items():
        shares = []
        for rival, theirs in values.items():
            common = [at for at in own if at in theirs]
            if rival != arch and common:
                shares.append(np.mean([(1 + np.sign(own[at] - theirs[at])) / 2 for at in common]))
        if shares:
            found[arch] = float(np.mean(shares))
    return found


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
    counts_N: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """float [D]: for each draw the weighted correlation of ranks within papers, over the rows that count; NaN where a side does
    not vary. Ranks are those among all rows of a paper, whatever their weights, less their weighted mean."""
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
        weights = weights * counts_N[at]
        product += (weights * sides[0] * sides[1]).sum(axis=1)
        first += (weights * sides[0] ** 2).sum(axis=1)
        second += (weights * sides[1] ** 2).sum(axis=1)
    scale = np.sqrt(first * second)
    return np.where(scale > 1e-9, product / np.where(scale > 1e-9, scale, 1.0), np.nan)
