"""How much shared memory a program may hold on the GPU that kernels are launched or compiled for."""

from __future__ import annotations

from typing import Any

from recallmap.arch.kernels import select

SCARCE = 99 * 2**10  # bytes: NVIDIA's of compute capability 8.6, 8.9 and 12, RTX 3090 to 5090 and A6000 to L40
ROOMY = (80, 87, 90, 100, 103)  # 163 to 227 KiB: A100, Orin, H100, H200, B200 and B300


def stages_in_flight(stages: int) -> int:
    """Stages of loads of a launch whose table was made where shared memory is plenty: two at most where it is scarce."""
    return min(stages, 2) if not select.INTERPRETED and _is_scarce(_target()) else stages


def _target() -> Any:
    from triton.runtime import driver

    return driver.active.get_current_target()


def _is_scarce(target: Any) -> bool:
    return bool(target.backend != "cuda" or target.arch not in ROOMY)
