"""YAML <-> specs: a spec survives the journey, and every fault is placed where its author would look."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from recallmap.search import codec
from recallmap.search.documents import json_schema, type_hints
from recallmap.search.documents.built_in import BUILT_IN
from recallmap.search.documents.nodes import Fault, Place, SpecError


@dataclass(frozen=True, kw_only=True)
class Wheel:
    kind: Literal["wheel"] = "wheel"
    spokes: int = 3
    load: float = 1.0

    def __post_init__(self) -> None:
        if self.spokes < 1:
            raise ValueError(f"spokes must be at least 1, got {self.spokes}")
        if self.load * self.spokes > 100:
            raise ValueError(f"the wheel breaks under {self.load * self.spokes}: lower load or spokes")


@dataclass(frozen=True, kw_only=True)
class Sail:
    """One class that serves two kinds."""

    kind: Literal["lateen", "square"]
    area: int | float = 0.5
    ropes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Bundle:
    kind: Literal["bundle"] = "bundle"
    times: int
    parts: tuple[Wheel | Sail | Bundle, ...]


Part = Wheel | Sail | Bundle


@dataclass(frozen=True, kw_only=True)
class Cart:
    name: str
    parts: tuple[Part, ...]
    front: Part | None = None
    painted: bool = False
    corner: tuple[float, float] = (0.0, 1.0)
    mode: Literal["slow", "fast"] = "slow"
    limit: float | None = 1.0
    warm: int | float = 0.05
    tags: Mapping[str, int] = field(default_factory=dict)
    spare: Wheel = field(default_factory=Wheel)


FULL = """\
name: mine
parts:
  - {kind: wheel, spokes: 4}
  - kind: bundle
    times: 2
    parts:
      - {kind: bundle, times: 1, parts: [{kind: square, area: 2, ropes: [1, 2]}]}
      - {kind: lateen, area: 0.25}
