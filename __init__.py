"""recallmap maps the memory capacity of sequence models against their recall on synthetic tasks.

    import recallmap as rm

    trials = [rm.trial("parity", arch, steps=500) for arch in ("mesa", "gla")]
    df = rm.records(rm.run(trials, ledger="runs/parity.sqlite"))
    print(rm.table(df))
    rm.figure(df, "front").show()

Specs: `task`, `arch`, `model`, `trial`, `study`. Training and measuring: `run`, `probe`. Records as a pandas frame:
`records`, `front`, `table`, `figure`. Parts of one's own: `MixerSpec`, `MixerModule`, `StateSize`, `Task`, `Batch`, `Roles`,
and the ops of `kernels`. The guide is docs/python.md. Each name is imported from its own module when it is first used, so
that `import recallmap` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import recallmap.arch as _arch

_PLACES = {
    "Batch": ("synth.batch", "Batch"),
    "Ledger": ("results.ledger", "Ledger"),
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
