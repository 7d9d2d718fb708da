"""Choice of hyper-parameters on validation, and the test scores that are reported for the chosen trials."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from recallmap.results.analysis.labels import TextsOfParts, canonical_text
from recallmap.results.plain_data.shared_parts import Joined, Memo
from recallmap.results.record import Record

AT_ONCE = 2**20  # figures that are summed up together

SURPASSING = 5  # seeds by which other hyper-parameters may be called better

On = Literal["validation", "test"]
Edge = Literal["", "highest", "lowest"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The trials of one architecture on one setting with the best hyper-parameters.

    trials      done trials of these hyper-parameters, one per seed; empty where every trial failed
    failed      failed trials of the architecture on the setting, under any hyper-parameters
    candidates  number of hyper-parameter settings that were tried
    fresh       seeds of `trials` under which no other hyper-parameters were tried, so that they chose none
    held_out    where every seed tried all hyper-parameters: one trial a seed, under those that the other seeds choose, so that
                no trial's score chose it. Empty elsewhere, and where there is no choice. A seed that failed under them has none
    edge        where the chosen learning rate is the highest or the lowest that was tried; "" for neither, and for one rate
    rates       number of learning rates that were tried; 0 where `training` has none
    surpassed   seeds, SURPASSING or more, that have other hyper-parameters, too, and find them better; 0 where there are none.
                Those with the most seeds win, and may have got them before the others did
    lost        how many of `failed` had these hyper-parameters
    """

    on: On
    trials: tuple[Record, ...]
    failed: tuple[Record, ...]
    candidates: int
    fresh: frozenset[int] = frozenset()
    held_out: tuple[Record, ...] = ()
    edge: Edge = ""
    rates: int = 0
    surpassed: int = 0
    lost: int = 0


def choose_hyperparameters(records: Iterable[Record], *, on: On = "validation") -> list[Choice]:
    """For every architecture and setting, the hyper-parameters with the best mean score over seeds; where scores tie, those
    with the lowest mean loss.

    Trials compete if their specs differ only in `training` and the seed, and if they read equally much: longer training is
    another setting, not a better hyper-parameter. Only hyper-parameters under which the most seeds finished can win, so that
    a lucky survivor does not. `on="test"` chooses on the reported test scores, as some published protocols do. It uses only
    seeds that were trained under all hyper-parameters, because validation chose those that have more. Raises ValueError where
    there is a choice to make and a trial lacks the score for it.
    """
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    text = TextsOfParts()
    read = Memo(lambda training: canonical_text(extent({"training": training})))
    asked = Memo(lambda spec: f"[{text(_but(spec, 'training', 'seed'))}, {read(spec.get('training', _UNTRAINED))}]")
    whole = Memo(lambda spec: text(_but(spec, "seed")))
    for record in records:
        groups[record.task, record.setting, record.protocol, record.arch, asked(record.spec)].append(record)
    return [_choose(group, on, whole) for group in groups.values()]


