"""The tasks: `Task` is the union of all of them, and the registry. Their interface is `synth.task.Task`."""

from recallmap.synth.tasks.arithmetic_tree import ArithmeticTree
from recallmap.synth.tasks.compression import Compression
from recallmap.synth.tasks.cycle_navigation import CycleNavigation
from recallmap.synth.tasks.dyck import Dyck
from recallmap.synth.tasks.fuzzy_in_context_recall import FuzzyInContextRecall
from recallmap.synth.tasks.grammar import Grammar
from recallmap.synth.tasks.group_word import GroupWord
from recallmap.synth.tasks.hops import Hops
from recallmap.synth.tasks.in_context_recall import InContextRecall, NoisyInContextRecall
from recallmap.synth.tasks.induction import Induction
from recallmap.synth.tasks.learnability import Learnability
from recallmap.synth.tasks.lookup import Lookup
from recallmap.synth.tasks.memorization import Memorization
from recallmap.synth.tasks.missing_duplicate import MissingDuplicate
from recallmap.synth.tasks.modular_arithmetic import ModularArithmetic
from recallmap.synth.tasks.mqar import Mqar
from recallmap.synth.tasks.mqar_continuous import MqarContinuous
from recallmap.synth.tasks.mqar_pairs import MqarPairs
from recallmap.synth.tasks.mqar_updates import MqarUpdates
from recallmap.synth.tasks.needle import Needle
from recallmap.synth.tasks.packed_strings import PackedStrings
from recallmap.synth.tasks.parity import Parity
from recallmap.synth.tasks.phonebook import Phonebook
from recallmap.synth.tasks.rearrangement import Rearrangement
from recallmap.synth.tasks.regbench import Regbench
from recallmap.synth.tasks.regression import Regression
from recallmap.synth.tasks.repl_trace import ReplTrace
from recallmap.synth.tasks.selective_copying import SelectiveCopying
from recallmap.synth.tasks.set_overlap import SetOverlap
from recallmap.synth.tasks.stack_manipulation import StackManipulation
from recallmap.synth.tasks.stacks import Stacks
from recallmap.synth.tasks.topological_order import TopologicalOrder

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
    | Hops
    | Stacks
    | Rearrangement
    | Regression
    | MqarUpdates
    | MqarPairs
    | SetOverlap
    | Induction
    | PackedStrings
    | ReplTrace
    | Lookup
    | Phonebook
    | StackManipulation
    | MissingDuplicate
    | Dyck
    | ArithmeticTree
    | TopologicalOrder
    | Grammar
    | MqarContinuous
)
