"""One trial: its spec, and training it alone."""

from __future__ import annotations

from recallmap.results.record import Record
from recallmap.search.training.run_cohort import run_cohort
from recallmap.search.trials.settings import Data as Data
from recallmap.search.trials.settings import Portion as Portion
from recallmap.search.trials.settings import Schedule as Schedule
from recallmap.search.trials.settings import Training as Training
from recallmap.search.trials.single import TrialSpec as TrialSpec


def run_trial(spec: TrialSpec, *, study: str = "", device: str | None = None) -> Record:
    """Train one trial alone. A trial that diverges gives a failed record, not an exception."""
    return run_cohort([spec], study=study, device=device)[0]
