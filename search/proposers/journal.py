"""The journal of a search: each point that was asked for and reported, as JSON lines."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recallmap.results.ledger import LedgerError
from recallmap.search.proposers.proposer import Proposer, Told, is_answered, told_of
from recallmap.search.space.search_space import Search


def journal_of(ledger_path: Path) -> Path:
    """The path of the file that keeps the points of a ledger's searches."""
    return ledger_path.with_suffix(".journal")


class Journal:
    """The points of all searches that share a ledger, in a file beside it. Reading it changes nothing, and raises LedgerError
    where it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last_read: tuple[tuple[int, int], Any] | None = None

    def proposer(self, name: str, space: Search, arm: str, maximise: Sequence[bool]) -> Proposer:
        """The proposer of an arm, which nobody else may drive meanwhile. It continues after an interruption."""
        import optuna

        if self.path.is_symlink():
            raise LedgerError(
                f"{self.path} is a symbolic link, it must be a file that recallmap makes beside the ledger; remove the link, "
                "or put the ledger itself where it points to"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _mend(self.path)
        directions = ["maximize" if more else "minimize" for more in maximise]
        study = optuna.create_study(
            study_name=name, storage=self._storage(), directions=directions, load_if_exists=True
        )
        return Proposer(study, space, arm)

    def told(self, name: str) -> tuple[Told, ...]:
        """The reported points of an arm, in the order of asking."""
        study = self._study(name)
        trials = () if study is None else study.get_trials(deepcopy=False)
        return tuple(told_of(trial) for trial in trials if is_answered(trial))

    def names(self) -> tuple[str, ...]:
        """The names of all arms in it: see StudySpec.address."""
        import optuna

        if not self.path.exists():
            return ()
        return tuple(optuna.get_all_study_names(self._as_it_is()))

    def budgets(self, study: str) -> tuple[str, ...]:
        """The budgets of a study in which points were reported, "whole" for none."""
        own = [name for name in self.names() if name.startswith(f"{study}/") and self.told(name)]
        return tuple(dict.fromkeys(name.removeprefix(f"{study}/").partition("/")[0] for name in own))

    def importances(self, name: str) -> dict[str, float]:
        """Importance of each parameter for being among the best tenth of points, as shares of 1, largest first (PED-ANOVA,
        Watanabe et al. 2023). Empty with fewer than four points done, or without parameters."""
        import optuna
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        study = self._study(name)
        done = [] if study is None else study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
        if study is None or len(done) < 4 or not any(trial.params for trial in done):
            return {}
        # At least two points on the better side, or it has nothing to compare.
        evaluator = PedAnovaImportanceEvaluator(target_quantile=min(0.5, max(0.1, 2 / len(done))))
        with warnings.catch_warnings():  # a parameter that few points have is weighed roughly
            warnings.filterwarnings("ignore", message="Some regimes for parameter", category=UserWarning)
            return dict(get_param_importances(study, evaluator=evaluator))

    def _study(self, name: str) -> Any:
        import optuna

        if name not in self.names():
            return None
        return optuna.load_study(study_name=name, storage=self._as_it_is())

    def _as_it_is(self) -> Any:
        """The storage for reading, which is made anew where the file has changed: that replays every line of it."""
        found = self.path.stat()
        mark = (found.st_mtime_ns, found.st_size)
        if self._last_read is None or self._last_read[0] != mark:
            self._last_read = mark, self._storage()
        return self._last_read[1]

    def _storage(self) -> Any:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        path = self.path

        class Backend(JournalFileBackend):
            def append_logs(self, logs: list[dict[str, Any]]) -> None:
                append_lines(path, logs)

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            return JournalStorage(Backend(str(path)))
        except ValueError as error:
            after = "the ledger has all that was trained, and the search proposes the same points again"
            raise LedgerError(
                f"{self.path}: line {_damaged(self.path)} is damaged; move the file away: {after}"
            ) from error


def append_lines(path: Path, logs: Sequence[Mapping[str, Any]]) -> None:
    """Add lines, without a lock, because the ledger's keeps other drivers out, and without waiting for the disk, as Optuna does
    for every value of every point: what a machine loses with its power is proposed again. An error names the file."""
    try:
        with path.open("ab") as file:
            file.write("".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in logs).encode())
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _damaged(path: Path) -> int:
    """The number of the first line that is not JSON."""
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)
        except ValueError:
            return number
    return len(lines)


def _mend(path: Path) -> None:
    """Remove half a last line, which a killed driver may leave. The ledger's lock keeps other drivers out."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        data = file.read()
        if not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)
            os.fsync(file.fileno())
