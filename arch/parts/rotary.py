"""Rotary positions, Llama's halves: channel i turns with channel i + K/2 (Su et al. 2021); and turns of neighbouring channels.

B batch, T time, H heads, K key width
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recallmap.arch.kernels.rotary import rotary
from recallmap.arch.kernels.select import fuses
from recallmap.arch.parts.precision import widen


def rotate(x_BTHK: Tensor, position_T: Tensor, base: float = 10_000.0) -> Tensor:
    """x with its channel pairs turned by position * base^(-2i/K)."""
    half = x_BTHK.shape[-1] // 2
    if fuses(x_BTHK):
        return rotary(x_BTHK, angle=angles(position_T.float(), half, base)[None, :, None], learned=False)[0]
    wide = widen(x_BTHK)
    made = turns if torch.compiler.is_compiling() else _turns
    cos_T1K, sin_T1K = made(position_T.to(wide.dtype), half, base).unbind(0)
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat([first * cos_T1K - second * sin_T1K, second * cos_T1K + first * sin_T1K], dim=-1)
    return turned.to(x_BTHK.dtype)


def angles(position_T: Tensor, half: int, base: float) -> Tensor:
    """Angles [T, K/2] of positions."""
    power_K = torch.arange(half, device=position_T.device, dtype=position_T.dtype) / half
    return position_T[:, None] * base**-power_K


@torch.library.custom_op("recallmap::turns", mutates_args=())
def turns(position_T: Tensor, half: int, base: float) -> Tensor:
    """`_turns` for the compiler. If it could look inside it would compute them anew for every sequence and head, which is more
    work than the rest of a rotation. Elsewhere an op of Python's is slow to call."""
    return _turns(position_T, half, base)


@turns.register_fake
def _form_of_turns(position_T: Tensor, half: int, base: float) -> Tensor:
    return position_T.new_empty(2, position_T.shape[0], 1, half)


@turns.register_vmap
def _turns_of_members(
    info: Any, in_dims: Sequence[int | None], position: Tensor, half: int, base: float
) -> tuple[Tensor, int]:
    members = [turns(one, half, base) for one in position.movedim(in_dims[0] or 0, 0)]
    return torch.stack(members), 0


def _turns(position_T: Tensor, half: int, base: float) -> Tensor:
    """Cosine and sine [2, T, 1, half] of every position's angles."""
    angle_T1K = angles(position_T, half, base)[:, None]
    return torch.stack([angle_T1K.cos(), angle_T1K.sin()])


def turn(x: Tensor, angle: Tensor) -> Tensor:
    """x [..., K] with its channels 2i and 2i + 1 turned by angle [..., A] for i < A, the others as they are; the negative angle
    turns them back."""
    pairs = angle.shape[-1]
    first, second = widen(x[..., : 2 * pairs]).unflatten(-1, (pairs, 2)).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)
    return torch.cat((turned.to(x.dtype), x[..., 2 * pairs :].expand(*turned.shape[:-1], -1)), -1)
