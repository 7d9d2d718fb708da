"""Measures from trials: choose hyper-parameters, then collect the scores of each architecture on each setting."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from recallmap.results.analysis.labels import canonical_text, flatten, leaves_of, ordered, row_names
from recallmap.results.analysis.selection import Choice, Edge, On, choose_hyperparameters, extent, reported
from recallmap.results.record import Record

STANDARD_ERROR = "_stderr"  # ends the name of a score's standard error

NEAR = 0.01  # of a bound: from there to the ceiling nothing can be better, and to chance worse, by as much as matters


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The scores of one trial on one setting. `score` is None where the trial failed; `tested` says that it trained on another
    setting."""

    setting: str  # the same text for the same setting, whatever the architecture
    task: str
    dials: Mapping[str, Any]
    state_bytes: int
    state_length: int  # number of tokens after which the state is counted
    chance: float
    ceiling: float
    references: Mapping[str, float]  # scores of simpler rules by name, see `Record.references`
    score: float | None
    scores: Mapping[str, float] = field(default_factory=dict)  # every score of the setting, by name
    tested: bool = False


@dataclass(frozen=True, kw_only=True)
class Measure:
    """The scores of one architecture on one setting, one per seed: on the test set, under the chosen hyper-parameters."""

    arch: str
    row: str  # tells architectures of one name apart
    task: str
    dials: Mapping[str, Any]
    state_bytes: int
    state_grows: bool
    metric: str
    values: Mapping[int, float]
    scores: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # every score of a seed, by name
    keys: tuple[str, ...] = ()
    chance: float | None
    ceiling: float | None
    references: Mapping[str, float] = field(default_factory=dict)  # see `Answer`
    failed: int = 0
    lost: int = 0  # failed trials under the chosen hyper-parameters
    candidates: int = 1
    tested: bool = False
    leaves: Mapping[str, Any] = field(default_factory=dict)  # of the architecture, see `leaves_of`
    chose_none: frozenset[int] = frozenset()  # seeds that chose no hyper-parameters, see `Choice`
    held_out: Mapping[int, float] = field(
        default_factory=dict
    )  # of traceable trials under what others chose, see `Choice`
    held_out_scores: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # every score of these
    traceable: frozenset[int] = frozenset()  # seeds whose commit says what ran
    edge: Edge = ""
    rates: int = 0  # that were tried, see `Choice`
    surpassed: int = 0  # seeds by which other hyper-parameters are better, see `Choice`
    trained: Mapping[int, float] = field(
        default_factory=dict
    )  # of a seed, how far it came where it trained, see `_furthest`
    errors: Mapping[int, float] = field(
        default_factory=dict
    )  # standard errors of `values` over test sequences, if known

    @functools.cached_property
    def traits(self) -> frozenset[tuple[str, str]]:
        """The parameters of the architecture, see `trait`."""
        return frozenset(trait(path.rsplit(".", 1)[-1], value) for path, value in self.leaves.items())

    def of(self, metric: str, *, minus: str | None = None) -> Measure:
        """The same trials by another of their scores, or by how much it is above the score `minus`. A part of the headline
        keeps its chance and ceiling; a scaled score and the share of sequences that are right throughout have 0 and 1; those of
        other scores and of differences are unknown.
        References are of the whole headline alone."""
        whole = metric.partition("/")[0]
        chance, ceiling = (self.chance, self.ceiling) if whole == self.metric else (None, None)
        if whole != self.metric and (whole.startswith("scaled_") or whole == "exact_match"):
            chance, ceiling = 0.0, 1.0
        if minus is not None:
            chance, ceiling = None, None
        needed = {metric, minus} - {None}
        values, held_out = (
            {s: own[metric] - (own[minus] if minus else 0.0) for s, own in scores.items() if needed <= own.keys()}
            for scores in (self.scores, self.held_out_scores)
        )
        return replace(
            self,
            metric=metric,
            values=values,
            held_out=held_out,
            chance=chance,
            ceiling=ceiling,
            references={} if minus or metric != self.metric else self.references,
            errors={} if minus else errors_of(self.scores, metric),
        )

    @property
    def fresh(self) -> dict[int, float]:
        """The values that may decide a verdict, by seed: of seeds that chose no hyper-parameters and are traceable, or, where
        every seed tried all, of seeds whose hyper-parameters the others chose."""
        if self.held_out:
            return dict(sorted(self.held_out.items()))
        return {s: v for s, v in sorted(self.values.items()) if s in self.chose_none and s in self.traceable}

    @property
    def dependent(self) -> bool:
        """Whether fresh seeds depend on each other, because each had a say in the hyper-parameters of the others."""
        return bool(self.held_out)

    @property
    def mixed(self) -> bool:
        """Whether the trials trained on a mix of settings."""
        return any(name.startswith("mix.") for name in self.dials)

    @functools.cached_property
    def setting(self) -> str:
        """The same as `Answer.setting`."""
        return canonical_text([self.task, self.dials])


