"""The union of what can be trained: one trial, phases one after another, an online learner."""

from __future__ import annotations

from recallmap.search.trials.online import OnlineTrial
from recallmap.search.trials.phased import PhasedTrial
from recallmap.search.trials.single import TrialSpec

Trial = TrialSpec | PhasedTrial | OnlineTrial
