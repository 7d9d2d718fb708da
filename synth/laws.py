"""Laws of tasks, checked by drawing from them. `verdicts` runs all of them.

n sequences, T positions
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.streams import Stream
from recallmap.synth.task import Split, Task

SPLITS: tuple[Split, ...] = get_args(Split)
COUNT = 64  # sequences that a law draws, unless it needs more
SETS = 32  # of so many sequences, for a mean and its standard error
ERRORS = 4  # standard errors within which a mean is as expected
SPREAD = 2  # factor within which the standard deviation of a statistic over sets is its standard error
HEARD, ASKED, TOLD = 20_000, 512, 1024  # training, validation and test sequences that are compared


class Verdict(NamedTuple):
    """The result of a law. `fault` says in one line where it is broken, by how much, and what was expected; "" where it
    holds. `skipped` says why it does not apply, where it does not."""

    law: str
    fault: str = ""
    skipped: str = ""

    @property
    def holds(self) -> bool:
        return not self.fault


def shapes(task: Task, splits: Sequence[Split] = SPLITS) -> Verdict:
    """Check that inputs and targets have the shape and the type that the task tells."""
    law, (length, vocab) = "shape as told", task.shape
    tokens = task.signal == "tokens"
    shape, dtype = ((5, length), np.int64) if tokens else ((5, length, vocab), np.float32)
    for split in splits:
        batch = _draw(task, 5, split)
        for name, found in (("inputs", batch.inputs), ("targets", batch.targets)):
            if found.shape != shape or found.dtype != dtype:
                wanted = f"expected {list(shape)} of {np.dtype(dtype)}, as `shape` says"
                return Verdict(
                    law, f"{split}: of 5 sequences {name} are {list(found.shape)} of {found.dtype}; {wanted}"
                )
        if len(batch) != 5:
            return Verdict(law, f"{split}: asked for 5 sequences it draws {len(batch)}; expected as many")
    return Verdict(law)


def reproducible(task: Task, splits: Sequence[Split] = SPLITS) -> Verdict:
    """Check that one generator gives one batch, another gives another, and a stream is the same in any portions."""
    law = "same seed, same bits"
    if not same(_draw(task, 8, "test"), _draw(task, 8, "test")):
        fault = (
            "the same generator gives other sequences; expected the same: take all chance from `rng`, and keep nothing"
        )
        return Verdict(law, fault)
    if same(_draw(task, 8, "test"), _draw(task, 8, "test", seed=1)):
        return Verdict(law, "another generator gives the same 8 sequences; expected others: take all chance from `rng`")
    for split in splits:
        stream = Stream(task, 3, split)
        edge = stream.block
        whole = stream.take(edge - 6, 12)
        pieces = [Stream(task, 3, split).take(edge + 2, 4), stream.take(edge - 6, 1), stream.take(edge - 5, 7)]
        if not same(Batch.join([pieces[1], pieces[2], pieces[0]]), whole):
            fault = f"{split}: sequences {edge - 6} to {edge + 5} are others when taken in portions; expected the same"
            return Verdict(law, f"{fault}: keep nothing between two calls of `sample`")
    return Verdict(law)


def vocabulary(task: Task, splits: Sequence[Split] = SPLITS) -> Verdict:
    """Check that roles cover the token ids, that all tokens are such ids, and that every sequence asks something."""
    law, vocab = "tokens in vocabulary", task.shape[1]
    if task.roles().vocab != vocab:
        return Verdict(law, f"roles cover {task.roles().vocab} ids and `shape` says {vocab}; expected as many")
    for split in splits:
        batch = _draw(task, COUNT, split)
        scored = batch.targets != IGNORE
        for name, ids in (("inputs", batch.inputs), ("targets", batch.targets[scored])):
            if ids.size and not 0 <= ids.min() <= ids.max() < vocab:
                got = f"from {ids.min()} to {ids.max()}"
                return Verdict(
                    law, f"{split}: {name} hold ids {got}; expected 0 to {vocab - 1}, or {IGNORE} where unscored"
                )
        if not scored.any(axis=1).all():
            first = int(np.flatnonzero(~scored.any(axis=1))[0])
            return Verdict(law, f"{split}: sequence {first} asks nothing; expected a target in every sequence")
    return Verdict(law)


def sourced(task: Task, splits: Sequence[Split] = SPLITS) -> Verdict:
    """Check that a source is a position before its answer is asked for, and that it shows the answer."""
    law = "sources show the answer"
    if type(task).sources is Task.sources:
        return Verdict(law, skipped="it tells no sources")
    for split in splits:
        batch = _draw(task, COUNT, split)
        sources = task.sources(batch)
        if sources.shape != batch.targets.shape:
            return Verdict(law, f"{split}: sources are {list(sources.shape)}; expected {list(batch.targets.shape)}")
        readers = (
            np.arange(sources.shape[1]) if task.readout == "each" else np.full(sources.shape[1], sources.shape[1] - 1)
        )
        shown = np.take_along_axis(batch.inputs, np.clip(sources, 0, sources.shape[1] - 1), axis=1)
        for wrong, said in (
            (batch.targets == IGNORE, "is one of a position that is not scored"),
            (sources > readers, "lies in the future"),
            (shown != batch.targets, "does not show the answer"),
        ):
            if (found := np.argwhere((sources >= 0) & wrong)).size:
                row, at = map(int, found[0])
                fault = f"{split}: of sequence {row}, the source of position {at} ({sources[row, at]}) {said}"
                return Verdict(law, f"{fault}; expected an earlier position that holds it, or -1")
    return Verdict(law)


def scored(task: Task) -> Verdict:
    """Check that right answers score 1, that only scored positions count, and that scores are named beforehand."""
    law, batch = "scores", _draw(task, COUNT, "test")
    vocab, tokens = task.shape[1], task.signal == "tokens"
    guesses = np.roll(batch.targets, 1, axis=0)
    shares = _shares(task, batch, 0.5)
    scores = task.score(batch, guesses, shares)
    told = [name for name in scores if "/" not in name]
    named = task.score_names()
    if named != told:
        fault = f"`score_names` tells {', '.join(named)} and `score` {', '.join(told)}; expected the same"
        return Verdict(law, fault)
    if task.metric not in told:
        return Verdict(law, f"the metric '{task.metric}' is none of the scores {', '.join(told)}; expected one of them")
    if strange := [name for name in task.standard_errors(batch, guesses, shares) if name not in scores]:
        fault = f"`standard_errors` names {', '.join(strange)}, and `score` does not"
        return Verdict(law, f"{fault}; expected names of scores")
    if not tokens:
        return Verdict(law)
    sure = np.eye(vocab)[np.maximum(batch.targets, 0)] if task.wants_probabilities else None
    right = task.score(batch, batch.targets, sure)[task.metric]
    if not math.isclose(right, 1.0, rel_tol=1e-6):
        return Verdict(law, f"right answers have {task.metric} {right:.4g}; expected 1")
    answers = np.random.default_rng(0).integers(vocab, size=batch.targets.shape)
    elsewhere = np.where(batch.targets == IGNORE, (answers + 1) % vocab, answers)
    even = _shares(task, batch, 1 / vocab)
    if task.score(batch, answers, even) != task.score(batch, elsewhere, even):
        return Verdict(law, "other answers at positions that are not scored change a score; expected no change")
    return Verdict(law)


def bracketed(task: Task) -> Verdict:
    """Check that chance and ceiling lie in order between 0 and 1, that blind answers score no more than chance, within
    four standard errors, and right ones no less than the ceiling; and that a set's standard error, if the task says it, is that
    of the sets: within a factor of two."""
    law, chance, ceiling = "chance and ceiling", task.chance(), task.ceiling()
    if not 0 <= chance < ceiling <= 1:
        return Verdict(
            law, f"chance is {chance:.4g} and the ceiling {ceiling:.4g}; expected 0 <= chance < ceiling <= 1"
        )
    rng, blind, right, errors = np.random.default_rng(7), [], [], []
    vocab = task.shape[1]
    for _ in range(SETS):
        batch = task.sample(rng, COUNT, "test")
        guesses = np.zeros_like(batch.targets)
        if task.signal == "tokens":
            guesses = rng.integers(vocab, size=batch.targets.shape)
        sure = np.eye(vocab)[np.maximum(batch.targets, 0)] if task.wants_probabilities else None
        even = _shares(task, batch, 1 / vocab)
        blind.append(task.score(batch, guesses, even)[task.metric])
        errors.append(task.standard_errors(batch, guesses, even).get(task.metric, math.nan))
        right.append(task.score(batch, batch.targets, sure)[task.metric])
    mean, error = float(np.mean(blind)), float(np.std(blind, ddof=1) / np.sqrt(SETS))
    if mean > chance + ERRORS * error + 1e-9:
        fault = f"blind answers have {task.metric} {mean:.4g} ± {error:.2g}, more than chance, {chance:.4g}; expected no more"
        return Verdict(law, f"{fault}: `chance` is of one who knows the rules and guesses")
    said, seen = math.sqrt(np.mean(np.square(errors))), float(np.std(blind, ddof=1))
    if not math.isnan(said) and not seen / SPREAD <= said <= seen * SPREAD:
        fault = f"`standard_errors` has {said:.2g} for {task.metric} of {COUNT} sequences; sets of so many differ by {seen:.2g}"
        return Verdict(law, f"{fault}, expected one within a factor of {SPREAD}")
    if min(right) < ceiling - 1e-6:
        fault = f"right answers have {task.metric} {min(right):.4g}, less than the ceiling, {ceiling:.4g}"
        return Verdict(law, f"{fault}; expected no less")
    return Verdict(law)


def disjoint(task: Task) -> Verdict:
    """Check that splits and seeds have streams of their own, and that no validation or test sequence is trained on."""
    law = "splits disjoint"
    firsts = {
        (seed, split): Stream(task, seed, split).take(0, 1).inputs.tobytes() for seed in (0, 1) for split in SPLITS
    }
    if len(set(firsts.values())) < len(firsts):
        fault = "two splits or seeds begin with the same sequence; expected others"
        return Verdict(law, f"{fault}: draw from more sequences than there are streams, and all chance from `rng`")
    asked = _rows(Stream(task, 0, "test").take(0, TOLD)) | _rows(Stream(task, 0, "validation").take(0, ASKED))
    stream = Stream(task, 0, "train")
    heard = 0
    for start in range(0, HEARD, stream.block):
        heard += stream.block
        if met := len(asked & _rows(stream.take(start, stream.block))):
            fault = (
                f"of the first {heard:,} training sequences {met} are validation or test sequences too; expected none"
            )
            return Verdict(law, f"{fault}: draw from many more sequences, or keep some for each `split`")
    return Verdict(law)


OF_TOKENS = "its signal is vectors"  # why laws of tokens do not apply

LAWS: dict[str, tuple[Callable[[Task], Verdict], bool]] = {  # by name, and whether it is one of tokens alone
    "shape as told": (shapes, False),
    "same seed, same bits": (reproducible, False),
    "tokens in vocabulary": (vocabulary, True),
    "sources show the answer": (sourced, True),
    "scores": (scored, False),
    "chance and ceiling": (bracketed, False),
    "splits disjoint": (disjoint, False),
}


def verdicts(task: Task) -> list[Verdict]:
    """The verdict of every law on a task. Errors of the task are faults of the law."""
    return [
        Verdict(law, skipped=OF_TOKENS) if tokens and task.signal != "tokens" else _tried(law, check, task)
        for law, (check, tokens) in LAWS.items()
    ]


def same(one: Batch, other: Batch) -> bool:
    """True where two batches are equal bit by bit, what scoring needs included."""
    return bool(
        np.array_equal(one.inputs, other.inputs)
        and np.array_equal(one.targets, other.targets)
        and {*one.aux} == {*other.aux}
        and all(np.array_equal(one.aux[name], other.aux[name], equal_nan=True) for name in one.aux)
    )


def _tried(law: str, check: Callable[[Task], Verdict], task: Task) -> Verdict:
    try:
        return check(task)
    except Exception as error:  # whatever code of one's own does
        why = str(error).partition("\n")[0]
        return Verdict(law, f"it cannot be run: {type(error).__name__}: {why}; see recallmap.synth.task.Task")


def _draw(task: Task, count: int, split: Split, seed: int = 0) -> Batch:
    return task.sample(np.random.default_rng(seed), count, split)


def _shares(task: Task, batch: Batch, share: float) -> NDArray[Any] | None:
    """The same probability for all ids, where the task wants some."""
    return np.full((*batch.targets.shape, task.shape[1]), share) if task.wants_probabilities else None


def _rows(batch: Batch) -> set[bytes]:
    return {row.tobytes() for row in np.ascontiguousarray(batch.inputs)}
