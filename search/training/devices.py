"""Devices that train: the default one, and their memory."""

from __future__ import annotations

import gc

import torch

from recallmap.search.training.cuda_graph import forget_compiled


class DeviceLost(Exception):
    """A device that computes nothing any more in this process, for any cohort."""


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def begin_afresh(device: torch.device) -> None:
    """Free the memory of earlier cohorts, whose parts hold each other, and start `peak_bytes` anew."""
    if device.type == "cuda":
        forget_compiled()
        gc.collect()
        torch.cuda.empty_cache()
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
    """Peak device memory since `begin_afresh`; None where the device does not report it."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
