"""The setting of a task by name, and the shape of a trial: what trials must have in common to train as one cohort."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields

from recallmap.arch.backbone import BackboneSpec
from recallmap.search.documents.outside import CODE
from recallmap.synth.task import Task


def setting(task: Task) -> str:
    """The task's options that differ from their defaults, "length=256 copies=16", and what defined a task from outside."""
    options = [(f.name, getattr(task, f.name), f.default) for f in fields(task) if f.name not in ("kind", "protocol")]
    return " ".join(f"{name}={value}" for name, value, default in options if value != default or name == CODE)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What trials of a cohort have in common. They may differ in the task and its vocabulary, which is padded, in numbers of
    steps, sequences and evaluations, in the schedule and in all options of the optimizer.

    length      positions of a sequence
    answers     where the answers to tokens are read out ("each" or "last"), or vectors with so many channels
    sequences   whether training reads the same ones every epoch
    mix         length of each part of the training mix, and its batches in an epoch
    """

    architecture: BackboneSpec
    length: int
    answers: str
    batch: int
    dtype: str
    implementation: str
    sequences: str
    mix: tuple[tuple[int, int], ...]


def answers(task: Task) -> str:
    """The way in which a task's answers are given."""
    return f"{task.shape[1]} channels" if task.signal == "vectors" else task.readout


NAMED = 4  # words of a list that are said


def differences(shapes: Sequence[Hashable]) -> list[str]:
    """What these shapes differ in, with the values: "length 128/256"."""
    ours = [shape for shape in shapes if isinstance(shape, Shape)]
    found = ["kind of trial"] if 0 < len(ours) < len(shapes) else []
    if len(ours) < len(shapes) - 1 or (not ours and len(shapes) > 1):
        found.append("learners or phases")
    for field in fields(Shape):
        values = dict.fromkeys(getattr(shape, field.name) for shape in ours)
        if len(values) > 1:
            ordered = sorted(values) if all(isinstance(value, int) for value in values) else values
            said = dict.fromkeys(value.name if isinstance(value, BackboneSpec) else str(value) for value in ordered)
            found.append(f"{field.name} {few(list(said), '/')}")
    return found


def few(words: Sequence[str], between: str = ", ") -> str:
    """The first of these words, and how many there are besides."""
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    return f"{between.join(words[:NAMED])}{more}"