def one_cell(records: Iterable[Record]) -> list[Record]:
    """The trials of one cell of hyper-parameters a task, as MesaNet (appendix F.1) chooses: for every architecture and task,
    that with the best mean over the task's settings, each by the mean validation score over seeds. Only cells that finished on
    the most settings can win. Raises ValueError where a trial lacks the score to choose by."""
    groups: dict[tuple[str, ...], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        rest = canonical_text([_but(record.spec, *_OF_SETTING), extent(record.spec)])
        cell = canonical_text(record.spec.get("training", {}))
        groups[record.task, record.protocol, record.arch, rest][cell].append(record)
    found: list[Record] = []
    for cells in groups.values():
        judged = (
            {cell: over_settings(cells[cell]) for cell in sorted(cells)} if len(cells) > 1 else dict.fromkeys(cells)
        )
        found += cells[max(judged, key=lambda cell: judged[cell] or (0, ()))]
    return found


_UNTRAINED: dict[str, Any] = {}  # the training of a spec that has none of its own

_ASKED = ("task", "tests", "data", "mix")  # parts of a spec that say what is asked

_OF_SETTING = ("training", "seed", *_ASKED)  # and those that are chosen


def over_settings(trials: Sequence[Record]) -> tuple[int, tuple[float, ...]]:
    """The number of settings on which a seed finished, and the mean criterion over them."""
    by_setting: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in trials:
        if record.score is not None:
            asked = canonical_text(
                [record.spec.get(name) for name in _ASKED]
            )  # `setting` leaves out the amount of data
            by_setting[asked].append(_judged(record, "validation"))
    if not by_setting:
        return 0, ()
    means = [np.mean(scores, axis=0) for scores in by_setting.values()]
    return len(means), tuple(np.mean(means, axis=0).tolist())


def extent(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of training that belongs to the setting and is not chosen by score: the amount read by the trial or its last
    phase (epochs, or steps and batch), and how it was computed (dtype, implementation)."""
    training = spec.get("training", {})
    read = ("epochs",) if training.get("epochs") is not None else ("steps", "batch")
    return {name: training[name] for name in (*read, "dtype", "implementation") if name in training}


def _choose(group: Sequence[Record], on: On, whole: Callable[[Mapping[str, Any]], str]) -> Choice:
    """The choice among trials of one group; `whole` gives the text of a spec without its seed."""
    if len({id(r.spec.shared) if isinstance(r.spec, Joined) else id(r.spec) for r in group}) == 1:
        whole = _same  # one spec but for the seed: its text tells nothing
    cells: dict[str, list[Record]] = defaultdict(list)
    for record in group:
        cells[whole(record.spec)].append(record)
    done = [[r for r in cells[hyper] if r.score is not None] for hyper in sorted(cells)]  # not in the records' order
    judged = done
    if on == "test":  # what validation chose may have more seeds
        seeds = set.intersection(*({r.seed for r in trials} for trials in cells.values()))
        judged = [[r for r in trials if not seeds or r.seed in seeds] for trials in done]
    mean = _Mean(on)
    at = _best(judged, mean)
    best = [] if at is None else done[at]
    rates = {rate for r in group if isinstance(rate := _rate(r), int | float)}
    others = {r.seed for hyper, trials in cells.items() if best and hyper != whole(best[0].spec) for r in trials}
    return Choice(
        on=on,
        trials=tuple(sorted(best, key=lambda r: r.seed)),
        failed=tuple(r for r in group if r.score is None),
        candidates=len(cells),
        fresh=frozenset(r.seed for r in best) - others,
        held_out=_held_out(cells, done, mean),
        edge=_edge(best[0], rates) if best else "",
        rates=len(rates),
        surpassed=0 if at is None else _surpassed(best, (trials for i, trials in enumerate(done) if i != at), mean),
        lost=sum(r.score is None for r in cells[whole(best[0].spec)]) if best else 0,
    )


def _surpassed(best: Sequence[Record], others: Iterable[Sequence[Record]], mean: _Mean) -> int:
    """The seeds by which others are better than the best, see `Choice`."""
    seeds = {r.seed for r in best}
    for trials in others:
        common = seeds & {r.seed for r in trials}
        if len(common) >= SURPASSING:
            theirs, ours = (mean([r for r in own if r.seed in common]) for own in (trials, best))
            if theirs > ours:
                return len(common)
    return 0


def _same(spec: Mapping[str, Any]) -> str:
    return ""


class _Mean:
    """The mean criterion of some trials of a group (see `_judged`), which is looked up once a trial."""

    def __init__(self, on: On) -> None:
        self._on = on
        self._known: dict[int, tuple[float, float]] = {}  # by the identity of records, which the group holds

    def __call__(self, trials: Sequence[Record]) -> tuple[float, float]:
        score, loss = 0.0, 0.0
        for record in trials:
            judged = self._of(record)
            score += judged[0]
            loss += judged[1]
        return score / len(trials), loss / len(trials)

    def _of(self, record: Record) -> tuple[float, float]:
        if (judged := self._known.get(id(record))) is None:
            judged = self._known[id(record)] = _judged(record, self._on)
        return judged

    def without(self, trials: Sequence[Record], seeds: Sequence[int]) -> list[tuple[float, float]]:
        """The means without the trials of each of these seeds, where some are left: running sums in the order of the trials,
        so that they are those of a call to the last bit."""
        own, judged = np.array([r.seed for r in trials])[:, None], np.array([self._of(r) for r in trials])
        found: list[tuple[float, float]] = []
        for part in np.array_split(np.array(seeds), 1 + len(seeds) * len(trials) // AT_ONCE):
            others = own != part
            left = np.maximum(others.sum(0), 1)
            score, loss = (np.where(others, column[:, None], 0.0).cumsum(0)[-1] / left for column in judged.T)
            found += zip(score.tolist(), loss.tolist(), strict=True)
        return found


def _best(judged: Sequence[Sequence[Record]], mean: _Mean) -> int | None:
    """The place of the hyper-parameters under which the most seeds finished, and of these the best; None where none did."""
    able = _able([len(trials) for trials in judged])
    if len(able) < 2:
        return able[0] if able else None
    return max(able, key=lambda at: mean(judged[at]))


def _able(finished: Sequence[int]) -> list[int]:
    """The places of the hyper-parameters under which the most seeds finished; none where none did."""
    most = max(finished)
    return [at for at, count in enumerate(finished) if count and count == most]


def _held_out(
    cells: Mapping[str, Sequence[Record]], done: Sequence[Sequence[Record]], mean: _Mean
) -> tuple[Record, ...]:
    """The trial of every seed under what the other seeds choose, see `Choice`; `cells` hold failed trials too."""
    tried = [sorted(r.seed for r in trials) for trials in cells.values()]
    if len(tried) < 2 or len(tried[0]) < 2 or any(seeds != tried[0] for seeds in tried):
        return ()
    seeds = tried[0]
    by_seed: list[dict[int, list[Record]]] = [defaultdict(list) for _ in done]
    for own, trials in zip(by_seed, done, strict=True):
        for record in trials:
            own[record.seed].append(record)

    @cache
    def means(at: int) -> list[tuple[float, float]]:
        return mean.without(done[at], seeds)

    found: list[Record] = []
    for place, seed in enumerate(seeds):
        finished = [len(trials) - len(own.get(seed, ())) for own, trials in zip(by_seed, done, strict=True)]
        able = _able(finished)
        if len(able) > 1:
            judged = [means(at)[place] for at in able]
            able = [able[judged.index(max(judged))]]
        found += [record for at in able for record in by_seed[at].get(seed, ())]
    return tuple(found)


def _rate(record: Record) -> Any:
    return record.spec.get("training", {}).get("lr")


def _edge(best: Record, tried: Collection[float]) -> Edge:
    own = _rate(best)
    if len(tried) < 2 or own not in tried:
        return ""
    return "highest" if own == max(tried) else "lowest" if own == min(tried) else ""


def _judged(record: Record, on: On) -> tuple[float, float]:
    """The criterion of a choice: the score, then the negative loss where scores tie; checkpoints are chosen alike."""
    scores = record.validation if on == "validation" else reported(record, on)
    if record.metric not in scores:
        raise ValueError(
            f"trials of {record.arch} on {record.task} differ in hyper-parameters, but {record.key[:12]} has no {on} "
            f"score '{record.metric}' to choose by; train it again, or leave it out"
        )
    return scores[record.metric], -scores.get("loss", math.inf)


def reported(record: Record, on: On) -> Mapping[str, float]:
    """The test scores to report: where the choice is on test, those of the checkpoint that the published protocol chose."""
    return record.published_choice or record.scores if on == "test" else record.scores


def _but(spec: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in names}
