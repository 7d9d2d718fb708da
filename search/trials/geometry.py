"""Geometry of a task: what of it decides the shapes of a trial's tensors, and how its setting is named."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

from recallmap.synth.task import Task


def setting(task: Task) -> str:
    """The task's dials that differ from their defaults, "length=256 copies=16"."""
    dials = [(f.name, getattr(task, f.name), f.default) for f in fields(task) if f.name not in ("kind", "protocol")]
    return " ".join(f"{name}={value}" for name, value, default in dials if value != default)


def geometry(task: Task) -> Hashable:
    """Tasks that agree in it give tensors of equal shapes, scored alike."""
    return (task.shape, task.signal, task.readout, task.wants_probabilities, task.protocol == "repaired")