def measures(
    records: Sequence[Record], *, on: On = "validation", names: Mapping[str, str] | None = None
) -> list[Measure]:
    """The measures of every architecture on every setting that it was trained or tested on. `names`, as `row_names` gives them,
    are needed where more records than these share a table."""
    rows = names or row_names(records)
    return [measure for choice in choose_hyperparameters(records, on=on) for measure in _measures(choice, rows)]


def answers(record: Record, on: On = "validation") -> list[Answer]:
    """The answers on the setting that a trial trained on, then on those that it was only tested on. A setting includes the
    parameters of mixers with which earlier phases trained, and those of the trained task in which tests differ from it."""
    own, *further = _asked(ordered(_question(record)))
    (score, scores), *others = _scored(record, on)
    found = [
        Answer(
            setting=own[0],
            task=record.task,
            dials=own[1],
            state_bytes=record.state_bytes,
            state_length=record.length,
            chance=record.chance,
            ceiling=record.ceiling,
            references=record.references,
            score=score,
            scores=scores,
        )
    ]
    tested = ((*at, test) for at, test in zip(further, record.tests, strict=True) if not _is_trained(test, record))
    for (setting, dials, test), (score, scores) in zip(tested, others, strict=True):
        found.append(
            Answer(
                setting=setting,
                task=test["task"],
                dials=dials,
                state_bytes=test.get("state_bytes", record.state_bytes),
                state_length=test["length"] if "state_bytes" in test else record.length,
                chance=test["chance"],
                ceiling=test["ceiling"],
                references=test.get("references", {}),
                score=score,
                scores=scores,
                tested=True,
            )
        )
    return found


def _scored(record: Record, on: On) -> list[tuple[float | None, Mapping[str, float]]]:
    """Score and scores of every answer, which differ between trials of one question."""
    own = reported(record, on)
    tested = [test["scores"] for test in record.tests if not _is_trained(test, record)]
    score = own.get(record.metric) if record.status == "done" else None
    return [(score, own), *((scores.get(record.metric), scores) for scores in tested)]


def _is_trained(test: Mapping[str, Any], record: Record) -> bool:
    """True for a test of the setting that the trial trained on, which comes first anyway."""
    return bool(test["task"] == record.task and test["setting"] == record.setting)


def _question(record: Record) -> dict[str, Any]:
    """The parts of a record that determine its settings, which many trials share."""
    tests = [(test["task"], test["setting"]) for test in record.tests]
    trained = [phase.get("dials", {}) for phase in record.spec.get("phases", [])[:-1]]
    parts = {part: record.spec[part] for part in ("task", "tests", "data", "mix", "version") if part in record.spec}
    return {"of": record.task, "tested": tests, "extent": extent(record.spec), "trained": trained, "parts": parts}


