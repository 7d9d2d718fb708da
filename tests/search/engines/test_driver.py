"""The driver's order: cohorts go out as they are planned, or the longest first where several train at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from recallmap.results.ledger import Ledger
from recallmap.search import codec
from recallmap.search.engines.driver import Driver

STUDY = {
    "name": "tiny",
    "trial": {
        "task": {"kind": "mqar", "vocab": 16, "length": 12, "pairs": 2},
        "arch": {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": {"kind": "attention", "heads": 2}}]},
        "training": {"steps": 1, "batch": 4, "evaluations": 1},
        "data": {"validation": 8, "test": 8},
    },
    "space": {"kind": "grid", "axes": {"trial.training.steps": [2, 9, 4], "trial.seed": [0, 1]}},
}


@pytest.mark.parametrize(("several", "steps"), [(False, [2, 9, 4]), (True, [9, 4, 2])])
def test_a_grids_longest_cohorts_go_first_where_several_train_at_once(
    several: bool, steps: list[int], tmp_path: Path
) -> None:
    with Ledger(tmp_path / "tiny.sqlite") as ledger:
        driver = Driver(codec.read_study(STUDY), ledger, cohort_size=2, where="cpu", several=several)
        assert [work.specs[0].steps for work in iter(driver.next, None)] == steps
