"""From trials to measurements: choose hyper-parameters, then read off what each architecture scored on each setting."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from results.pool import Memo
from results.record import Record

On = Literal["validation", "test"]
MOST_DIALS = 4  # in a name
_JSON = json.JSONEncoder(sort_keys=True, default=str)  # one for all: making it takes longer than writing a dial
_ordered = json.JSONEncoder(default=str).encode  # keys as they come


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The trials of one architecture on one setting whose hyper-parameters won.

    trials      done trials of the winning hyper-parameters, one a seed; empty where every trial failed
    failed      failed trials of the architecture on the setting, under any hyper-parameters
    candidates  how many hyper-parameter settings were tried
    """

    on: On
    trials: tuple[Record, ...]
    failed: tuple[Record, ...]
    candidates: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one trial scored on one setting; `score` is None where it failed, `tested` where it trained on another."""

    setting: str  # one name for one setting, whatever architecture met it
    task: str
    dials: Mapping[str, Any]
    state_bytes: int
    state_length: int  # number of tokens after which the state is counted
    chance: float
    ceiling: float
    score: float | None
    scores: Mapping[str, float] = field(default_factory=dict)  # every score of the setting, by name
    tested: bool = False


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What one architecture scored on one setting, a value a seed (on test, under chosen hyper-parameters)."""

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
    failed: int = 0
    candidates: int = 1
    tested: bool = False
    leaves: Mapping[str, Any] = field(default_factory=dict)  # of the architecture, see `leaves_of`
    began: Mapping[int, str] = field(default_factory=dict)  # of a seed, see `beginning`

    @functools.cached_property
    def traits(self) -> frozenset[tuple[str, str]]:
        """The dials of the architecture, see `trait`."""
        return frozenset(trait(path.rsplit(".", 1)[-1], value) for path, value in self.leaves.items())

    def of(self, metric: str) -> Measure:
        """The same trials by another of their scores. A part of the headline has its chance and ceiling, a scaled score 0
        and 1; of others neither is known."""
        whole = metric.partition("/")[0]
        chance, ceiling = (self.chance, self.ceiling) if whole == self.metric else (None, None)
        if whole.startswith("scaled_"):
            chance, ceiling = 0.0, 1.0
        values = {seed: scores[metric] for seed, scores in self.scores.items() if metric in scores}
        return replace(self, metric=metric, values=values, chance=chance, ceiling=ceiling)

    @property
    def mixed(self) -> bool:
        """Whether the trials trained on a mix of settings."""
        return any(name.startswith("mix.") for name in self.dials)

    @functools.cached_property
    def setting(self) -> str:
        """The same as `Answer.setting`."""
        return _canonical([self.task, self.dials])


def choose_hyperparameters(records: Iterable[Record], *, on: On = "validation") -> list[Choice]:
    """For every architecture and setting, the hyper-parameters of the best mean score over seeds, of equal ones those of the
    lowest mean loss.

    Trials compete where their specs differ only in `training` (and the seed), but for how much they read: longer training
    is another setting, no better hyper-parameter. Only hyper-parameters under which the most seeds finished may win, so
    that a lucky survivor does not. `on="test"` chooses as some published protocols do, on the figures that are then
    reported, by the seeds that were trained of all hyper-parameters: further ones are of what validation chose. Raises
    ValueError where there is a choice and no score to make it by.
    """
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    asked = Memo(lambda spec: _canonical([_but(spec, "training", "seed"), extent(spec)]))
    whole = Memo(lambda spec: _canonical(_but(spec, "seed")))
    for record in records:
        groups[record.task, record.setting, record.protocol, record.arch, asked(record.spec)].append(record)
    return [_choose(group, on, whole) for group in groups.values()]


def measures(
    records: Sequence[Record], *, on: On = "validation", names: Mapping[str, str] | None = None
) -> list[Measure]:
    """Every architecture on every setting that it was trained or tested on. `names` as `row_names` gives them, where
    they are to be those of more records than these."""
    rows = names or row_names(records)
    return [measure for choice in choose_hyperparameters(records, on=on) for measure in _measures(choice, rows)]


def answers(record: Record, on: On = "validation") -> list[Answer]:
    """The setting that a trial trained on first, then the settings that it was only tested on. With what dials of mixers
    earlier phases trained is part of what was asked, and so are those dials of the task in which tests differ from training."""
    own, *further = _asked(_ordered(_question(record)))
    found = [
        Answer(
            setting=own[0],
            task=record.task,
            dials=own[1],
            state_bytes=record.state_bytes,
            state_length=record.length,
            chance=record.chance,
            ceiling=record.ceiling,
            score=reported(record, on).get(record.metric) if record.status == "done" else None,
            scores=reported(record, on),
        )
    ]
    for (setting, dials), test in zip(further, record.tests, strict=True):
        if (test["task"], test["setting"]) == (record.task, record.setting):
            continue  # the setting that it trained on, once more
        found.append(
            Answer(
                setting=setting,
                task=test["task"],
                dials=dials,
                state_bytes=test.get("state_bytes", record.state_bytes),
                state_length=test["length"] if "state_bytes" in test else record.length,
                chance=test["chance"],
                ceiling=test["ceiling"],
                score=test["scores"].get(record.metric),
                scores=test["scores"],
                tested=True,
            )
        )
    return found


