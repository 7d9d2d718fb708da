"""PaTH by matrix products over chunks of tokens: keys so far are carried from chunk to chunk.

Of the reflections of a chunk, with G = W W^T and u its part above the diagonal, Y = diag(beta) (I + u diag(beta))^-1:
a row x behind all of them is x - (x W^T) Y W. Of those between tokens j and t it is the block of Y between them, so that
    scores of keys in the chunk     tril(Q K^T) - tril(Q W^T) Y^T tril_-1(W K^T)
    queries for the keys before     Q - tril(Q W^T) Y^T W
    keys at the chunk's end         K - tril_-1(W K^T)^T Y W

B batch, T time, S tokens so far, H heads, C tokens a chunk, K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.path.state import PathState, start
from recallmap.arch.kernels.recurrence.triangular_solve import solve_unit_lower

TOKENS = 32  # a chunk


def chunked(
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
    """The whole sequence, `chunk` tokens at a time."""
    dtype = working_dtype(q, k, v, w, beta, log_decay, None if initial_state is None else initial_state.keys)
    past = start(initial_state, (k.shape[0], *k.shape[2:]), (v.shape[0], *v.shape[2:]), v, log_decay, dtype)
    keys_BHSK, values_BHSV = past.keys.transpose(1, 2), past.values.to(dtype).transpose(1, 2)
    fades_BHS = None if past.fades is None else past.fades.mT
    outputs = []
    sequences = [None if x is None else x.to(dtype).transpose(1, 2) for x in (q, k, v, w, beta, log_decay)]
    size = chunk or TOKENS
    for begin in range(0, v.shape[1], size):
        q_, k_, v_, w_, beta_, g = (None if x is None else x[:, :, begin : begin + size] for x in sequences)
        assert q_ is not None and k_ is not None and v_ is not None and w_ is not None and beta_ is not None  # noqa: PT018
        ones = torch.ones(q_.shape[2], q_.shape[2], dtype=dtype, device=v.device)
        system = (w_ @ w_.mT) * beta_[..., None, :]  # of which the solvers read what lies above the diagonal
        seen, behind = (q_ @ w_.mT) * ones.tril(), (w_ @ k_.mT) * ones.tril(-1)
        # The rows of `turned` are (diag(beta) system^-1) W.
        turned = beta_[..., None] * torch.linalg.solve_triangular(system, w_, upper=True, unitriangular=True)
        reflected = solve_unit_lower(system.mT, beta_[..., None] * behind)
        inside = scale * (q_ @ k_.mT - seen @ reflected)
        carried = seen @ solve_unit_lower(system.mT, beta_[..., None] * w_)
        scores = torch.cat((scale * (q_ - carried) @ keys_BHSK.mT, inside), -1)
        values_BHSV = torch.cat((values_BHSV, v_), 2)
        if g is not None and fades_BHS is not None:
            sums = g.double().cumsum(-1)
            between = torch.cat((sums[..., None] + fades_BHS[..., None, :], sums[..., None] - sums[..., None, :]), -1)
            scores = scores + between.to(dtype)
            from_here = g.double().flip(-1).cumsum(-1).flip(-1)
            newer = torch.cat((from_here[..., 1:], torch.zeros_like(from_here[..., :1])), -1)
            fades_BHS = torch.cat((fades_BHS + from_here[..., :1].to(dtype), newer.to(dtype)), -1)
        never = torch.full_like(ones, -torch.inf).triu(1)
        weights = (scores + torch.cat((ones.new_zeros(len(ones), keys_BHSK.shape[2]), never), -1)).softmax(-1)
        outputs.append(weights @ values_BHSV)
        older = keys_BHSK - (keys_BHSK @ w_.mT) @ turned
        keys_BHSK = torch.cat((older, k_ - behind.mT @ turned), 2)
    o = torch.cat(outputs, 2).transpose(1, 2).to(v.dtype)
    if not return_state:
        return o, None
    values = torch.cat((past.values, v), 1)
    return o, PathState(keys_BHSK.transpose(1, 2), values, None if fades_BHS is None else fades_BHS.mT)
