"""recallmap maps the memory capacity of sequence models against their recall on synthetic tasks.

Read specs with `read_task`, `read_arch` and `read_study`; train one trial with `run_trial` and a study with `run_study`;
keep and read records with `Ledger`; make tables with `table_of`. Each name is imported from its own module when it is first
used, so that `import recallmap` takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "Ledger": ("results.ledger", "Ledger"),
    "Record": ("results.record", "Record"),
    "SpecError": ("search.documents.nodes", "SpecError"),
    "TrialSpec": ("search.trial", "TrialSpec"),
    "read_arch": ("search.codec", "read_arch"),
    "read_records": ("results.record", "read_records"),
    "read_study": ("search.codec", "read_study"),
    "read_task": ("search.codec", "read_task"),
    "run_study": ("search.engines.inline", "run"),
    "run_trial": ("search.trial", "run_trial"),
    "table_of": ("results.score_tables.scores", "table_of"),
}
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'recallmap' has no attribute {name!r}; it has {', '.join(_PLACES)}")
    module, inside = _PLACES[name]
    found = getattr(import_module(f"recallmap.{module}"), inside)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
