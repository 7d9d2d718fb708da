"""The union of what can be trained: one trial, phases one after another, an online learner."""

from __future__ import annotations

from search.trials.online import OnlineTrial
from search.trials.phased import PhasedTrial
from search.trials.single import TrialSpec

Trial = TrialSpec | PhasedTrial | OnlineTrial
