"""TensorBoard: a folder of events for each trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from recallmap.results.record import Record
from recallmap.search.engines.listeners.listener import Followed, Listener, figures_of


class TensorBoard(Listener):
    """Write events below a folder, DIR/STUDY/TRIAL, for `tensorboard --logdir DIR`."""

    needs: ClassVar[str] = "tensorboard"
    extra: ClassVar[str] = "tensorboard"

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.writers: dict[str, Any] = {}

    def open(self, study: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder /= study.replace("/", "_")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.make = SummaryWriter

    def begin(self, trial: Followed) -> None:
        self.writers[trial.key] = self.make(log_dir=str(self.folder / trial.name))

    def point(self, trial: Followed, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writers[trial.key].add_scalar(name, value, step)

    def end(self, trial: Followed, record: Record) -> None:
        writer = self.writers.pop(trial.key)
        if record.error is not None:
            writer.add_text("error", record.error)
        given = {name: "null" if value is None else value for name, value in trial.parameters.items()}
        # In the folder of the trial itself: without a name it makes one of the time.
        writer.add_hparams(given, figures_of(record), run_name=".", global_step=record.steps)
        writer.close()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.writers = {}
