"""Test-time learning by gradient descent in one launch forward and one backward: a program walks the chunks of one head.

With W, P a memory and its momentum at a chunk's start, x_i inputs of a matrix, d_i the signals behind it (test_time.network),
    h W_t = kept_t h W - moved_t h P - sum_i write_{t,i} (h . x_i) d_i
    W' = kept W - moved P - sum_i write_i x_i^T d_i,    P' = slowed P + sum_i push_i x_i^T d_i       (of the chunk's last token)
Weights of test_time.influence come from outside, a matrix a chunk, and take their derivatives back there. The last matrix is
taken a block of rows at a time, the one before it by the same hidden units: a linear memory is its own last matrix.
A deep memory of many features holds nothing as wide as those: it walks them in blocks, once for what goes through its first
matrix and once for what comes back, where all hidden units are taken at once. Backward starts every chunk from the memory
that forward left there, and computes the rest again.

B batch, T time, H heads, c window, D width of q and k, V value width
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.memory.fused.launch import Inputs, memory_op
from recallmap.arch.kernels.memory.fused.plan import MOST_SEEN, Cut, cut_for, free_to_cut
from recallmap.arch.kernels.memory.fused.token_weights import TokenWeights, WeightInputs, token_weights
from recallmap.arch.kernels.memory.sequence import MemoryInputs, featured
from recallmap.arch.kernels.memory.state import MemoryState
from recallmap.arch.kernels.op_interface.first_call import together
from recallmap.arch.kernels.test_time.learning_rule import DotLoss

WIDEST = 128  # of keys and values
WIDEST_DEEP = 64
WIDEST_FEATURES = 1024  # of a deep memory


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    if max(sizes.get("key_width", 1), sizes.get("value_width", 1)) > WIDEST:
        return f"takes keys and values up to {WIDEST} wide"
    if sizes.get("materialised"):
        return "needs no weights of single tokens: it has neither Newton-Schulz nor retentions but alpha"
    if sizes.get("bent_loss"):
        return "descends the l2 and the dot loss alone"
    if sizes.get("gated") or sizes.get("matrices", 1) > 2:
        return "takes memories of one or two matrices, without gated hidden units"
    if sizes.get("matrices") == 2 and max(sizes["key_width"], sizes["value_width"]) > WIDEST_DEEP:
        return (
            f"takes deep memories up to {WIDEST_DEEP} wide: wider ones leave the registers, and take minutes to compile"
        )
    if sizes.get("matrices") == 2 and sizes["features"] > WIDEST_FEATURES:
        return f"takes deep memories of at most {WIDEST_FEATURES} features"
    if sizes.get("seen", 1) > MOST_SEEN:
        return f"takes chunks that see at most {MOST_SEEN} tokens, their window's included"
    return None


@together
def fused(x: MemoryInputs) -> tuple[Tensor, MemoryState | None]:
    """The whole sequence. A beginning inside a chunk is left to `chunked`, up to the next chunk."""
    o, state = [], x.initial_state
    for part, begins in _parts(x):
        part = part._replace(initial_state=state)
        here, state = _whole_chunks(part) if begins else select.load("memory", "chunked")(part)
        o.append(here)
    return o[0] if len(o) == 1 else torch.cat(o, 1), state if x.return_state else None


def _parts(x: MemoryInputs) -> list[tuple[MemoryInputs, bool]]:
    """The sequence in up to three parts, and whether each begins with a chunk. The last, where a state is asked for, is of a
    chunk that does not end: a state tells what its chunk began with."""
    time, position = x.v.shape[1], 0 if x.initial_state is None else x.initial_state.position
    chunk, framed = _cut(x).chunk, not free_to_cut(x.rule, len(x.weights), x.norm)
    first = min(-position % chunk, time) if framed else 0
    last = (time - first) % chunk if framed and x.return_state else 0
    parts = []
    for start, end in ((0, first), (first, time - last), (time - last, time)):
        if start < end:
            part = x.between(start, end)
            parts.append((part if end > first else part._replace(return_state=True), end > first))
    return parts


def _cut(x: MemoryInputs) -> Cut:
    return cut_for(x.rule, len(x.weights), x.norm)


def _whole_chunks(x: MemoryInputs) -> tuple[Tensor, MemoryState | None]:
    """Tokens that begin with a chunk, of which the last may be shorter."""
    rule, state, cut, time, matrices = x.rule, x.initial_state, _cut(x), x.q.shape[1], len(x.weights)
    position, momentum = 0 if state is None else state.position, rule.momentum != "none"
    keys = _behind(None if state is None else state.keys, x.k, cut.past)
    values = _behind(None if state is None else state.values, x.v, cut.past)
    if state is not None:
        parts = [part.float() for part in (*state.weights, *(state.momentum or ()))]
    else:
        first = [w.float()[None] for w in x.weights]
        parts = [*first, *map(torch.zeros_like, first)] if momentum else first
    weights = _token_weights(x, cut, position)
    given = Inputs(
        q=featured(x.q, x.features),
        k=featured(keys, x.features),
        v=values,
        q_skip=x.q if rule.residual else None,
        k_skip=keys if rule.residual and rule.loss.of_error else None,  # |x + y - v| is |y - (v - x)|
        memory=torch.cat([part.flatten(2) for part in parts], -1),
        norm_weight=None if x.norm is None else x.norm.weight[None],
        norm_bias=None if x.norm is None else x.norm.bias[None],
        kept=weights.kept,
        write=weights.write,
        moved=weights.moved if momentum else None,
        push=weights.push if momentum else None,
        slowed=weights.slowed if momentum else None,
        hidden=x.weights[0].shape[-1] if matrices > 1 else 0,
        bias=rule.bias,
        dot=isinstance(rule.loss, DotLoss),
        chunk=cut.chunk,
    )
    o, final, *_ = memory_op(*given)
    if not x.return_state:
        return o.to(x.v.dtype), None
    sizes = [part[0, 0].numel() for part in parts]
    shaped = [now.unflatten(-1, p.shape[2:]) for now, p in zip(final.split(sizes, -1), parts, strict=True)]
    learned = tuple(shaped[:matrices])
    began = tuple(p.expand(x.v.shape[0], -1, -1, -1) for p in parts[:matrices])
    frozen = rule.chunk > 1 and not rule.independent(matrices, normed=x.norm is not None)
    return o.to(x.v.dtype), MemoryState(
        weights=learned,
        momentum=tuple(shaped[matrices:]) if momentum else None,
        reference=None if not frozen else began if time % cut.chunk else learned,
        position=position + time,
        keys=keys[:, time:].float().transpose(1, 2),
        values=values[:, time:].float().transpose(1, 2),
        delta=None,
    )


def _behind(before_BHPD: Tensor | None, x_BTHD: Tensor, past: int) -> Tensor:
    """x with the `past` tokens ahead of it."""
    if not past:
        return x_BTHD
    if before_BHPD is None:
        return F.pad(x_BTHD, (0, 0, 0, 0, past, 0))
    return torch.cat([before_BHPD.transpose(1, 2), x_BTHD], 1)


def _token_weights(x: MemoryInputs, cut: Cut, position: int) -> TokenWeights:
    rate = x.q.new_ones(x.q.shape[:3], dtype=torch.float32) if x.eta is None else x.eta
    ahead = min(position, cut.past)
    how = (*cut, ahead, x.rule.cross_chunk, x.rule.momentum == "inside")
    return TokenWeights(*token_weights(*WeightInputs(rate, x.alpha, x.theta, x.gamma, *how)))
