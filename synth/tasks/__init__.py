"""The tasks: `Task` is the union of all of them, and the registry. Their interface is `synth.task.Task`."""

from synth.tasks.compression import Compression
from synth.tasks.cycle_navigation import CycleNavigation
from synth.tasks.fuzzy_in_context_recall import FuzzyInContextRecall
from synth.tasks.group_word import GroupWord
from synth.tasks.in_context_recall import InContextRecall, NoisyInContextRecall
from synth.tasks.learnability import Learnability
from synth.tasks.memorization import Memorization
from synth.tasks.modular_arithmetic import ModularArithmetic
from synth.tasks.mqar import Mqar
from synth.tasks.needle import Needle
from synth.tasks.parity import Parity
from synth.tasks.regbench import Regbench
from synth.tasks.selective_copying import SelectiveCopying

Task = (
    Mqar
    | InContextRecall
    | NoisyInContextRecall
    | FuzzyInContextRecall
    | Memorization
    | Compression
    | SelectiveCopying
    | Regbench
    | Parity
    | ModularArithmetic
    | CycleNavigation
    | GroupWord
    | Needle
    | Learnability
)
