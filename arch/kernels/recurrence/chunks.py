"""Cut time into chunks, carry states from chunk to chunk, and put the outputs together again.

B batch, T time, H heads, N chunks, C tokens a chunk, D width, K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from recallmap.arch.kernels.recurrence.decay import ChannelDecay, Decay, HeadDecay, NoDecay


def chunk_for(time: int, key_width: int, log_decay: Tensor | None) -> int:
    """The chunk that was fastest on a CPU, forward and backward: up to 64 tokens in one, but not where channels decay."""
    if time <= 64 and (log_decay is None or log_decay.ndim == 3):
        return time
    return 16 if key_width <= 32 or (log_decay is not None and log_decay.ndim == 4) else 32


def split(x: Tensor, chunk: int, dtype: torch.dtype) -> Tensor:
    """[B, T, H] -> [B, H, N, C], [B, T, H, D] -> [B, H, N, C, D]; the last chunk is filled up with zeros."""
    wide = x.ndim == 4
    missing = -x.shape[1] % chunk
    if missing:
        x = pad(x, (0, 0) * (2 if wide else 1) + (0, missing))
    return x.to(dtype).transpose(1, 2).unflatten(2, (-1, chunk)).contiguous()


def merge(o_BHNCV: Tensor, time: int, dtype: torch.dtype) -> Tensor:
    """[B, H, N, C, V] -> [B, T, H, V], without the tokens that filled up the last chunk."""
    return o_BHNCV.flatten(2, 3)[:, :, :time].transpose(1, 2).to(dtype)


def decay_of(log_decay: Tensor | None, chunk: int, dtype: torch.dtype) -> Decay:
    """The decay inside chunks of log decays [B, T, H] or [B, T, H, K]."""
    if log_decay is None:
        return NoDecay()
    gates = split(log_decay, chunk, dtype)
    return HeadDecay(gates) if log_decay.ndim == 3 else ChannelDecay(gates)


def carry(written: Tensor, decay: Decay, initial: Tensor | None, *, last: bool) -> tuple[Tensor | None, Tensor | None]:
    """States [B, H, N, K, V] ahead of every chunk, and [B, H, K, V] behind the last one where `last` asks for it.

    `written` [B, H, N, K, V] is what each chunk adds to the state, faded to the chunk's end. States are None for zero.
    """
    factor = decay.over_chunk()
    count = written.shape[2]
    # unbind, not x[:, :, n]: its derivative is one stack.
    factors = [None] * count if factor is None else factor.unbind(2)
    state, ahead = initial, []
    for faded, new in zip(factors, written.unbind(2), strict=True):
        ahead.append(torch.zeros_like(new) if state is None else state)
        if len(ahead) == count and not last:
            break
        if state is not None and faded is not None:
            state = state * faded
        state = new if state is None else state + new
    final = state if last else None
    if count == 1:
        return (None if initial is None else initial[:, :, None]), final
    return torch.stack(ahead, 2), final


def signs(sign: Tensor | None) -> Tensor | None:
    """The product of all signs so far, [B, T, H] of +1 and -1 in and out.

    A recurrence whose decay multiplier is sign * exp(log_decay) is, but for this factor on the state, the one with
    exp(log_decay): its writes and its reads take the factor. No gradient flows into a sign.
    """
    if sign is None:
        return None
    flips = (sign.detach() < 0).to(sign.dtype).cumsum(1)
    return 1 - 2 * flips.remainder(2)
