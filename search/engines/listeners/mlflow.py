"""MLflow: a run for each trial, in an experiment for each study."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from recallmap.results.record import Record
from recallmap.search.engines.listeners.listener import Followed, Listener, figures_of

PARAMS, METRICS = 100, 1000  # that MLflow takes at once

LONGEST = 6000  # letters of a parameter's value

KEY = "recallmap.key"  # the tag that holds the key of a trial's record

One = TypeVar("One")


class MLflow(Listener):
    """Log to an MLflow store: `sqlite:///mlflow.db`, `http://HOST:5000`, or another tracking URI. A trial that is resumed goes
    on in its run."""

    needs: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.runs: dict[str, str] = {}

    def open(self, study: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # else it reports to its makers that it is used
        from mlflow import MlflowClient, entities

        self.entities = entities
        self.client: Any = MlflowClient(tracking_uri=self.uri)
        known = self.client.get_experiment_by_name(study)
        self.experiment: str = self.client.create_experiment(study) if known is None else known.experiment_id

    def begin(self, trial: Followed) -> None:
        wanted = f"tags.`{KEY}` = '{trial.key}' and attributes.status != 'FINISHED'"
        earlier = self.client.search_runs([self.experiment], wanted, max_results=1)
        if earlier:
            self.runs[trial.key] = earlier[0].info.run_id
            self.client.update_run(earlier[0].info.run_id, status="RUNNING")
            return
        run = self.client.create_run(self.experiment, tags={KEY: trial.key}, run_name=trial.name)
        self.runs[trial.key] = run.info.run_id
        given = [
            self.entities.Param(_named(name), str(value)[:LONGEST] or " ") for name, value in trial.parameters.items()
        ]
        for some in _parts(given, PARAMS):
            self.client.log_batch(run.info.run_id, params=some)

    def point(self, trial: Followed, step: int, values: Mapping[str, float]) -> None:
        self._log(self.runs[trial.key], values, step)

    def end(self, trial: Followed, record: Record) -> None:
        run = self.runs.pop(trial.key)
        self._log(run, figures_of(record), record.steps)
        if record.error is not None:
            self.client.set_tag(run, "error", record.error[:LONGEST])
        self.client.set_terminated(run, "FINISHED" if record.error is None else "FAILED")

    def close(self) -> None:
        for run in self.runs.values():
            self.client.set_terminated(run, "KILLED")
        self.runs = {}

    def _log(self, run: str, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self.entities.Metric(_named(name), value, now, step) for name, value in values.items()]
        for some in _parts(metrics, METRICS):
            self.client.log_batch(run, metrics=some)


def _named(name: str) -> str:
    """A name that MLflow takes: `accuracy/pairs=4` has a letter that it refuses."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _parts(many: Sequence[One], count: int) -> Iterator[Sequence[One]]:
    return (many[start : start + count] for start in range(0, len(many), count))
