"""A cohort goes on with fewer members once those that are through have cost as much as a capture."""

from __future__ import annotations

import pytest

from recallmap.search.training.fewer import Fewer

STEPS, SECONDS, CAPTURE = 1000, 0.1, 20.0  # in all, of one with all members, of the first capture


def asked(fewer: Fewer, going: dict[int, int], members: int, *, capture: float = CAPTURE) -> dict[int, int]:
    """The step at which it goes on with fewer, and with how many, where `going` members train on from a step on; asked every 10
    steps, and each further capture takes as long as the first."""
    found, own, training, preparing = {}, members, 0.0, capture
    for step in range(10, STEPS + 1, 10):
        training += 10 * SECONDS * own / members
        now = min(number for since, number in going.items() if since <= step)
        if fewer.pays(now, taken=step, left=STEPS - step, training=training, preparing=preparing):
            found[step], own, preparing = now, now, preparing + capture
    return found


def test_a_capture_is_worth_it_once_those_that_are_through_have_cost_as_much() -> None:
    """Half of eight are through at step 100: from then on a step wastes half of its 0.1 seconds, which are the 20 of a capture
    after 400 steps."""
    assert asked(Fewer(8), {0: 8, 100: 4}, 8) == {510: 4}


def test_what_they_cost_counts_anew_after_each_capture() -> None:
    assert asked(Fewer(8), {0: 8, 100: 2, 900: 1}, 8, capture=3.0) == {150: 2}
    assert asked(Fewer(8), {0: 8, 100: 2, 500: 1}, 8, capture=3.0) == {150: 2, 750: 1}


def test_where_all_end_soon_there_is_none() -> None:
    assert asked(Fewer(8), {0: 8, 100: 4, 300: 0}, 8) == {}


@pytest.mark.parametrize("since", [850, 1000])
def test_where_too_few_steps_are_left_to_save_a_capture_there_is_none(since: int) -> None:
    assert asked(Fewer(8), {0: 8, since: 1}, 8) == {}


def test_where_nothing_is_captured_it_goes_on_with_fewer_at_once() -> None:
    assert asked(Fewer(3), {0: 3, 200: 2, 500: 1}, 3, capture=0.0) == {200: 2, 500: 1}
    assert Fewer(2).pays(1, taken=0, left=10, training=0.0, preparing=0.0)  # of a member that takes no step


def test_with_all_of_them_or_none_there_is_nothing_to_do() -> None:
    assert asked(Fewer(8), {0: 8}, 8) == {}
    assert asked(Fewer(8), {0: 8, 100: 0}, 8, capture=0.0) == {}
