"""What an unfinished study has: cohorts that are saved, and a process that trains it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recallmap.results.analysis.labels import counted
from recallmap.search.documents import content_key
from recallmap.search.space.search_space import Search
from recallmap.search.training.checkpoints import SavedCohort, checkpoint_folder, saved_cohorts

if TYPE_CHECKING:
    from recallmap.search.study.spec import StudySpec
    from recallmap.search.trials import Trial

LISTED = 3  # saved cohorts of which each has its step said


def saved_of(study: StudySpec, ledger: Path, trials: Iterable[Trial] = ()) -> list[SavedCohort]:
    """The saved cohorts beside a ledger: those of a grid and of these further trials; beside that of a search, all."""
    found = saved_cohorts(checkpoint_folder(ledger))
    if not found or isinstance(study.space, Search):
        return found
    own = {content_key.key(trial) for trial in (*study.trials(), *trials)}
    return [one for one in found if one.owners & own]


def said_saved(saved: Sequence[SavedCohort]) -> str:
    """`1 cohort is saved at step 240 of 400`, or how many are saved and at which steps."""
    whole = f"{counted(len(saved), 'cohort')} {'is' if len(saved) == 1 else 'are'} saved"
    if len(saved) > LISTED:
        steps = [one.step for one in saved]
        return f"{whole} at steps {min(steps):,} to {max(steps):,}"
    each = [f"{at_step(one.step, one.steps)}{' of a phase' if one.in_phase else ''}" for one in saved]
    *first, last = each
    return f"{whole} at step {', '.join(first)} and {last}" if first else f"{whole} at step {last}"


def at_step(step: int, steps: int | None) -> str:
    """`240 of 400`."""
    return f"{step:,}" if steps is None else f"{step:,} of {steps:,}"
