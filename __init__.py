"""recallmap maps the memory capacity of sequence models against their recall on synthetic tasks.

    import recallmap as rm

    trials = [rm.trial("parity", arch, steps=500) for arch in ("mesa", "gla")]
    df = rm.records(rm.run(trials, ledger="runs/parity.sqlite"))
    print(rm.table(df))
    rm.figure(df, "front").show()

Specs: `task`, `arch`, `model`, `trial`, `study`; `use` takes kinds from a file. Training and measuring: `run`, `probe`; `load`
gives a trained model back. Records as a pandas frame: `records`, `front`, `table`, `figure`. Parts of one's own: `MixerSpec`,
`MixerModule`, `StateSize`, `Task`, `Batch`, `IGNORE`, `Roles`, `Listener`, and the ops of `kernels`. The guide is
docs/python.md. Each name is imported from its own module when it is first used, so that `import recallmap` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import recallmap.arch as _arch

if TYPE_CHECKING:  # what _PLACES says, for editors and type checkers
    from recallmap.arch import kernels as kernels
    from recallmap.arch.mixers.mixer import MixerModule as MixerModule
    from recallmap.arch.mixers.mixer import MixerSpec as MixerSpec
    from recallmap.arch.mixers.mixer import StateSize as StateSize
    from recallmap.results.ledger import Ledger as Ledger
    from recallmap.results.record import Record as Record
    from recallmap.results.record import read_records as read_records
    from recallmap.results.score_tables.scores import table_of as table_of
    from recallmap.search.codec import read_arch as read_arch
    from recallmap.search.codec import read_study as read_study
    from recallmap.search.codec import read_task as read_task
    from recallmap.search.documents.nodes import SpecError as SpecError
    from recallmap.search.engines.inline import run as run_study  # noqa: F401
    from recallmap.search.engines.listeners.listener import Listener as Listener
    from recallmap.search.python.frames import figure as figure
    from recallmap.search.python.frames import front as front
    from recallmap.search.python.frames import records as records
    from recallmap.search.python.frames import table as table
    from recallmap.search.python.running import probe as probe
    from recallmap.search.python.running import run as run
    from recallmap.search.python.specs import model as model
    from recallmap.search.python.specs import study as study
    from recallmap.search.python.specs import task as task
    from recallmap.search.python.specs import trial as trial
    from recallmap.search.python.specs import use as use
    from recallmap.search.trial import TrialSpec as TrialSpec
    from recallmap.search.trial import run_trial as run_trial
    from recallmap.search.weights.loading import load as load
    from recallmap.synth.batch import IGNORE as IGNORE
    from recallmap.synth.batch import Batch as Batch
    from recallmap.synth.task import Task as Task
    from recallmap.synth.vocab import Roles as Roles

_PLACES = {
    "IGNORE": ("synth.batch", "IGNORE"),
    "Batch": ("synth.batch", "Batch"),
    "Ledger": ("results.ledger", "Ledger"),
    "Listener": ("search.engines.listeners.listener", "Listener"),
    "MixerModule": ("arch.mixers.mixer", "MixerModule"),
    "MixerSpec": ("arch.mixers.mixer", "MixerSpec"),
    "Record": ("results.record", "Record"),
    "Roles": ("synth.vocab", "Roles"),
    "SpecError": ("search.documents.nodes", "SpecError"),
    "StateSize": ("arch.mixers.mixer", "StateSize"),
    "Task": ("synth.task", "Task"),
    "TrialSpec": ("search.trial", "TrialSpec"),
    "figure": ("search.python.frames", "figure"),
    "front": ("search.python.frames", "front"),
    "kernels": ("arch.kernels", ""),
    "load": ("search.weights.loading", "load"),
    "model": ("search.python.specs", "model"),
    "probe": ("search.python.running", "probe"),
    "read_arch": ("search.codec", "read_arch"),
    "read_records": ("results.record", "read_records"),
    "read_study": ("search.codec", "read_study"),
    "read_task": ("search.codec", "read_task"),
    "records": ("search.python.frames", "records"),
    "run": ("search.python.running", "run"),
    "run_study": ("search.engines.inline", "run"),
    "run_trial": ("search.trial", "run_trial"),
    "study": ("search.python.specs", "study"),
    "table": ("search.python.frames", "table"),
    "table_of": ("results.score_tables.scores", "table_of"),
    "task": ("search.python.specs", "task"),
    "trial": ("search.python.specs", "trial"),
    "use": ("search.python.specs", "use"),
}
__all__ = ["arch", *_PLACES]


class _Pillar(ModuleType):
    """The package `recallmap.arch`, which is a function too: importing any of its modules would hide one of its name."""

    def __call__(self, source: Any, **options: Any) -> Any:
        """The architecture of a name, a file, a mapping or a mixer: see `arch` in recallmap.search.python.specs."""
        specs = import_module("recallmap.search.python.specs")
        return specs.arch(source, **options)


_arch.__class__ = _Pillar
arch = _arch


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'recallmap' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, inside = _PLACES[name]
    found: Any = import_module(f"recallmap.{module}")
    if inside:
        found = getattr(found, inside)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
