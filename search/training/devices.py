"""Devices that train: the default one, and their memory."""

from __future__ import annotations

import gc

import torch

from recallmap.search.training.cuda_graph import PREPARING, forget_compiled
from recallmap.search.training.device_time import SHARED

# Share of a device's memory that is held, from which cohorts that share it give back what they do not use.
CROWDED = 0.5


class DeviceLost(Exception):
    """A device that computes nothing any more in this process, for any cohort."""


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def begin_afresh(device: torch.device) -> None:
    """Free the memory of earlier cohorts, whose parts hold each other, and start `peak_bytes` anew."""
    if device.type != "cuda":
        return
    with PREPARING:
        forget_compiled()
        gc.collect()
        whole = torch.cuda.get_device_properties(device).total_memory
        if not SHARED.get() or torch.cuda.memory_reserved(device) > CROWDED * whole:
            torch.cuda.empty_cache()  # which waits for the whole device
        torch.cuda.reset_peak_memory_stats(device)


def check_alive(device: torch.device) -> None:
    """Raise DeviceLost where a device does nothing more, as after a kernel that reads memory that is not its own."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise DeviceLost(f"{device} is lost to this process: {str(error).strip().partition(chr(10))[0]}") from error


def peak_bytes(device: torch.device) -> int | None:
    """Peak device memory since `begin_afresh`; None where the device does not report it, or not by cohort."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" and not SHARED.get() else None
