"""The best checkpoint of a member, chosen by validation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec


class BestCheckpoint:
    """The best checkpoint of one member so far, and its learning curve."""

    def __init__(self, spec: TrialSpec) -> None:
        self.metric = spec.task.metric
        self.protocol = spec.task.protocol
        self.stop_at = spec.training.stop_at
        self.best: dict[str, float] = {}
        self.best_step = 0
        self.last = math.nan
        self.satisfied = False
        self.published: dict[str, float] = {}
        self.curve: dict[str, list[float]] = {
            "step": [],
            "train_loss": [],
            "validation_loss": [],
            "validation_accuracy": [],
        }

    def known(self) -> dict[str, Any]:
        """All results of evaluations so far, to be saved."""
        names = ("best", "best_step", "last", "satisfied", "published", "curve")
        return {name: getattr(self, name) for name in names}

    @property
    def newest(self) -> tuple[float, float, float]:
        """The last point of the curve: train loss, validation loss, validation score."""
        loss, on_validation, score = (self.curve[name][-1] for name in list(self.curve)[1:])
        return loss, on_validation, score

    def see(self, step: int, loss: float, scores: dict[str, float], on_test: dict[str, float]) -> bool:
        """Take an evaluation in; True where it is the best so far (ties: the lower validation loss, then the later)."""
        self.last = scores[self.metric]
        for name, value in zip(self.curve, (step, loss, scores["loss"], self.last), strict=True):
            self.curve[name].append(value)
        if self.protocol == "mad-lab" and (not self.published or on_test["loss"] < self.published["loss"]):
            self.published = on_test  # the checkpoint of lowest test perplexity, as mad-lab reports
        elif self.protocol == "zoology":
            self.published = on_test  # the last evaluation, as Zoology's summaries do
        self.satisfied = self.stop_at is not None and self.last > self.stop_at
        rank = (scores[self.metric], -scores["loss"])
        if self.best and rank < (self.best[self.metric], -self.best["loss"]):
            return False
        self.best, self.best_step = scores, step
        return True


def evaluation_steps(steps: int, evaluations: int) -> set[int]:
    """Steps after which validation is evaluated: evenly spread, the last step always among them."""
    return {math.ceil(steps * (i + 1) / evaluations) for i in range(evaluations)}
