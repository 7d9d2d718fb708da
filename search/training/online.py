"""Online learning: one gradient step a position, on the error of that position, for a stack of members.

loss_j = |M(i_j) - o_j|^2 / |o_j|^2, taken before the step on it        (ATLAS, section on learnability, mended)

Every optimizer on offer works element by element, so a member learns exactly as it would alone.

Legend: M members, T positions, d width
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from recallmap.search.training import device_time
from recallmap.search.training.outcome import Outcome, Progress
from recallmap.search.trials.online import OnlineTrial
from recallmap.search.trials.online_learner import Learner
from recallmap.synth.tasks.learnability import Learnability, bins

Member = tuple[Learnability, int]  # a task and a seed

WINDOWS = 64  # points of a curve: means over as many equal stretches of positions

REPORTS = 64  # from within a run over all positions


def train(specs: Sequence[OnlineTrial], device: torch.device) -> Generator[Progress, None, list[Outcome]]:
    """Train trials of one shape together; returns an Outcome for every spec, in order."""
    began = device_time.now()
    members = [(spec.task, spec.seed) for spec in specs]
    steps, length = follow(specs[0].arch, members, device), specs[0].steps
    none = (float("nan"),) * len(specs)
    while True:
        try:
            done, loss = next(steps)
        except StopIteration as end:
            each = (device_time.now() - began) / len(specs)
            return [replace(_outcome(losses_T), seconds=each) for losses_T in end.value]
        yield Progress(step=done, steps=length, members=len(specs), loss=loss, accuracy=none)


def follow(
    learner: Learner, members: Sequence[Member], device: str | torch.device = "cpu"
) -> Generator[tuple[int, float], None, NDArray[np.float32]]:
    """The loss at every position, float32 [M, T]. Yields about REPORTS times the number of positions done and the mean loss
    at the last."""
    if len({(task.width, task.length) for task, _ in members}) != 1:
        raise ValueError("give at least one seed, and tasks of one width and one length")
    width, length = members[0][0].width, members[0][0].length
    inputs_TMd, answers_TMd = _streams(members, device)
    weights, biases = _initial(learner, width, [seed for _, seed in members], device)
    optimizer = _optimizer(learner, [*weights, *biases])
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


def _initial(
    learner: Learner, width: int, seeds: Sequence[int], device: str | torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    sizes = learner.sizes(width)
    weights: list[list[Tensor]] = [[] for _ in sizes[1:]]
    biases: list[list[Tensor]] = [[] for _ in sizes[1:]]
    for seed in seeds:
        chance = torch.Generator().manual_seed(seed)
        for i, (rows, columns) in enumerate(pairwise(sizes)):
            bound = rows**-0.5  # larger weights start far above a loss of 1 where |o| shrinks with position
            weights[i].append(torch.empty(rows, columns).uniform_(-bound, bound, generator=chance))
            biases[i].append(torch.empty(1, columns).uniform_(-bound, bound, generator=chance))
    return _members(weights, device), _members(biases, device)


def _optimizer(learner: Learner, parameters: list[Tensor]) -> torch.optim.Optimizer:
    match learner.optimizer:
        case "adamw":
            return torch.optim.AdamW(parameters, lr=learner.lr, weight_decay=learner.weight_decay, fused=True)
        case "adam":
            return torch.optim.Adam(parameters, lr=learner.lr, fused=True)
        case "rmsprop":
            return torch.optim.RMSprop(parameters, lr=learner.lr)
        case "sgd":
            return torch.optim.SGD(parameters, lr=learner.lr, fused=True)


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


def _outcome(losses_T: NDArray[np.float32]) -> Outcome:
    length = len(losses_T)
    bad = np.flatnonzero(~np.isfinite(losses_T))
    if len(bad):
        return Outcome(error=f"diverged: the loss was not finite at step {bad[0] + 1} of {length}", steps=length)
    explained = {f"explained/position={name}": float(1 - losses_T[part].mean()) for name, part in bins(length).items()}
    mean = float(losses_T.mean(dtype=np.float64))
    scores = {"explained": 1 - mean, "relative_error": mean, "loss": mean}
    return Outcome(
        scores=scores | explained, validation=scores, curve=_curve(losses_T), steps=length, selected_step=length
    )


def _curve(losses_T: NDArray[np.float32]) -> dict[str, list[float]]:
    """Mean losses over stretches of positions, by the last position of each."""
    parts = np.array_split(losses_T, min(WINDOWS, len(losses_T)))
    loss = [float(part.mean()) for part in parts]
    return {
        "step": np.cumsum([len(part) for part in parts]).tolist(),
        "train_loss": loss,
        "validation_loss": loss,
        "validation_accuracy": [1 - one for one in loss],
    }