front: {kind: wheel, load: 1e-3}
painted: true
corner: [0, 0.5]
mode: fast
limit: null
warm: 100
tags: {no: 1, "2": 3}
"""


def read(text: str, hint: Any = Cart) -> Any:
    return type_hints.read(hint, codec.parse(text.encode(), "f.yaml"))


def faults(text: str, hint: Any = Cart) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(text, hint)
    return str(caught.value).splitlines()


# Laws. --------------------------------------------------------------------------------------------

CARTS = [
    Cart(name="least", parts=()),
    Cart(name="1e-3", parts=(Wheel(load=1e-9), Sail(kind="square")), tags={"true": 1, "~": 2, "": 3, "a: b": 4}),
    Cart(name="no", parts=(), limit=1e22, warm=1.0),
    Cart(name="012", parts=(), limit=-0.0, warm=7),
    Cart(name="2024-01-01", parts=(), front=Bundle(times=1, parts=(Bundle(times=2, parts=()),))),
    Cart(name="1:30\n# no comment\tö\u2028 'quoted' \"twice\" {x}: &a *b !c %d @e `f", parts=()),
    Cart(name=" padded ", parts=(), corner=(1 / 3, 2e-308)),
    Cart(name="0x10", parts=(), spare=Wheel(spokes=2**53 + 1, load=0)),
    Cart(name="-", parts=()),
    Cart(name="1e400", parts=()),
    Cart(name="9" * 60, parts=()),
    Cart(name="x" * 300 + " " + "y" * 300, parts=()),
]


@pytest.mark.parametrize("cart", CARTS, ids=lambda c: c.name[:12].strip() or "-")
def test_what_is_dumped_reads_back_equal(cart: Cart) -> None:
    assert read(codec.dump(cart)) == cart
    assert codec.from_plain(Cart, codec.plain(cart)) == cart
    assert codec.from_plain(Cart, json.loads(codec.canonical(cart))) == cart


@pytest.mark.parametrize("cart", CARTS, ids=lambda c: c.name[:12].strip() or "-")
def test_equal_specs_have_equal_keys_and_keys_are_digests(cart: Cart) -> None:
    assert codec.key(read(codec.dump(cart))) == codec.key(cart)
    assert re.fullmatch("[0-9a-f]{64}", codec.key(cart))


def test_the_canonical_text_is_that_of_plain_data() -> None:
    for spec in (*CARTS, CARTS[0].spare, codec.read_study("demo"), *codec.read_study("atlas_ablation").trials()[:4]):
        data = type_hints.plain(spec)
        assert codec.canonical(spec) == json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
        assert codec.canonical(spec) == codec.canonical(spec)


def test_every_difference_changes_the_key() -> None:
    assert len({codec.key(cart) for cart in CARTS}) == len(CARTS)
    assert codec.key(Cart(name="a", parts=(), warm=1)) != codec.key(Cart(name="a", parts=(), warm=1.0))


def test_a_whole_number_in_a_float_field_makes_the_same_key() -> None:
    assert codec.key(Cart(name="a", parts=(), limit=3)) == codec.key(Cart(name="a", parts=(), limit=3.0))


@dataclass(frozen=True, kw_only=True)
class Bell:
    """What carts of old were without."""

    kind: Literal["bell"] = "bell"
    tone: Literal["dull", "bright"] = field(default="dull", metadata={"later": True})


@dataclass(frozen=True, kw_only=True)
class Rung:
    bells: tuple[Bell, ...]
    spare: Bell = Bell()


def test_the_default_of_a_later_field_is_left_out_and_so_an_old_key_stays() -> None:
    old = {"bells": [{"kind": "bell"}], "spare": {"kind": "bell"}}
    rung = codec.from_plain(Rung, old)
    assert codec.plain(rung) == old
    assert codec.canonical(rung) == json.dumps(old, sort_keys=True, separators=(",", ":"))
    assert codec.key(codec.from_plain(Rung, {"bells": [{"tone": "dull"}]})) == codec.key(rung)


def test_another_value_of_a_later_field_is_said_and_makes_another_key() -> None:
    rung = Rung(bells=(Bell(tone="bright"), Bell()))
    assert codec.plain(rung)["bells"] == [{"kind": "bell", "tone": "bright"}, {"kind": "bell"}]
    assert codec.from_plain(Rung, codec.plain(rung)) == rung
    assert codec.key(rung) != codec.key(Rung(bells=(Bell(), Bell())))


def test_a_dump_says_later_fields_too() -> None:
    rung = Rung(bells=(Bell(),))
    assert codec.dump(rung).count("tone: dull") == 2
    assert read(codec.dump(rung), Rung) == rung


def test_the_whole_language_reads() -> None:
    cart = read(FULL)
    assert cart == Cart(
        name="mine",
        parts=(
            Wheel(spokes=4),
            Bundle(
                times=2,
                parts=(
                    Bundle(times=1, parts=(Sail(kind="square", area=2, ropes=(1, 2)),)),
                    Sail(kind="lateen", area=0.25),
                ),
            ),
        ),
        front=Wheel(load=1e-3),
        painted=True,
        corner=(0.0, 0.5),
        mode="fast",
        limit=None,
        warm=100,
        tags={"no": 1, "2": 3},
    )
    assert type(cart.corner[0]) is float
    assert type(cart.warm) is int


def test_a_kind_alone_stands_for_its_defaults() -> None:
    assert read("name: a\nparts: [wheel, square]\nfront: wheel\nspare: wheel").parts == (Wheel(), Sail(kind="square"))


def test_plain_says_every_field_and_kind_first() -> None:
    data = codec.plain(Sail(kind="lateen"))
    assert list(data.items()) == [("kind", "lateen"), ("area", 0.5), ("ropes", [])]


# Faults: text of the document -> all that is said about it. ---------------------------------------

KINDS = "'wheel', 'lateen', 'square' or 'bundle'"
SCHEMA_FAULTS = {
    "nothing there": (
        "{}",
        ["f.yaml:1:1: key 'name' is missing, expected text", "f.yaml:1:1: key 'parts' is missing, expected a list"],
    ),
    "a typing slip": (
        "name: a\nparts: []\npaintd: true",
        [
            "f.yaml:3:1: paintd: unknown key, expected name, parts, front, painted, corner, mode, limit, warm, "
            "tags, spare (did you mean 'painted'?)"
        ],
    ),
    "a key that one part alone has": (
        "name: a\nparts: [{kind: bundle, times: 1, parts: [wheel]}]\nspokes: 4",
        [
            "f.yaml:3:1: spokes: unknown key, expected name, parts, front, painted, corner, mode, limit, warm, "
            "tags, spare (did you mean 'parts[0].parts[0].spokes'?)"
        ],
    ),
    "a key that two parts have": (
        "name: a\nparts: [wheel, wheel]\nspokes: 4",
        [
            "f.yaml:3:1: spokes: unknown key, expected name, parts, front, painted, corner, mode, limit, warm, "
            "tags, spare"
        ],
    ),
    "a key of another kind": (
        "name: a\nparts:\n  - {kind: wheel, area: 3}",
        ["f.yaml:3:19: parts[0].area: unknown key, expected spokes, load"],
    ),
    "deep inside": (
        "name: a\nparts:\n  - kind: bundle\n    times: 1\n    parts:\n      - kind: wheel\n        spoke: 3",
        ["f.yaml:7:9: parts[0].parts[0].spoke: unknown key, expected spokes, load (did you mean 'spokes'?)"],
    ),
    "text for a whole number": (
        "name: a\nparts: [{kind: wheel, spokes: abc}]",
        ["f.yaml:2:31: parts[0].spokes: got text 'abc', expected a whole number"],
    ),
    "a fraction for a whole number": (
        "name: a\nparts: [{kind: wheel, spokes: 2.5}]",
        ["f.yaml:2:31: parts[0].spokes: got the number 2.5, expected a whole number"],
    ),
    "1e3 for a whole number": (
        "name: a\nparts: [{kind: wheel, spokes: 1e3}]",
        ["f.yaml:2:31: parts[0].spokes: got the number 1e3, expected a whole number (write 1000)"],
    ),
    "underscores": (
        "name: a\nparts: [{kind: wheel, spokes: 1_000}]",
        ["f.yaml:2:31: parts[0].spokes: got text '1_000', expected a whole number (write 1000)"],
    ),
    "a quoted number": (
        "name: a\nparts: []\nlimit: '1e-3'",
        ["f.yaml:3:8: limit: got text '1e-3', expected a number or null (write it without quotes)"],
    ),
    "a number beyond 64 bits": (
        "name: a\nparts: [{kind: wheel, spokes: 9223372036854775808}]",
        [
            "f.yaml:2:31: parts[0].spokes: got the number 9223372036854775808, expected a whole number "
            "between -9223372036854775807 and 9223372036854775807"
        ],
    ),
    "infinity": ("name: a\nparts: []\nlimit: .inf", ["f.yaml:3:8: limit: got text '.inf', expected a number or null"]),
    "no for a truth value": (
        "name: a\nparts: []\npainted: no",
        ["f.yaml:3:10: painted: got text 'no', expected true or false (write false)"],
    ),
    "1 for a truth value": (
        "name: a\nparts: []\npainted: 1",
        ["f.yaml:3:10: painted: got the number 1, expected true or false"],
    ),
    "true for a number": (
        "name: a\nparts: []\nlimit: true",
        ["f.yaml:3:8: limit: got true, expected a number or null"],
    ),
    "a number for text": (
        "name: 1e-3\nparts: []",
        ["f.yaml:1:7: name: got the number 1e-3, expected text (write '1e-3')"],
    ),
    "nothing for text": ("name:\nparts: []", ["f.yaml:1:6: name: got nothing, expected text"]),
    "a list for text": ("name: [a]\nparts: []", ["f.yaml:1:7: name: got a list, expected text"]),
    "text for a list": (
        "name: a\nparts: wheel",
        ["f.yaml:2:8: parts: got text 'wheel', expected a list (write [wheel])"],
    ),
    "text for a list of other things": (
        "name: a\nparts: [{kind: lateen, ropes: x}]",
        ["f.yaml:2:31: parts[0].ropes: got text 'x', expected a list"],
    ),
    "a number for a list": (
        "name: a\nparts: [{kind: lateen, ropes: 3}]",
        ["f.yaml:2:31: parts[0].ropes: got the number 3, expected a list (write [3])"],
    ),
    "a number for one of several mappings": (
        "name: a\nparts: [3]",
        ["f.yaml:2:9: parts[0]: got the number 3, expected a mapping"],
    ),
    "a mapping for a list": ("name: a\nparts: {a: 1}", ["f.yaml:2:8: parts: got a mapping, expected a list"]),
    "a short pair": ("name: a\nparts: []\ncorner: [1]", ["f.yaml:3:9: corner: got a list of 1, expected a list of 2"]),
    "a wrong item": (
        "name: a\nparts: []\ncorner: [1, x]",
        ["f.yaml:3:13: corner[1]: got text 'x', expected a number"],
    ),
    "a wrong choice": (
        "name: a\nparts: []\nmode: fats",
        ["f.yaml:3:7: mode: got text 'fats', expected 'slow' or 'fast' (did you mean 'fast'?)"],
    ),
    "an unknown kind": (
        "name: a\nparts: [{kind: weel}]",
        [f"f.yaml:2:16: parts[0].kind: unknown kind 'weel', expected {KINDS} (did you mean 'wheel'?)"],
    ),
    "an unknown kind alone": (
        "name: a\nparts: [weel]",
        [f"f.yaml:2:9: parts[0]: unknown kind 'weel', expected {KINDS} (did you mean 'wheel'?)"],
    ),
    "a kind that is a number": (
        "name: a\nparts: [{kind: 3}]",
        [f"f.yaml:2:16: parts[0].kind: got the number 3, expected {KINDS}"],
    ),
    "no kind": (
        "name: a\nparts: [{spokes: 3}]",
        [f"f.yaml:2:9: parts[0]: key 'kind' is missing, expected {KINDS} (did you mean 'wheel'?)"],
    ),
    "a kind as a key": (
        "name: a\nparts: [{wheel: {spokes: 3}}]",
        [f"f.yaml:2:9: parts[0]: key 'kind' is missing, expected {KINDS} (did you mean '{{kind: wheel, spokes: 3}}'?)"],
    ),
    "a kind as a key with what it must have": (
        "name: a\nparts: [{bundle: 2}]",
        [
            f"f.yaml:2:9: parts[0]: key 'kind' is missing, expected {KINDS} "
            "(did you mean '{kind: bundle, times: 2, parts: [...]}'?)"
        ],
    ),
    "a number for a mapping": (
        "name: a\nparts: []\nspare: 3",
        ["f.yaml:3:8: spare: got the number 3, expected a mapping"],
    ),
    "a wrong value of a mapping": (
        "name: a\nparts: []\ntags: {a: b}",
        ["f.yaml:3:11: tags.a: got text 'b', expected a whole number"],
    ),
    "what a spec refuses, at the dial that it names": (
        "name: a\nparts:\n  - kind: wheel\n    load: 2\n    spokes: 0",
        ["f.yaml:5:13: parts[0].spokes: spokes must be at least 1, got 0"],
    ),
    "what a spec refuses as a whole": (
        "name: a\nparts:\n  - {kind: wheel, load: 200}",
        ["f.yaml:3:5: parts[0]: the wheel breaks under 600.0: lower load or spokes"],
    ),
    "all at once": (
        "nam: a\nparts: [{kind: wheel, spokes: 0}, {kind: boat}]\npainted: yes",
        [
            "f.yaml:1:1: key 'name' is missing, expected text",
            "f.yaml:1:1: nam: unknown key, expected name, parts, front, painted, corner, mode, limit, warm, "
            "tags, spare (did you mean 'name'?)",
            "f.yaml:2:31: parts[0].spokes: spokes must be at least 1, got 0",
            f"f.yaml:2:42: parts[1].kind: unknown kind 'boat', expected {KINDS}",
            "f.yaml:3:10: painted: got text 'yes', expected true or false (write true)",
        ],
    ),
}


@pytest.mark.parametrize("case", SCHEMA_FAULTS)
def test_a_fault_is_placed_and_said(case: str) -> None:
    text, said = SCHEMA_FAULTS[case]
    assert sorted(faults(text)) == sorted(said)


def test_faults_come_from_top_to_bottom() -> None:
    lines = [int(line.split(":")[1]) for line in faults(SCHEMA_FAULTS["all at once"][0])]
    assert lines == sorted(lines)


YAML_FAULTS = {
    "a: 012": "f.yaml:1:4: a: got 012, which some read as octal: say 12, or '012' if it is text",
    "a: -007": "f.yaml:1:4: a: got -007, which some read as octal: say -7, or '-007' if it is text",
    "a: 1e400": "f.yaml:1:4: a: got 1e400, which is too large for a number",
    "a: " + "9" * 41: "f.yaml:1:4: a: got a number of 41 characters, expected at most 40",
    "a: 1\nb: 2\na: 3": "f.yaml:3:1: a: got this key twice, first at line 1, column 1; leave one out",
    "b: {a: 1, a: 2}": "f.yaml:1:11: b.a: got this key twice, first at line 1, column 5; leave one out",
    "a: &x 1": "f.yaml:1:4: a: got the anchor &x, expected none, as aliases are refused; leave it out",
    "a: *x": "f.yaml:1:4: a: got the alias *x, expected none; write out what it stands for",
    "<<: {a: 1}": "f.yaml:1:1: got the merge key '<<', expected text; write out what it stands for",
    "a: !!python/name:os.system x": (
        "f.yaml:1:4: a: got the tag tag:yaml.org,2002:python/name:os.system, expected none; leave it out"
    ),
    "a: 1\n---\nb: 1": "f.yaml:2:1: a second document starts here, expected one per file",
    "a:\n\tb: 1": "f.yaml:2:1: is no YAML: a tab, expected spaces",
    "a: [1, 2": "f.yaml:1:9: is no YAML: a '[' above is not closed, or a ',' is missing",
    "a: b: c": "f.yaml:1:5: is no YAML: a ':' that is out of place (quote text that holds ': ')",
    "a: 'x": "f.yaml:1:6: is no YAML: a quote above is not closed",
    "a: @x": "f.yaml:1:4: is no YAML: text that begins with @ needs quotes",
    "? [a]\n: 1": "f.yaml:1:3: got a list or a mapping as a key, expected text",
    "a: \x07": "f.yaml:1:4: character 0x7 may not stand in YAML",
    "": "f.yaml:1:1: is empty, expected a mapping",
    "# only words": "f.yaml:1:1: is empty, expected a mapping",
    "[" * 40 + "]" * 40: "f.yaml:1:34: deeper than 32 levels",
    'a: 1\nb: "\\UFFFFFFFF"': "f.yaml:2:1: is no YAML: a number that is too large",
    "%YAML " + "1" * 5000 + ".1\n---\na: 1": "f.yaml:1:1: is no YAML: a number that is too large",
    'a: "\\ud800"': "f.yaml:1:4: a: holds half of a character (a surrogate), write the character itself",
}


@pytest.mark.parametrize("text", YAML_FAULTS, ids=lambda t: repr(t[:14]))
def test_a_trap_of_yaml_is_closed(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        codec.parse(text.encode(), "f.yaml")
    assert str(caught.value) == YAML_FAULTS[text]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1.", 1.0),
        (".5", 0.5),
        ("+3", 3),
        ("-0", 0),
        ("0", 0),
        ("0.5", 0.5),
        ("no", "no"),
        ("Yes", "Yes"),
        ("off", "off"),
        ("True", "True"),
        ("Null", "Null"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("0o17", "0o17"),
        ("2024-01-01", "2024-01-01"),
        (".nan", ".nan"),
        ("1.2.3", "1.2.3"),
        ("true", True),
        ("~", None),
        ("null", None),
        ("'012'", "012"),
        ('"true"', "true"),
        ("=", "="),
    ],
)
def test_unquoted_text_means_what_it_looks_like(text: str, value: object) -> None:
    found = codec.parse(f"a: {text}".encode(), "f.yaml").plain()["a"]
    assert (type(found), found) == (type(value), value)


def test_bytes_that_are_no_utf8_are_placed() -> None:
    with pytest.raises(SpecError, match=r"f.yaml:2:4: byte 0xff is not UTF-8, save the file as UTF-8"):
        codec.parse(b"a: 1\nb: \xff", "f.yaml")


def test_a_bomb_is_refused_by_its_size() -> None:
    with pytest.raises(SpecError, match=r"^f\.yaml:1:1: larger than 256 KiB"):
        codec.parse(b"a: 1\n" * 100_000, "f.yaml")


def test_of_very_many_faults_as_many_are_told_as_people_read() -> None:
    with pytest.raises(SpecError) as caught:
        codec.parse("\n".join(f"a{n}: 0{n}" for n in range(500)).encode(), "f.yaml")
    lines = str(caught.value).splitlines()
    assert len(caught.value.faults) == 500
    assert lines[0].startswith("f.yaml:1:5: a0: got 00, which some read as octal")
    assert len(str(caught.value)) < 2000
    assert lines[-1] == f"... and {500 - len(lines) + 1} more"


def test_a_long_message_has_its_beginning_and_its_end() -> None:
    told = str(Fault(Place("f" * 5000, 3, 4), "a." * 3000, "x" * 4000 + " (did you mean 'y'?)"))
    assert told.startswith("fff")
    assert ":3:4: a.a." in told
    assert told.endswith("x (did you mean 'y'?)")
    assert len(told) < 1600


def test_of_very_many_choices_the_first_are_named() -> None:
    assert type_hints.either(["a", "b", "c"]) == "a, b or c"
    said = type_hints.either([f"choice {n}" for n in range(1000)])
    assert said.endswith("choice 39, ... (1,000 in all)")


def test_a_mark_of_byte_order_and_windows_lines_do_no_harm() -> None:
    assert codec.parse(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "f.yaml").plain() == {"a": 1, "b": 2}


# Python data as a source. -------------------------------------------------------------------------


def test_a_mapping_may_hold_specs_and_numbers_of_numpy() -> None:
    import numpy as np

    cart = codec.from_plain(
        Cart, {"name": "a", "parts": [{"kind": "wheel", "spokes": np.int64(5)}, Wheel()], "limit": np.float32(0.5)}
    )
    assert cart == Cart(name="a", parts=(Wheel(spokes=5), Wheel()), limit=0.5)


def _endless() -> dict[str, Any]:
    data: dict[str, Any] = {}
    data["a"] = data
    return data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"name": "a", "parts": [], "limit": math.nan},
            "Cart: limit: got the number nan, expected a number or null that is finite",
        ),
        ({"name": "a", "parts": [], "limit": object}, "Cart: got type, expected text, a number"),
        ({3: 4}, "Cart: got the key 3, expected text"),
        (_endless(), "Cart: deeper than 32 levels"),
        ({"name": "a", "parts": [], "wram": 1}, "Cart: wram: unknown key, .*did you mean 'warm'"),
    ],
)
def test_a_faulty_mapping_is_refused(data: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        codec.from_plain(Cart, data)


# Files and built-in names. ------------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere.yaml: no such file$"):
        codec.read_task(tmp_path / "nowhere.yaml")
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        codec.read_task(tmp_path)


def test_a_file_that_holds_no_mapping(tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("kind:mqar")
    with pytest.raises(
        SpecError, match=r"task.yaml:1:1: got 'kind:mqar', expected a mapping \(a space must follow a ':'\)"
    ):
        codec.read_task(file)


def test_a_task_by_its_kind_a_file_and_a_mapping(tmp_path: Path) -> None:
    alone = codec.read_task("mqar")
    file = tmp_path / "mine.yaml"
    file.write_text(codec.dump(alone))
    assert codec.read_task(file) == codec.read_task(str(file)) == codec.read_task({"kind": "mqar"}) == alone
    with pytest.raises(SpecError, match=r"^task: unknown kind 'mqra', expected .*\(did you mean 'mqar'\?\)"):
        codec.read_task("mqra")


# The schema for editors. --------------------------------------------------------------------------


def test_the_schema_knows_every_key_and_kind() -> None:
    found = json_schema.of(Cart)
    cart = found["$defs"]["Cart"]
    assert found["$ref"] == "#/$defs/Cart"
    assert cart["required"] == ["name", "parts"]
    assert cart["additionalProperties"] is False
    assert cart["properties"]["painted"] == {"type": "boolean", "default": False}
    assert cart["properties"]["mode"] == {"enum": ["slow", "fast"], "default": "slow"}
    assert {"$ref": "#/$defs/Bundle", "required": ["kind"]} in found["$defs"]["Bundle"]["properties"]["parts"]["items"][
        "anyOf"
    ]
    json.dumps(found)


@pytest.mark.parametrize("what", BUILT_IN)
def test_built_in_documents_are_packaged(what: str) -> None:
    root = Path(__file__).resolve().parents[3]
    package_data = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "package-data"
    ]
    packaged = {
        path
        for package, patterns in package_data.items()
        for pattern in patterns
        for path in (root / Path(*package.split(".")[1:])).glob(pattern)
    }
    found = {Path(str(place)).resolve() for place in codec.builtin(what).values()}
    assert found
    assert found <= packaged