@functools.lru_cache(maxsize=1024)
def _asked(question: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Name and parameters of the trained setting, then of every tested one. Cached, because a page asks several times for each
    of many trials with the same question."""
    asked = json.loads(question)
    parts = asked["parts"]
    around = dict(flatten({part: parts[part] for part in ("data", "mix") if part in parts}))
    around |= {f"training.{name}": value for name, value in asked["extent"].items()}
    for dials in asked["trained"]:
        around |= {f"training.trained_{name}": value for name, value in dials.items()}
    if "version" in parts:
        around["spec.version"] = parts["version"]
    trained, tests = _dials(parts.get("task", {})), [_dials(test) for test in parts.get("tests", [])]
    around |= {f"tests.trained_{d}": v for d, v in trained.items() if any(test.get(d) != v for test in tests)}
    found = [(asked["of"], {**trained, **around})]
    for index, (task, setting) in enumerate(asked["tested"]):
        known = tests[index] if index < len(tests) else {"setting": setting}
        found.append((task, {**known, **around}))
    return tuple((canonical_text([task, dials]), dials) for task, dials in found)


def at_ceiling(measure: Measure) -> bool:
    """Whether the mean is at most a point below the ceiling."""
    return measure.ceiling is not None and mean_of(measure) >= measure.ceiling - NEAR


def mean_of(measure: Measure) -> float:
    return float(np.mean(list(measure.values.values())))


def edge_of(own: Iterable[Measure]) -> Edge:
    """The first edge of the grid of learning rates at which a measure below the ceiling is best; "" where none is."""
    return next((m.edge for m in own if m.edge and m.values and not at_ceiling(m)), "")


def is_error(name: str) -> bool:
    """Whether a score is the standard error of another."""
    return name.partition("/")[0].endswith(STANDARD_ERROR)


def errors_of(scores: Mapping[int, Mapping[str, float]], metric: str) -> dict[int, float]:
    """The standard errors of a score over test sequences, by seed, of those that have one."""
    whole, slash, part = metric.partition("/")
    name = f"{whole}{STANDARD_ERROR}{slash}{part}"
    return {seed: own[name] for seed, own in scores.items() if name in own}


def way(score: float, chance: float, ceiling: float) -> float:
    """A score as its share of the way from chance (0) to the ceiling (1); 1 where there is no way."""
    return (score - chance) / (ceiling - chance) if ceiling > chance else 1.0


def trait(name: str, value: Any) -> tuple[str, str]:
    """A parameter of an architecture as `Measure.traits` holds it."""
    return name, canonical_text(value)


def _dials(task: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flatten(task) if name not in ("kind", "protocol")}


def _measures(choice: Choice, rows: Mapping[str, str]) -> Iterator[Measure]:
    first = (choice.trials or choice.failed)[0]
    leaves = leaves_of(first)
    by_seed = {r.seed: _scored(r, choice.on) for r in choice.trials}
    left_out = {r.seed: _scored(r, choice.on) for r in choice.held_out if r.traceable}
    for index, answer in enumerate(answers(first, choice.on)):
        own, held = (
            {seed: found[index] for seed, found in trials.items() if index < len(found)}
            for trials in (by_seed, left_out)
        )
        yield Measure(
            arch=first.arch,
            row=rows[first.key],
            task=answer.task,
            dials=answer.dials,
            state_bytes=answer.state_bytes,
            state_grows=first.state_grows,
            metric=first.metric,
            values={seed: score for seed, (score, _) in own.items() if score is not None},
            scores={seed: scores for seed, (_, scores) in own.items()},
            errors=errors_of({seed: scores for seed, (_, scores) in own.items()}, first.metric),
            keys=tuple(r.key for r in choice.trials),
            chance=answer.chance,
            ceiling=answer.ceiling,
            references=answer.references,
            failed=len(choice.failed),
            lost=choice.lost,
            candidates=choice.candidates,
            tested=answer.tested,
            leaves=leaves,
            chose_none=choice.fresh,
            held_out={seed: score for seed, (score, _) in held.items() if score is not None},
            held_out_scores={seed: scores for seed, (_, scores) in held.items()},
            traceable=frozenset(r.seed for r in choice.trials if r.traceable),
            edge=choice.edge,
            rates=choice.rates,
            surpassed=choice.surpassed,
            trained={r.seed: _furthest(r, r.score) for r in choice.trials if r.score is not None},
        )


def _furthest(record: Record, score: float) -> float:
    """How far a trial came on what it trained on, see `way`; of a mix, on that of its settings where it came furthest."""
    ways = [way(score, record.chance, record.ceiling)]
    mix = [part["task"] for part in record.spec.get("mix") or ()]
    for task, test in zip(record.spec["tests"], record.tests, strict=True) if mix else ():
        if task in mix and record.metric in test["scores"]:
            ways.append(way(test["scores"][record.metric], test["chance"], test["ceiling"]))
    return max(ways)
