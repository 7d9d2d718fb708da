"""Patches of documents: a value laid over what stands at a path, mappings that merge, paths that lead nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from recallmap.search import codec
from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Node, Patch, Place, SpecError, merged, patched

AT = Place("--set")


def lay(path: str, value: Any, over: str = "a: {b: [1, {c: 2}]}\nk: parity") -> Any:
    return patched(codec.parse(over.encode(), "f.yaml"), Patch(path, type_hints.node_of(value, AT), AT)).plain()


@pytest.mark.parametrize(
    ("path", "value", "result"),
    [
        ("a.b[1].c", 3, {"a": {"b": [1, {"c": 3}]}, "k": "parity"}),
        ("a.b[0]", [7], {"a": {"b": [[7], {"c": 2}]}, "k": "parity"}),
        ("x.y.z", 1, {"a": {"b": [1, {"c": 2}]}, "k": "parity", "x": {"y": {"z": 1}}}),
        ("a", {"d": 1}, {"a": {"b": [1, {"c": 2}], "d": 1}, "k": "parity"}),
        ("k.length", 3, {"a": {"b": [1, {"c": 2}]}, "k": {"kind": "parity", "length": 3}}),
    ],
)
def test_a_patch_is_laid_over(path: str, value: Any, result: Any) -> None:
    assert lay(path, value) == result


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("a.b[2]", r"--set: a.b\[2\]: a.b has no \[2\], expected \[0\] to \[1\]"),
        ("a.b.c", "--set: a.b.c: a.b is no mapping and has no 'c'"),
        ("a[0]", r"--set: a\[0\]: a is no list and has no '\[0\]'"),
        ("a.b[x]", r"--set: a.b\[x\]: '\[x\]' is no place in a list"),
        ("a.b[-1]", r"'\[-1\]' is no place in a list"),
        ("a.b[0", r"'\[0' is no place in a list"),
        ("a..b", "is no path"),
        ("a.", "is no path"),
        ("", "is no path"),
    ],
)
def test_a_path_that_leads_nowhere(path: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        lay(path, 1)


@pytest.mark.parametrize(
    ("base", "over", "result"),
    [
        ({"a": 1, "b": 2}, {"b": 3}, {"a": 1, "b": 3}),
        ({"kind": "x", "a": 1}, {"a": 2}, {"kind": "x", "a": 2}),
        ({"kind": "x", "a": 1}, {"kind": "x", "b": 2}, {"kind": "x", "a": 1, "b": 2}),
        ({"kind": "x", "a": 1}, {"kind": "y", "b": 2}, {"kind": "y", "b": 2}),
        ({"name": "x", "a": 1}, {"name": "y"}, {"name": "y"}),
        ("x", {"a": 2}, {"kind": "x", "a": 2}),
        ([1, 2], [3], [3]),
        ({"a": {"kind": "x", "b": 1}}, {"a": {"kind": "y"}}, {"a": {"kind": "y"}}),
    ],
)
def test_mappings_merge_and_another_kind_or_name_replaces(base: Any, over: Any, result: Any) -> None:
    assert merged(type_hints.node_of(base, AT), type_hints.node_of(over, AT)).plain() == result


def test_nodes_are_equal_when_they_say_the_same() -> None:
    assert codec.parse(b"a: [1]", "f.yaml") == Node({"a": Node((Node(1, AT),), AT)}, AT)
