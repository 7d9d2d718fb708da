"""Inline and brief fields: parts of a spec that a document says beside it, or by their kinds alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from recallmap.search import codec
from recallmap.search.documents import json_schema, type_hints
from recallmap.search.documents.nodes import SpecError


@dataclass(frozen=True, kw_only=True)
class Oar:
    kind: Literal["oar"] = "oar"
    blade: int = field(default=2, metadata={"later": True})

    def __post_init__(self) -> None:
        if self.blade < 1:
            raise ValueError(f"blade must be at least 1, got {self.blade}")


@dataclass(frozen=True, kw_only=True)
class Motor:
    kind: Literal["motor"] = "motor"
    power: float


@dataclass(frozen=True, kw_only=True)
class Boat:
    drive: Oar | Motor = field(metadata={"inline": True})
    length: int
    spares: tuple[Oar | Motor, ...] = field(default=(), metadata={"brief": True})


BOATS = [
    ({"kind": "oar", "length": 3, "spares": []}, Boat(drive=Oar(), length=3)),
    ({"kind": "oar", "blade": 4, "length": 3, "spares": ["oar"]}, Boat(drive=Oar(blade=4), length=3, spares=(Oar(),))),
    (
        {"kind": "motor", "power": 2.0, "length": 3, "spares": ["oar", {"kind": "oar", "blade": 1}]},
        Boat(drive=Motor(power=2), length=3, spares=(Oar(), Oar(blade=1))),
    ),
]


@pytest.mark.parametrize(("document", "boat"), BOATS)
def test_the_fields_of_an_inline_spec_stand_beside_those_of_the_one_that_has_it(
    document: dict[str, Any], boat: Boat
) -> None:
    assert codec.from_plain(Boat, document) == boat
    assert codec.plain(boat) == document
    assert next(iter(codec.plain(boat))) == "kind"
    assert codec.canonical(boat) == json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert type_hints.read(Boat, codec.parse(codec.dump(boat).encode(), "f.yaml")) == boat


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"kind": "oar", "length": 3, "power": 1}, "power: unknown key, expected blade, length, spares"),
        ({"kind": "motor", "length": 3}, "key 'power' is missing, expected a number"),
        ({"kind": "oar", "blade": 0, "length": "x"}, "blade: blade must be at least 1, got 0\n.*length: got text 'x'"),
        ({"kind": "sail", "length": 3}, "kind: unknown kind 'sail', expected 'oar' or 'motor'"),
        ({"length": 3}, "key 'kind' is missing, expected 'oar' or 'motor'"),
        ({"kind": "oar", "length": 3, "drive": {"kind": "oar"}}, "drive: unknown key, expected blade, length, spares"),
        ({"kind": "oar", "length": 3, "spares": [{"kind": "oar", "blade": 0}]}, r"spares\[0\].blade: blade must be at"),
    ],
)
def test_a_slip_beside_or_within_an_inline_spec_is_reported_at_its_place(document: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        codec.from_plain(Boat, document)


def test_the_schema_has_a_form_for_each_inline_spec() -> None:
    found = json_schema.of(Boat | Oar)
    assert [choice.get("$ref") for choice in found["anyOf"]][:3] == [
        "#/$defs/Boat.Oar",
        "#/$defs/Boat.Motor",
        "#/$defs/Oar",
    ]
    assert list(found["$defs"]["Boat.Motor"]["properties"]) == ["kind", "power", "length", "spares"]
    assert found["$defs"]["Boat.Motor"]["required"] == ["power", "length"]
