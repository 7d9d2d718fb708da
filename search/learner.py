"""The online learner of the learnability mappings: one gradient step per position, on that position's loss.

loss_j = |M(i_j) - o_j|^2 / |o_j|^2, taken before the step on it        (ATLAS, section on learnability, mended)

M is an MLP. Members (tasks x seeds) are one stack of weights: every optimizer offered works element by element, so
a member learns exactly what it would learn alone.

Legend: M members, T positions, d width
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from synth.tasks.learnability import Learnability, bins

Curves = NDArray[np.float32]  # [tasks, seeds, T]
Member = tuple[Learnability, int]  # a task and a seed

Optimizer = Literal["adamw", "adam", "rmsprop", "sgd"]

PAPER = tuple(
    Learnability(mapping=mapping, width=256, length=4096)
    for mapping in ("low_rank", "mlp", "attention_mlp", "attention_inputs", "window_mlp")
)
MOST = 1000  # hidden layers, and units in them over the width
PANELS = ((2, 1), (3, 1), (2, 4), (3, 4))  # hidden layers, expansion
REPORTS = 64  # from within a run over all positions


@dataclass(frozen=True, kw_only=True)
class Learner:
    """An MLP d -> [expand d -> gelu] x hidden -> d with biases, and the optimizer that trains it online."""

    hidden: int = 2
    expand: int = 1
    optimizer: Optimizer = "adamw"
    lr: float = 5e-4
    weight_decay: float = 0.01  # of adamw only

    def __post_init__(self) -> None:
        for name in ("hidden", "expand"):
            if not 1 <= getattr(self, name) <= MOST:
                raise ValueError(f"{name} must be at least 1 and at most {MOST:,}, got {getattr(self, name):,}")
        if self.optimizer not in get_args(Optimizer):
            raise ValueError(f"optimizer must be one of {', '.join(get_args(Optimizer))}, got '{self.optimizer}'")
        if self.lr <= 0:
            raise ValueError(f"lr must be positive, got {self.lr}")

    @property
    def name(self) -> str:
        """`mlp 2x1`: hidden layers x expansion."""
        return f"mlp {self.hidden}x{self.expand}"

    def parameters(self, width: int) -> int:
        """Weights and biases of an MLP on vectors of `width`."""
        return sum((rows + 1) * columns for rows, columns in pairwise(self._sizes(width)))

    @property
    def moments(self) -> int:
        """Floats that the optimizer keeps a parameter."""
        return {"adamw": 2, "adam": 2, "rmsprop": 1, "sgd": 0}[self.optimizer]

    def curves(self, tasks: Sequence[Learnability], seeds: Sequence[int], device: str = "cpu") -> Curves:
        """The loss at every position, float32 [tasks, seeds, T]. Tasks must agree in width and length.

        A seed gives the same questions and the same initial weights to every task.
        """
        steps = self.follow([(task, seed) for task in tasks for seed in seeds], device)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return np.asarray(end.value.reshape(len(tasks), len(seeds), -1))

    def follow(
        self, members: Sequence[Member], device: str | torch.device = "cpu"
    ) -> Generator[tuple[int, float], None, NDArray[np.float32]]:
        """The loss at every position, float32 [M, T], as `curves` has it; yields how many positions are done, and the
        mean loss at the last, some REPORTS times."""
        if len({(task.width, task.length) for task, _ in members}) != 1:
            raise ValueError("give at least one seed, and tasks of one width and one length")
        width, length = members[0][0].width, members[0][0].length
        inputs_TMd, answers_TMd = _streams(members, device)
        weights, biases = self._initial(width, [seed for _, seed in members], device)
        optimizer = self._optimizer([*weights, *biases])
        losses_TM: list[Tensor] = []
        for x_Md, o_Md in zip(inputs_TMd, answers_TMd, strict=True):
            y_Md = _apply(weights, biases, x_Md)
            loss_M = (y_Md - o_Md).square().sum(-1) / o_Md.square().sum(-1)
            losses_TM.append(loss_M.detach())
            optimizer.zero_grad()
            loss_M.sum().backward()
            optimizer.step()
            if len(losses_TM) % max(1, length // REPORTS) == 0:
                yield len(losses_TM), float(losses_TM[-1].mean())
        return np.asarray(torch.stack(losses_TM, dim=1).cpu().numpy())

    def _sizes(self, width: int) -> list[int]:
        return [width, *[self.expand * width] * self.hidden, width]

    def _initial(
        self, width: int, seeds: Sequence[int], device: str | torch.device
    ) -> tuple[list[Tensor], list[Tensor]]:
        sizes = self._sizes(width)
        weights: list[list[Tensor]] = [[] for _ in sizes[1:]]
        biases: list[list[Tensor]] = [[] for _ in sizes[1:]]
        for seed in seeds:
            chance = torch.Generator().manual_seed(seed)
            for i, (rows, columns) in enumerate(pairwise(sizes)):
                bound = rows**-0.5  # larger weights start far above a loss of 1 where |o| shrinks with position
                weights[i].append(torch.empty(rows, columns).uniform_(-bound, bound, generator=chance))
                biases[i].append(torch.empty(1, columns).uniform_(-bound, bound, generator=chance))
        return _members(weights, device), _members(biases, device)

    def _optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        match self.optimizer:
            case "adamw":
                return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True)
            case "adam":
                return torch.optim.Adam(parameters, lr=self.lr, fused=True)
            case "rmsprop":
                return torch.optim.RMSprop(parameters, lr=self.lr)
            case "sgd":
                return torch.optim.SGD(parameters, lr=self.lr, fused=True)


def panels(seeds: Sequence[int] = range(8), device: str = "cpu") -> dict[str, Curves]:
    """The paper's four panels at full size (d = 256, T = 4096): title -> curves of the tasks in PAPER, in order.

    With eight seeds on one CPU core, a panel of expansion 1 takes minutes, one of expansion 4 about an hour.
    """
    return {
        f"{hidden} hidden layers, expansion {expand}": Learner(hidden=hidden, expand=expand).curves(
            PAPER, seeds, device
        )
        for hidden, expand in PANELS
    }


def by_position(curves: Curves) -> dict[str, NDArray[np.float64]]:
    """Mean loss of each task in each bin of positions, [tasks] by the bin's name."""
    return {
        name: curves[..., positions].mean((1, 2), dtype=np.float64)
        for name, positions in bins(curves.shape[-1]).items()
    }


def moving_average(curves: Curves, window: int = 64) -> Curves:
    """Mean over the last `window` positions, [..., T - window + 1]."""
    views = np.lib.stride_tricks.sliding_window_view(curves, window, axis=-1)
    return np.asarray(views.mean(-1), dtype=np.float32)


def _streams(members: Sequence[Member], device: str | torch.device) -> tuple[Tensor, Tensor]:
    drawn = [task.draw(np.random.default_rng(seed), 1) for task, seed in members]
    inputs_TMd = np.stack([d.questions_nTd[0] for d in drawn], axis=1)
    answers_TMd = np.stack([d.answers_nTd[0] for d in drawn], axis=1)
    return torch.from_numpy(inputs_TMd).to(device), torch.from_numpy(answers_TMd).to(device)


def _members(by_member: list[list[Tensor]], device: str | torch.device) -> list[Tensor]:
    return [torch.stack(members).to(device).requires_grad_() for members in by_member]


def _apply(weights: list[Tensor], biases: list[Tensor], x_Md: Tensor) -> Tensor:
    hidden = x_Md.unsqueeze(1)
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        hidden = functional.gelu(torch.baddbmm(bias, hidden, weight))
    return torch.baddbmm(biases[-1], hidden, weights[-1]).squeeze(1)
