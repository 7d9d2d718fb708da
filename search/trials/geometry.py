"""Geometry of a task: the options that decide tensor shapes, and the name of its setting."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

from recallmap.search.documents.outside import CODE
from recallmap.synth.task import Task


def setting(task: Task) -> str:
    """The task's options that differ from their defaults, "length=256 copies=16", and what defined a task from outside."""
    options = [(f.name, getattr(task, f.name), f.default) for f in fields(task) if f.name not in ("kind", "protocol")]
    return " ".join(f"{name}={value}" for name, value, default in options if value != default or name == CODE)


def geometry(task: Task) -> Hashable:
    """A value that is equal for tasks whose tensors have equal shapes and are scored alike."""
    return (task.shape, task.signal, task.readout, task.wants_probabilities, task.protocol == "repaired")
