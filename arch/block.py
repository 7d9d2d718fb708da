"""One mixer and one channel mixer with their norms and residuals.

x <- x + mixer(norm(x)),  x <- x + mlp(norm(x))

B batch, T time, D model width
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from recallmap.arch.mixers import Mixer
from recallmap.arch.mixers.mixer import Lent, State, StateSize
from recallmap.arch.mlp import Mlp
from recallmap.arch.parts.norm import Norm, build_norm, count_norm, norm_of_sum


@dataclass(frozen=True, kw_only=True)
class Block:
    """One residual block. `mlp` None: only the mixer."""

    kind: Literal["block"] = "block"
    mixer: Mixer
    mlp: Mlp | None = None

    def check(self, width: int) -> None:
        self.mixer.check(width)

    def build(self, width: int, norm: Norm) -> nn.Module:
        return BlockModule(self, width, norm)

    def parameters(self, width: int, norm: Norm) -> int:
        mlp = count_norm(norm, width) + self.mlp.parameters(width) if self.mlp else 0
        return count_norm(norm, width) + self.mixer.parameters(width) + mlp

    def state_size(self, width: int, length: int) -> StateSize:
        return self.mixer.state_size(width, length)

    def kept_floats(self, width: int, length: int) -> float:
        return self.mixer.kept_floats(width, length)

    def flops(self, width: int, length: int) -> float:
        return self.mixer.flops(width, length) + (self.mlp.flops(width) if self.mlp else 0.0)


class BlockModule(nn.Module):
    def __init__(self, spec: Block, width: int, norm: Norm) -> None:
        super().__init__()
        self.mixer_norm = build_norm(norm, width)
        self.mixer = spec.mixer.build(width)
        self.mlp_norm = build_norm(norm, width) if spec.mlp else None
        self.mlp = spec.mlp.build(width) if spec.mlp else None

    def forward(
        self, x_BTD: Tensor, state: State = None, *, return_state: bool = False, lent: Lent | None = None
    ) -> tuple[Tensor, State]:
        x_BTD, added_BTD, state = self.unsummed(x_BTD, None, state, return_state=return_state, lent=lent)
        return x_BTD + added_BTD, state

    def unsummed(
        self,
        x_BTD: Tensor,
        added_BTD: Tensor | None,
        state: State,
        *,
        normed_BTD: Tensor | None = None,
        return_state: bool,
        lent: Lent | None,
    ) -> tuple[Tensor, Tensor, State]:
        """The block of x + added. Its last sum is left to whoever takes the norm of it, in one pass: x, what is to be added to
        it, and the state. `normed`: the first norm of x, where it is known and nothing is added."""
        if normed_BTD is None:
            x_BTD, normed_BTD = norm_of_sum(self.mixer_norm, x_BTD, added_BTD)
        added_BTD, state = self.mixer(normed_BTD, state, return_state=return_state, lent=lent)
        if self.mlp is not None and self.mlp_norm is not None:
            x_BTD, normed_BTD = norm_of_sum(self.mlp_norm, x_BTD, added_BTD)
            added_BTD = self.mlp(normed_BTD)
        return x_BTD, added_BTD, state


class Chain(nn.ModuleList):
    """Blocks in order. What a mixer lends, those of later blocks have within the same call; it is no state."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__(blocks)

    def forward(
        self, x_BTD: Tensor, state: State = None, *, return_state: bool = False
    ) -> tuple[Tensor, tuple[State, ...] | None]:
        x_BTD, added_BTD, states = self.unsummed(x_BTD, state, return_state=return_state)
        return x_BTD if added_BTD is None else x_BTD + added_BTD, states

    def unsummed(
        self,
        x_BTD: Tensor,
        state: State = None,
        *,
        normed_BTD: Tensor | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, Tensor | None, tuple[State, ...] | None]:
        """The same with the last sum left open: x, what is to be added to it, None for nothing, and the states. `normed`: what
        the first block's first norm makes of x, where it is known."""
        added_BTD: Tensor | None = None
        lent: Lent = {}
        states: list[State] = []
        for index, block in enumerate(self):
            own = None if state is None else state[index]
            if isinstance(block, BlockModule):
                x_BTD, added_BTD, carried = block.unsummed(
                    x_BTD, added_BTD, own, normed_BTD=normed_BTD, return_state=return_state, lent=lent
                )
            else:  # from outside
                x_BTD = x_BTD if added_BTD is None else x_BTD + added_BTD
                x_BTD, carried = block(x_BTD, own, return_state=return_state, lent=lent)
                added_BTD = None
            normed_BTD = None
            states.append(carried)
        return x_BTD, added_BTD, tuple(states) if return_state else None
