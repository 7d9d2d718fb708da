"""The share of time in which GPUs run kernels, as NVIDIA's management library counts it, sampled while something runs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

EVERY = 0.25  # seconds between two samples

LIBRARY = "libnvidia-ml.so.1"  # it comes with the driver of every GPU


class BusyShare:
    """The mean of samples, each a share of time from 0 to 1; None before the first, and where nothing can be sampled."""

    def __init__(self) -> None:
        self.samples = 0
        self.total = 0.0

    def add(self, share: float) -> None:
        """Take a sample in."""
        self.samples, self.total = self.samples + 1, self.total + share

    @property
    def mean(self) -> float | None:
        return self.total / self.samples if self.samples else None


@contextmanager
def sampled(read: Callable[[], float] | None, every: float = EVERY) -> Iterator[BusyShare]:
    """Sample `read` every few moments while this context lasts. None: there is nothing to sample."""
    busy, over = BusyShare(), threading.Event()

    def sample() -> None:
        while read is not None and not over.wait(every):
            try:
                busy.add(read())
            except OSError:  # the GPU is gone
                return

    thread = threading.Thread(target=sample, name="GPU utilisation", daemon=True)
    if read is not None:
        thread.start()
    try:
        yield busy
    finally:
        over.set()
        if read is not None:
            thread.join()


def reader(devices: Sequence[torch.device]) -> Callable[[], float] | None:
    """A function that reads the mean share of these GPUs in the last moments; None without a GPU or without NVIDIA's library.
    Other processes on a GPU count, too."""
    if not devices or any(device.type != "cuda" for device in devices):
        return None
    try:
        library = ctypes.CDLL(LIBRARY)
        _checked(library.nvmlInit_v2())
        handles = [_handle(library, device) for device in devices]
        return lambda: sum(_share(library, handle) for handle in handles) / len(handles)
    except (OSError, AttributeError):
        return None


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # percent


def _handle(library: ctypes.CDLL, device: torch.device) -> ctypes.c_void_p:
    """NVIDIA's handle of a GPU. It has its own numbers, whatever CUDA_VISIBLE_DEVICES says, so that we go by the identity."""
    handle = ctypes.c_void_p()
    name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    _checked(library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)))
    return handle


def _share(library: ctypes.CDLL, handle: ctypes.c_void_p) -> float:
    found = _Utilisation()
    _checked(library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(found)))
    return int(found.gpu) / 100


def _checked(code: int) -> None:
    """Raise OSError where the library reports an error."""
    if code:
        raise OSError(f"{LIBRARY} reports error {code}")
