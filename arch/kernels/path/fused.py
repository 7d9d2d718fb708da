"""PaTH by the delta rule's kernels: what a query scores is what it reads where every token writes a channel of its own.

A state S_t with a column for every token's key, as later tokens have reflected it, goes by
S_t = S_{t-1} - beta_t w_t^T (w_t S_{t-1}) + k_t^T e_t,   scores of token t: scale q_t S_t,   e_t one at t and 0 elsewhere
which is the delta rule, that erases by w and writes by k. Columns do not touch each other: they go in blocks, and a block
begins with its first token. Softmax and values are PyTorch's.

All of it is fp32. With S tokens ahead, ceil(S / 128) + ceil(T / 128) calls of those kernels each way.

B batch, T time, S tokens so far, H heads, N columns, K key width, V value width
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.delta.fused import WIDEST
from recallmap.arch.kernels.delta.fused import fused as delta
from recallmap.arch.kernels.op_interface.first_call import together
from recallmap.arch.kernels.path.state import PathState, start

COLUMNS = 128  # a block


@together
def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    w: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    scale: float,
    initial_state: PathState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, PathState | None]:
    """The whole sequence. `chunk` has no meaning here."""
    past = start(initial_state, (len(k), *k.shape[2:]), (len(v), *v.shape[2:]), v, log_decay, torch.float32)
    time, before = v.shape[1], past.keys.shape[1]
    q, k, w, beta = (x.float() for x in (q, k, w, beta))
    tokens = torch.eye(time, dtype=torch.float32, device=v.device)
    # Blocks of columns with their first own token, ahead of which they are 0, what they hold then, and where each token writes.
    earlier = past.keys.split(COLUMNS, 1) if before else ()  # torch's compiler cannot split what is empty
    blocks = [(0, held, tokens.new_zeros(time, held.shape[1])) for held in earlier]
    blocks += [(begin, None, tokens[begin:, begin : begin + COLUMNS]) for begin in range(0, time, COLUMNS)]
    scores, keys = [], []
    for begin, held, columns in blocks:
        q_, k_, w_, beta_ = (x[:, begin:] for x in (q, k, w, beta))
        scores_BTHN, state_BHKN = delta(
            q_,
            k_,
            columns[:, None].expand(*q_.shape[:3], -1),
            log_decay=None,
            beta=None,
            a=w_,
            b=beta_[..., None] * w_,
            sign=None,
            scale=scale,
            initial_state=None if held is None else held.permute(0, 2, 3, 1),
            return_state=return_state,
            chunk=None,
        )
        scores.append(F.pad(scores_BTHN, (0, 0, 0, 0, begin, 0)))
        if state_BHKN is not None:
            keys.append(state_BHKN.permute(0, 3, 1, 2))
    logits_BHTS = torch.cat(scores, -1).transpose(1, 2)
    never = tokens.new_full((time, time), -torch.inf).triu(1)
    logits_BHTS = logits_BHTS + F.pad(never, (before, 0))
    fades = None
    if log_decay is not None and past.fades is not None:
        faded_BHTS, fades = _faded(log_decay, past.fades)
        logits_BHTS = logits_BHTS + faded_BHTS
    values = torch.cat((past.values, v), 1)
    o_BHTV = logits_BHTS.softmax(-1) @ values.float().transpose(1, 2)
    o = o_BHTV.transpose(1, 2).to(v.dtype)
    return o, PathState(torch.cat(keys, 1), values, fades) if return_state else None


def _faded(log_decay: Tensor, fades: Tensor) -> tuple[Tensor, Tensor]:
    """What gates took of each key until each token, sums of fp64 as pairs of fp32: [B, H, T, S + T]; and what they took behind
    the last one, [B, S + T, H]."""
    sums = log_decay.double().cumsum(1)
    until = torch.cat((-fades.double(), sums), 1)
    high, low = _halves(sums)
    high_until, low_until = _halves(until)
    between = (high[:, :, None] - high_until[:, None]) + (low[:, :, None] - low_until[:, None])
    from_here = log_decay.double().flip(1).cumsum(1).flip(1)
    newer = torch.cat((from_here[:, 1:], torch.zeros_like(from_here[:, :1])), 1).float()
    return between.permute(0, 3, 1, 2), torch.cat((fades + from_here[:, :1].float(), newer), 1)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    high = x.float()
    return high, (x - high).detach().float()  # as a derivative the rest is zero


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where this implementation serves."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    width = sizes.get("key_width", 1)
    return f"takes keys up to {WIDEST} wide, got {width}" if width > WIDEST else None
