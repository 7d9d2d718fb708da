"""Weights & Biases: a run for each trial, in a group for each study."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from recallmap.results.record import Record
from recallmap.search.engines.listeners.listener import Followed, Listener, figures_of

INTERRUPTED = 255  # exit code of a run that was stopped

LETTERS = 32  # of a key, in the id of its run; wandb takes at most 64


class WandB(Listener):
    """Log to a project of wandb, PROJECT or ENTITY/PROJECT. A trial that is resumed goes on in its run. wandb's own variables
    hold, such as WANDB_MODE=offline, which contacts nobody."""

    needs: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    def __init__(self, project: str) -> None:
        entity, _, self.project = project.rpartition("/")
        self.entity = entity or None
        self.runs: dict[str, Any] = {}

    def open(self, study: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it sends its own errors home
        import wandb

        self.wandb, self.study = wandb, study
        # Its service starts here, with this environment.
        wandb.setup(settings=wandb.Settings(silent=True, console="off", x_disable_stats=True))

    def begin(self, trial: Followed) -> None:
        run = self.wandb.init(
            project=self.project,
            entity=self.entity,
            group=self.study,
            name=trial.name,
            id=trial.key[:LETTERS],
            config={**trial.parameters, "key": trial.key},
            resume="allow",
            reinit="create_new",  # beside those of other trials
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")  # points may come in any order
        self.runs[trial.key] = run

    def point(self, trial: Followed, step: int, values: Mapping[str, float]) -> None:
        self.runs[trial.key].log({"step": step, **values})

    def end(self, trial: Followed, record: Record) -> None:
        run = self.runs.pop(trial.key)
        run.summary.update({"status": record.status, **figures_of(record)})
        if record.error is not None:
            run.summary["error"] = record.error
        run.finish(exit_code=int(record.error is not None))

    def close(self) -> None:
        for run in self.runs.values():
            run.finish(exit_code=INTERRUPTED)
        self.runs = {}
