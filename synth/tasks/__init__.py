"""The tasks: `Task` is the union of all of them, and the registry. Their interface is `synth.task.Task`."""

from synth.tasks.compression import Compression
from synth.tasks.fuzzy_in_context_recall import FuzzyInContextRecall
from synth.tasks.in_context_recall import InContextRecall, NoisyInContextRecall
from synth.tasks.memorization import Memorization
from synth.tasks.mqar import Mqar
from synth.tasks.selective_copying import SelectiveCopying

Task = (
    Mqar | InContextRecall | NoisyInContextRecall | FuzzyInContextRecall | Memorization | Compression | SelectiveCopying
)
