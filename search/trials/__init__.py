"""The union of all trials: one model, phases one after another, an online learner."""

from __future__ import annotations

from recallmap.search.trials.online import OnlineTrial
from recallmap.search.trials.phased import PhasedTrial
from recallmap.search.trials.single import TrialSpec

Trial = TrialSpec | PhasedTrial | OnlineTrial