def _question(record: Record) -> dict[str, Any]:
    """All that the settings of a trial follow from; many trials share it."""
    tests = [(test["task"], test["setting"]) for test in record.tests]
    trained = [phase.get("dials", {}) for phase in record.spec.get("phases", [])[:-1]]
    parts = {part: record.spec[part] for part in ("task", "tests", "data", "mix", "version") if part in record.spec}
    return {"of": record.task, "tested": tests, "extent": extent(record.spec), "trained": trained, "parts": parts}


@functools.lru_cache(maxsize=1024)
def _asked(question: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Name and dials of the setting that was trained on, then of every one that was tested on. Found once for all trials of
    one question: a page asks it of each of them several times."""
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
    return tuple((_canonical([task, dials]), dials) for task, dials in found)


def row_names(records: Iterable[Record]) -> dict[str, str]:
    """A name for every architecture, by key of record: its own, and where several share it, the dials that differ; of more
    than MOST_DIALS, as few as tell them apart."""
    by_name: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    known: dict[str, str] = {}
    for record in records:
        trained = _trained(record)
        if trained not in known:
            known[trained] = _canonical(_leaves(trained))
        by_name[record.arch][known[trained]].append(record.key)
    names = {}
    for name, variants in by_name.items():
        leaves = [json.loads(spec) for spec in variants]
        shown = differing(leaves)
        if max(len(words(leaf, shown)) for leaf in leaves) > MOST_DIALS:
            shown = _telling(leaves, shown)
        labels = [" ".join([name, *words(leaf, shown, "=")]) for leaf in leaves]
        uses = Counter(labels)
        for number, (label, keys) in enumerate(zip(labels, variants.values(), strict=True), start=1):
            final = label if uses[label] == 1 else f"{label} #{number}"
            names.update(dict.fromkeys(keys, final))
    return names


def leaves_of(record: Record) -> Mapping[str, Any]:
    """The dials of what was trained by dotted path: those of its architecture, and how its phases expanded it."""
    return _leaves(_trained(record))


def _trained(record: Record) -> str:
    """What was trained, in JSON; many trials share it."""
    expansions = [phase.get("expand") for phase in record.spec.get("phases", [])]
    return _ordered([record.spec.get("arch", {}), expansions])


@functools.lru_cache(maxsize=1024)
def _leaves(trained: str) -> Mapping[str, Any]:
    arch, expansions = json.loads(trained)
    return dict(flatten(arch)) | dict(flatten(expansions, "expand"))


def extent(spec: Mapping[str, Any]) -> dict[str, Any]:
    """How much the (last phase of a) trial read, epochs of its data or steps of so many sequences, and how it computed: what
    is asked, and not chosen for its score."""
    training = spec.get("training", {})
    read = ("epochs",) if training.get("epochs") is not None else ("steps", "batch")
    return {name: training[name] for name in (*read, "dtype", "implementation") if name in training}


def beginning(record: Record) -> str:
    """The losses of all phases but the last: trials in which they are the same to the last digit went on from the same
    weights. Empty for a trial without phases, or one that counts them in epochs."""
    phases = record.spec.get("phases", [])
    steps = [(phase.get("training") or record.spec["training"]).get("steps") for phase in phases]
    if len(steps) < 2 or None in steps or not record.curve:
        return ""
    losses = list(zip(record.curve["step"], record.curve["train_loss"], record.curve["validation_loss"], strict=True))
    if steps[-1] == 0:  # what it was tested with stands at the step at which training ended
        losses.pop()
    return _canonical([row for row in losses if row[0] <= sum(steps[:-1])])


def flatten(value: Any, path: str = "", *, empty: bool = False) -> Iterator[tuple[str, Any]]:
    """The leaves of nested plain data by dotted path. An empty list or mapping is one where `empty` is asked for, as "[]" or
    "{}"."""
    if isinstance(value, dict | Mapping):
        parts: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    else:
        yield path, value
        return
    if empty and not value and path:
        yield path, "[]" if isinstance(value, list | tuple) else "{}"
    for name, inner in parts:
        yield from flatten(inner, f"{path}.{name}" if path else str(name), empty=empty)


def words(dials: Mapping[str, Any], paths: Iterable[str], link: str = " ") -> list[str]:
    """Dials as people write them, "length 64": each by the last part of its path, once; those that are not set, not."""
    said = []
    for path in paths:
        value = dials.get(path)
        if value is not None:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            said.append(f"{path.rsplit('.', 1)[-1]}{link}{text.lower() if isinstance(value, bool) else text}")
    return list(dict.fromkeys(said))


def differing(leaves: Sequence[Mapping[str, Any]]) -> list[str]:
    """The paths whose value is not the same in all, in order of first sight."""
    paths = dict.fromkeys(path for leaf in leaves for path in leaf)
    return [p for p in paths if any(not _alike(leaf.get(p), leaves[0].get(p)) for leaf in leaves)]


def _alike(one: Any, other: Any) -> bool:
    """Whether two values read the same in canonical JSON, mostly told without writing it: pages ask this of millions."""
    return (type(one) is type(other) and one == other) or _canonical(one) == _canonical(other)


def _telling(leaves: Sequence[Mapping[str, Any]], paths: Sequence[str]) -> list[str]:
    """Of these paths as few as tell all apart that they do: always the one that leaves the fewest alike."""

    def groups(chosen: Sequence[str]) -> int:
        return len({tuple(words(leaf, chosen)) for leaf in leaves})

    chosen: list[str] = []
    while groups(chosen) < groups(paths):
        chosen.append(max((p for p in paths if p not in chosen), key=lambda path: groups([*chosen, path])))
    return [path for path in paths if path in chosen]


def trait(name: str, value: Any) -> tuple[str, str]:
    """A dial of an architecture as `Measure.traits` holds it."""
    return name, _canonical(value)


def _dials(task: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flatten(task) if name not in ("kind", "protocol")}


def _choose(group: Sequence[Record], on: On, whole: Callable[[Mapping[str, Any]], str]) -> Choice:
    """`whole` says all of a spec but its seed."""
    cells: dict[str, list[Record]] = defaultdict(list)
    for record in group:
        cells[whole(record.spec)].append(record)
    done = [[r for r in cells[hyper] if r.score is not None] for hyper in sorted(cells)]  # not in the order they came
    seeds = {r.seed for r in group}
    if on == "test":  # of what validation chose there are further seeds
        seeds = set.intersection(*({r.seed for r in trials} for trials in cells.values())) or seeds
    judged = [[r for r in trials if r.seed in seeds] for trials in done]
    most = max(map(len, judged))
    able = [at for at, trials in enumerate(judged) if trials and len(trials) == most]
    best: list[Record] = []
    if len(able) == 1:
        best = done[able[0]]
    elif able:
        best = done[max(able, key=lambda at: tuple(np.mean([_judged(r, on) for r in judged[at]], axis=0)))]
    return Choice(
        on=on,
        trials=tuple(sorted(best, key=lambda r: r.seed)),
        failed=tuple(r for r in group if r.score is None),
        candidates=len(cells),
    )


def _judged(record: Record, on: On) -> tuple[float, float]:
    """What a choice goes by: the score and, where scores tie, the loss, as a checkpoint is chosen."""
    scores = record.validation if on == "validation" else reported(record, on)
    if record.metric not in scores:
        raise ValueError(
            f"trials of {record.arch} on {record.task} differ in hyper-parameters, but {record.key[:12]} has no {on} "
            f"score '{record.metric}' to choose by; train it again, or leave it out"
        )
    return scores[record.metric], -scores.get("loss", math.inf)


def reported(record: Record, on: On) -> Mapping[str, float]:
    """The test scores that count: of the published protocol's own checkpoint where the choice is on test."""
    return record.published_choice or record.scores if on == "test" else record.scores


def _measures(choice: Choice, rows: Mapping[str, str]) -> Iterator[Measure]:
    first = (choice.trials or choice.failed)[0]
    leaves = leaves_of(first)
    by_seed = {r.seed: answers(r, choice.on) for r in choice.trials}
    for index, answer in enumerate(answers(first, choice.on)):
        own = {seed: found[index] for seed, found in by_seed.items() if index < len(found)}
        yield Measure(
            arch=first.arch,
            row=rows[first.key],
            task=answer.task,
            dials=answer.dials,
            state_bytes=answer.state_bytes,
            state_grows=first.state_grows,
            metric=first.metric,
            values={seed: one.score for seed, one in own.items() if one.score is not None},
            scores={seed: one.scores for seed, one in own.items()},
            keys=tuple(r.key for r in choice.trials),
            chance=answer.chance,
            ceiling=answer.ceiling,
            failed=len(choice.failed),
            candidates=choice.candidates,
            tested=answer.tested,
            leaves=leaves,
            began={r.seed: beginning(r) for r in choice.trials},
        )


def _but(spec: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in names}


def _canonical(value: Any) -> str:
    return _JSON.encode(value)
