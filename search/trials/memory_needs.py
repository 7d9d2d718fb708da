"""The memory that a trial needs, by arithmetic, against that of a device, before anything is built or drawn."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

MOST = 2**44  # bytes, 16 TiB: more than any machine has

Needs = Mapping[str, float]  # bytes by the path of the option that needs them; those of the model by MODEL

MODEL = "arch"


def check(needs: Needs) -> None:
    """Raise ValueError where the needs add up to more than any machine has; the message names the largest."""
    total, path = sum(needs.values()), largest(needs)
    if total > MOST:
        raise ValueError(
            f"{path} needs {said(needs[path])} of memory{_of_what(path)}, expected at most {said(MOST)} for a trial; "
            "lower it, or the lengths and widths that it is multiplied by"
        )


def check_room(needs: Needs, members: int, device: torch.device) -> None:
    """Raise MemoryError where so many trials surely exceed a device."""
    if fitting(needs, device) < members:
        path = largest(needs)
        raise MemoryError(
            f"a trial takes {said(sum(needs.values()))} of memory, {said(needs[path])} for {path}{_of_what(path)}, and "
            f"{device.type} has {said(held_by(device))}; lower {path}, or train where there is more"
        )


def fitting(needs: Needs, device: torch.device) -> int:
    """The most such trials that a device can train together: a model each, shared sequences, and the activations of one
    step. Half of what is not the model is temporary. 0: not even one."""
    model = max(needs[MODEL], 1.0)
    left = held_by(device) - (sum(needs.values()) - needs[MODEL]) / 2
    return int(min(max(left, 0.0), 2.0**62) // model)


def largest_of(every: Sequence[Needs]) -> Needs:
    """The largest of several trials' needs, path by path."""
    paths = dict.fromkeys(path for needs in every for path in needs)
    return {path: max(needs.get(path, 0.0) for needs in every) for path in paths}


def largest(needs: Needs) -> str:
    """The path of the largest need."""
    return max(needs, key=lambda path: needs[path])


def held_by(device: torch.device) -> float:
    """Bytes of memory of a device; for a CPU those of the machine, or of the container that this runs in."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    if device.type != "cpu" or not hasattr(os, "sysconf"):
        return math.inf
    whole = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")
    bound = limit.read_text(encoding="utf-8").strip() if limit.is_file() else ""
    return min(whole, float(bound)) if bound.isdecimal() else whole


def said(count: float) -> str:
    """`1.5 GB`, in powers of 1,000."""
    units = ["bytes", "KB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        del units[0]
    return f"{count:.3g} {units[0]}" if count < 100 and count != int(count) else f"{count:,.0f} {units[0]}"


def _of_what(path: str) -> str:
    return " (weights, gradients and moments)" if path == MODEL else ""
