"""Devices that train: their names, their memory, how a cohort begins afresh on one."""

from __future__ import annotations

import gc

import torch

from recallmap.search.training.cuda_graph import forget_compiled


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def begin_afresh(device: torch.device) -> None:
    """Give back the memory of earlier cohorts, whose parts hold each other; from now on `peak_bytes` tells of what comes."""
    if device.type == "cuda":
        forget_compiled()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """The most device memory that was held since `begin_afresh`, where the device tells."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
