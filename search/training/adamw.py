"""AdamW for many members at once, and their learning rate schedules.

N members, P parameters of one member
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from recallmap.search.trials.settings import Schedule
    from recallmap.search.trials.single import TrialSpec


class AdamW:
    """Decoupled weight decay Adam on [N, P], with a learning rate and a decay per member (Loshchilov & Hutter 2019)."""

    def __init__(self, specs: Sequence[TrialSpec], flat_NP: Tensor) -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=flat_NP.device)[:, None]

        self.decay = column([s.training.weight_decay for s in specs])
        self.beta1 = column([s.training.betas[0] for s in specs])
        self.beta2 = column([s.training.betas[1] for s in specs])
        self.eps = column([s.training.eps for s in specs])
        self.clip = column([math.inf if s.training.clip is None else s.training.clip for s in specs])
        self.first, self.second = torch.zeros_like(flat_NP), torch.zeros_like(flat_NP)
        self.power1, self.power2 = torch.ones_like(self.beta1), torch.ones_like(self.beta2)

    @torch.no_grad()
    def step(self, flat_NP: Tensor, gradient_NP: Tensor, rate_N1: Tensor) -> None:
        norm_N1 = torch.linalg.vector_norm(gradient_NP, dim=1, keepdim=True)
        gradient_NP = gradient_NP * (self.clip / (norm_N1 + 1e-6)).clamp(max=1.0)
        self.power1.mul_(self.beta1)
        self.power2.mul_(self.beta2)
        self.first.lerp_(gradient_NP, 1 - self.beta1)
        self.second.mul_(self.beta2).addcmul_(gradient_NP, gradient_NP * (1 - self.beta2))
        spread_NP = (self.second / (1 - self.power2)).sqrt_().add_(self.eps)
        flat_NP.mul_(1 - rate_N1 * self.decay).sub_(self.first / spread_NP * (rate_N1 / (1 - self.power1)))

    def memory(self) -> list[Tensor]:
        """All tensors that a step writes."""
        return [self.first, self.second, self.power1, self.power2]

    def keep(self, index: Tensor) -> None:
        """Go on with these members alone."""
        for name, value in vars(self).items():
            setattr(self, name, value[index])


def learning_rate(schedule: Schedule, peak: float, steps: int) -> NDArray[np.float64]:
    """The rate at each of `steps` optimizer steps."""
    warm = round(schedule.warmup * steps) if isinstance(schedule.warmup, float) else schedule.warmup
    rising = schedule.start + (peak - schedule.start) * np.arange(1, warm + 1) / max(warm, 1)
    along = np.arange(1, steps - warm + 1) / max(steps - warm, 1)
    falling = {
        "constant": np.full(len(along), peak),
        "cosine": schedule.floor + (peak - schedule.floor) * 0.5 * (1 + np.cos(np.pi * along)),
        "linear": schedule.floor + (peak - schedule.floor) * (1 - along),
    }[schedule.kind]
    return np.concatenate([rising, falling])[:steps]
