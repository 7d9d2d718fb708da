"""How many pairs a state holds, from the settings that were trained, beside the probe and theory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from recallmap.results.analysis.measures import measures
from recallmap.results.analysis.pairs_held import holdings
from recallmap.results.record import Record

Make = Callable[..., Record]


def test_the_most_pairs_up_to_which_all_is_recalled(make: Make) -> None:
    scores = {4: 1.0, 8: 0.995, 16: 0.93, 32: 0.4, 64: 0.95}  # the last is luck
    (held,) = holdings(measures([make(dials={"pairs": p}, score=s, state_bytes=512) for p, s in scores.items()]))[
        "mqar"
    ]
    assert held.trained == {0.99: 8, 0.9: 16}
    assert (held.tried, held.state_bytes) == ((4, 8, 16, 32, 64), 512)


def test_at_several_lengths_each_must_be_recalled(make: Make) -> None:
    cells = {(4, 64): 1.0, (4, 128): 0.95, (8, 64): 1.0}
    records = [make(dials={"pairs": p, "length": n}, score=s) for (p, n), s in cells.items()]
    (held,) = holdings(measures(records))["mqar"]
    assert held.trained == {0.99: 0, 0.9: 8}


def test_other_dials_keep_settings_apart(make: Make) -> None:
    records = [make(dials={"pairs": p, "vocab": v}, score=1.0) for p in (4, 8) for v in (64, 8192)]
    assert set(holdings(measures(records))) == {"mqar, vocab 64", "mqar, vocab 8192"}


def test_one_number_of_pairs_is_no_curve(make: Make) -> None:
    assert holdings(measures([make(), make(arch="gla")])) == {}


def test_tasks_without_pairs_hold_nothing_that_is_counted(make: Make) -> None:
    assert holdings(measures([make(task="parity", dials={"length": n}) for n in (40, 80)])) == {}


def test_the_probe_and_theory_stand_beside_what_was_trained(make: Make) -> None:
    def row(pairs: int, recall: float) -> dict[str, object]:
        return {"arch": "mesa", "mixer": "mesa", "pairs": pairs, "recall": recall, "bounds": {"d_k": 16}}

    records = [make(dials={"pairs": p}, score=1.0) for p in (4, 8)]
    probed = [row(8, 1.0), row(16, 0.92), row(32, 0.5), {**row(64, 1.0), "arch": "another"}]
    (held,) = holdings(measures(records), probed)["mqar"]
    assert held.probed == {0.99: 8, 0.9: 16}
    assert held.bounds == {"d_k": 16}


@pytest.mark.parametrize("failed", [True, False])
def test_failed_trials_hold_nothing(make: Make, failed: bool) -> None:
    hard = make(dials={"pairs": 8}, error="lost") if failed else make(dials={"pairs": 8}, score=1.0)
    found = holdings(measures([make(dials={"pairs": 4}, score=1.0), hard]))
    assert bool(found) is not failed
