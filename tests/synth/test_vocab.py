"""Roles of token ids."""

from __future__ import annotations

import pytest

from recallmap.synth.vocab import Roles

ROLES = Roles({"value": range(3, 8), "key": range(1, 3), "blank": range(1)})


def test_every_id_has_one_role() -> None:
    assert [ROLES.name_of(token) for token in range(8)] == ["blank"] + ["key"] * 2 + ["value"] * 5
    assert ROLES.vocab == 8


def test_names_come_in_id_order() -> None:
    assert list(ROLES) == ["blank", "key", "value"]
    assert len(ROLES) == 3
    assert ROLES.of("key") == range(1, 3)


def test_roles_are_equal_by_value() -> None:
    again = Roles({"blank": range(1), "key": range(1, 3), "value": range(3, 8)})
    assert again == ROLES
    assert hash(again) == hash(ROLES)


def test_a_role_may_be_empty() -> None:
    assert Roles({"key": range(2), "noise": range(2, 2), "value": range(2, 4)}).name_of(2) == "value"


@pytest.mark.parametrize(
    "ranges",
    [
        {"key": range(1, 3)},
        {"key": range(2), "value": range(1, 3)},
        {"key": range(2), "value": range(3, 4)},
        {"key": range(0, 4, 2), "value": range(4, 5)},
    ],
    ids=["late", "overlap", "gap", "step"],
)
def test_ranges_that_do_not_cover_the_ids_once_are_refused(ranges: dict[str, range]) -> None:
    with pytest.raises(ValueError, match="role"):
        Roles(ranges)


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="no role 'noise'; there are blank, key, value"):
        ROLES.of("noise")
    with pytest.raises(ValueError, match=r"token 8 has no role: ids are 0 \.\. 7"):
        ROLES.name_of(8)
