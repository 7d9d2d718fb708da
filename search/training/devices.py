"""Devices that train: the default one, and their memory."""

from __future__ import annotations

import gc

import torch

from recallmap.search.training.cuda_graph import forget_compiled


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def begin_afresh(device: torch.device) -> None:
    """Free the memory of earlier cohorts, whose parts hold each other, and start `peak_bytes` anew."""
    if device.type == "cuda":
        forget_compiled()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Peak device memory since `begin_afresh`; None where the device does not report it."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
