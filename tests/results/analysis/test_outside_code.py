"""Code from outside, as records tell of it."""

from __future__ import annotations

import pytest

from recallmap.results.analysis.labels import flatten
from recallmap.results.analysis.namesakes import remark
from recallmap.results.analysis.outside_code import has_unknown_state, said_of

SHIFT = {"kind": "shift", "code": "my.py+12"}
KNOWN = {"kind": "module", "of": "my:Layer", "state": "counted", "code": "my.py+12"}
VAGUE = {**KNOWN, "of": "my:Other", "state": "unknown"}


def leaves(*mixers: object) -> dict[str, object]:
    return dict(flatten({"name": "a", "stack": [{"kind": "block", "mixer": mixer} for mixer in mixers]}))


def test_what_one_file_defines_is_said_once() -> None:
    assert said_of(leaves(SHIFT, SHIFT, KNOWN)) == ["my.py+12 defines shift, module my:Layer"]
    assert said_of(leaves(SHIFT, {**KNOWN, "code": "b==1"})) == [
        "my.py+12 defines shift",
        "b==1 defines module my:Layer",
    ]
    assert remark(leaves(SHIFT)) == "my.py+12 defines shift"


def test_an_unknown_state_is_said_wherever_the_module_is() -> None:
    assert has_unknown_state(leaves(KNOWN, VAGUE))
    assert said_of(leaves(VAGUE))[-1] == "the state of module my:Other is unknown, so that it is on no front"
    assert has_unknown_state(
        dict(flatten({"stack": [{"kind": "gate", "memory": VAGUE, "attention": {"kind": "dot"}}]}))
    )


@pytest.mark.parametrize("mixer", [{"kind": "mesa"}, {"kind": "other", "state": "unknown"}, KNOWN, {"kind": 3}])
def test_no_other_part_has_one(mixer: object) -> None:
    assert not has_unknown_state(leaves(mixer))


def test_our_own_kinds_say_nothing() -> None:
    assert said_of(leaves({"kind": "mesa", "heads": 4})) == []
    assert said_of(leaves({"kind": 3, "code": 4})) == ["4 defines 3"]  # whatever a record holds
