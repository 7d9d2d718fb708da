"""N models of one architecture as one function: every parameter has a leading member axis.

N members, P parameters of one member, B batch, T time, Q positions read out, V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from recallmap.arch.backbone import Backbone
from recallmap.search.training.padding import Layout


class Stacked:
    """N models of one architecture as one function of one matrix: row n of a matrix [N, P] holds member n's parameters, as
    `layout` says. `base` lends its form, not its parameters."""

    def __init__(self, base: Backbone, vocabs: Sequence[int], device: torch.device) -> None:
        self.base = base
        self.layout = Layout(base, vocabs, device)

    def logits(self, flat_NP: Tensor, inputs_NBT: Tensor, at_NBQ: Tensor | None) -> Tensor:
        """[N, B, Q, V]: every member's answers to its own inputs; minus infinity at token ids that it does not have."""
        logits_NBQV = self.unmasked(flat_NP, inputs_NBT, at_NBQ)
        beyond = self.layout.beyond
        return logits_NBQV if beyond is None else logits_NBQV.masked_fill(beyond[: len(flat_NP)], -math.inf)

    def unmasked(self, flat_NP: Tensor, inputs_NBT: Tensor, at_NBQ: Tensor | None) -> Tensor:
        """The same, of some finite value at token ids that a member does not have."""
        base = self.base
        if len(flat_NP) == 1:  # the same numbers without the cost of vmap
            at_BQ = None if at_NBQ is None else at_NBQ[0]
            return functional_call(base, self.layout.of_one(flat_NP[0]), (inputs_NBT[0],), {"at": at_BQ})[None]

        def member(own: dict[str, Tensor], inputs_BT: Tensor, at_BQ: Tensor | None) -> Tensor:
            return functional_call(base, own, (inputs_BT,), {"at": at_BQ})

        return vmap(member, in_dims=(0, 0, None if at_NBQ is None else 0))(
            self.layout.parameters(flat_NP), inputs_NBT, at_NBQ
        )
