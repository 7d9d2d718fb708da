"""Log-linear attention by matrix products over chunks of C = 2^c tokens that begin where their number of tokens divides it.

Token t has token s of its chunk at the level |t xor s|, the number of digits, and chunk n has chunk m at c + |n xor m|: in a
chunk a mask of levels, over chunks the same counter of buckets, of the chunks' states. What lies before the first such
chunk, or behind the last whole one, goes token by token.

B batch, T time, H heads, L levels, N chunks, C tokens a chunk, K key width, V value width
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from recallmap.arch.kernels.log_linear.recurrent import step
from recallmap.arch.kernels.log_linear.state import LogLinearState, counted, start
from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.chunks import decay_of, merge, split
from recallmap.arch.kernels.recurrence.token_loop import loop

TOKENS = 16  # a chunk


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    levels: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
    initial_state: LogLinearState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, LogLinearState | None]:
    """The whole sequence. `chunk` is a number of tokens, of which the power of two below it is taken."""
    time, most = v.shape[1], levels.shape[-1] - 2
    chunk = 1 << min((chunk or TOKENS).bit_length() - 1, most)
    shape = (v.shape[0], v.shape[2], levels.shape[-1] - 1, q.shape[-1], v.shape[-1])
    state = start(initial_state, shape, q, k, v, levels, log_decay, beta)
    before = min(time, -state.time % chunk)
    within = (time - before) // chunk * chunk
    given = {"q": q, "k": k, "v": v, "levels": levels, "log_decay": log_decay, "beta": beta}

    outputs = []
    for many, whole in ((before, False), (within, True), (time - before - within, False)):
        if many:
            now = {name: None if x is None else x[:, :many] for name, x in given.items()}
            given = {name: None if x is None else x[:, many:] for name, x in given.items()}
            o, state = _chunks(state, now, chunk, scale) if whole else loop(step, state, now, scale=scale)
            outputs.append(o)
    return torch.cat(outputs, 1), state if return_state else None


def _chunks(
    state: LogLinearState, given: Mapping[str, Tensor | None], chunk: int, scale: float
) -> tuple[Tensor, LogLinearState]:
    """Whole chunks, the first of which begins where it may."""
    q, k, v, levels = (x for name in ("q", "k", "v", "levels") if (x := given[name]) is not None)
    log_decay, beta = given["log_decay"], given["beta"]
    dtype = working_dtype(q, k, v, levels, log_decay, beta, state.buckets)
    time = v.shape[1]
    decay = decay_of(log_decay, chunk, dtype)
    values = v.to(dtype) if beta is None else v.to(dtype) * beta.to(dtype)[..., None]
    q, k, v_, levels = (split(x, chunk, dtype) for x in (q, k, values, levels))

    first = chunk.bit_length() - 1  # of the buckets, the one that a chunk fills
    top = levels.shape[-1] - 1
    digits = [[min((t ^ s).bit_length(), top) for s in range(chunk)] for t in range(chunk)]
    at_CC = torch.tensor(digits, device=v.device)
    kept_BHNCC = levels.gather(-1, at_CC.expand(*levels.shape[:-1], chunk))
    o = (decay.scores(q, k) * kept_BHNCC) @ v_

    buckets, ahead = state.buckets.to(dtype), []
    written, over = decay.to_end(k).mT @ v_, decay.over_chunk()
    for number, new in enumerate(written.unbind(2)):
        ahead.append(buckets[:, :, first:])
        faded = buckets if over is None else buckets * over[:, :, number, None]
        buckets = counted(faded, new, state.time // chunk + number, first)
    ahead_BHNLKV = torch.stack(ahead, 2)
    read = decay.to_token(q)[:, :, :, None] @ ahead_BHNLKV
    o = o + (levels[..., first + 1 :].mT[..., None] * read).sum(3)
    return merge(o * scale, time, v.dtype), LogLinearState(buckets, state.time + time)
