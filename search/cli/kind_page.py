"""One kind of mixer, task or sampler: what it is, its options, and a line of YAML that uses it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from recallmap.search.cli import catalogue
from recallmap.search.cli.terminal import Terminal
from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Place, fault

FAR = 2**40  # beyond the range of any option that has one

_ROW = re.compile(r"(?P<names>\w+(?:, \w+)*) {2,}(?P<meaning>\S.*)")  # of options in a docstring

_RANGE = re.compile(r"(?P<name>\w+) must be (?P<range>.+), got .+")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Kinds of which one is shown.

    noun   what one is, and the column of its kind in its row
    row    of a kind and its spec
    union  of their specs
    line   of YAML that uses one, with %s for what stands in its mapping
    """

    noun: str
    row: Callable[[str, Any], catalogue.Row]
    union: Callable[[], Any]
    line: str


def _mixers() -> Any:
    from recallmap.arch.mixers import Mixer

    return Mixer


def _tasks() -> Any:
    from recallmap.synth.tasks import Task

    return Task


def _samplers() -> Any:
    from recallmap.search.samplers import Sampler

    return Sampler


LEARNING_RATE = "dials: {trial.training.lr: {float: [1e-4, 1e-2], log: true}}"

FAMILIES = {
    "mixers": Family(
        noun="mixer", row=catalogue.row_of_mixer, union=_mixers, line="stack: [{kind: block, mixer: {%s}}]"
    ),
    "tasks": Family(noun="task", row=catalogue.row_of_task, union=_tasks, line="task: {%s}"),
    "samplers": Family(
        noun="sampler",
        row=catalogue.row_of_sampler,
        union=_samplers,
        line=f"space: {{%s, points: 64, {LEARNING_RATE}}}",
    ),
}


def row_of(what: str, kind: str) -> catalogue.Row:
    """The row of a kind in its listing, with what it is (`about`), the `yaml` that uses it, and instead of its options'
    defaults a mapping each: type, range, default, meaning. Raises SpecError where there is no such kind."""
    family = FAMILIES.get(what)
    if family is None:
        raise fault(
            Place(f"list {what}"),
            "",
            f"got '{kind}', but only of {', '.join(FAMILIES)} a single one is shown; try: recallmap check {kind}",
        )
    spec = type_hints.kinds_of(family.union()).get(kind)
    if spec is None:
        known = sorted(type_hints.kinds_of(family.union()))
        raise fault(
            Place(f"list {what}"),
            "",
            f"no {family.noun} is called '{kind}'{type_hints.guess(kind, known)}; all of them: recallmap list {what}",
        )
    row = family.row(kind, spec)
    defaults = row.pop("options")
    row.pop("needed")
    meanings, hints = _meanings(spec), type_hints.hints_of(spec)
    options = {
        field.name: {
            "type": _type(hints[field.name]),
            "range": _range(spec, field.name, hints[field.name]),
            **({"default": defaults[field.name]} if field.name in defaults else {}),
            "meaning": meanings.get(field.name, ""),
        }
        for field in type_hints.dials(spec)
        if field.name != "kind"
    }
    shown = {name: one["default"] for name, one in options.items() if one.get("default") is not None}
    first = dict(list(shown.items())[:2])
    mapping = ", ".join([f"kind: {kind}", *(f"{name}: {_yaml(value)}" for name, value in first.items())])
    return {**row, "about": _about(spec), "options": options, "yaml": family.line % mapping}


def show(what: str, kind: str, console: Terminal) -> None:
    """Print the page of a kind. Raises SpecError where there is no such kind."""
    row = row_of(what, kind)
    noun = FAMILIES[what].noun
    console.say(f"{noun} {kind}")
    for paragraph in row["about"]:
        console.say("")
        console.say(paragraph, hang=0)
    console.say("")
    for name, value in row.items():
        if name in (noun, "about", "options", "yaml") or value in ("", (), [], {}):
            continue
        console.say(
            f"{name.replace('_', ' ')}: {'; '.join(value) if isinstance(value, list | tuple) else _said(value)}"
        )
    console.say("")
    console.say("options:" if row["options"] else "options: none")
    for line, hang in _lines_of(row["options"]):
        console.say(line, hang=hang)
    console.say("")
    console.say(row["yaml"], hang=4)


def _lines_of(options: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    for name, one in options.items():
        default = f" = {_yaml(one['default'])}" if "default" in one else ", which must be given"
        bounds = f", {one['range']}" if one["range"] else ""
        yield f"  {name}{default}   ({one['type']}{bounds})", 6
        if one["meaning"]:
            yield f"      {one['meaning']}", 6


def _about(spec: type) -> list[str]:
    """The paragraphs of a docstring, without the rows of its options."""
    paragraphs = []
    for text in re.split(r"\n\s*\n", _doc(spec)):
        lines = text.splitlines()
        if lines and not any(_ROW.fullmatch(line) for line in lines):
            paragraphs.append(" ".join(text.split()))
    return paragraphs


def _doc(spec: type) -> str:
    """The own docstring of a class, or that of the first of its bases that has one; not the one that a dataclass makes."""
    for one in spec.__mro__:
        text = vars(one).get("__doc__")
        if text and not text.startswith(f"{one.__name__}(") and one is not object:
            return inspect.cleandoc(text)
    return ""


def _meanings(spec: type) -> dict[str, str]:
    """The meanings of options, from the rows of the docstrings of a class and its bases."""
    found: dict[str, str] = {}
    for one in reversed(spec.__mro__):
        names: list[str] = []
        for line in inspect.cleandoc(vars(one).get("__doc__") or "").splitlines():
            if row := _ROW.fullmatch(line):
                names = row["names"].split(", ")
                found |= dict.fromkeys(names, row["meaning"])
            elif names and line.startswith("  "):
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
            else:
                names = []
    return {name: re.sub(r"\bNone\b", "null", meaning) for name, meaning in found.items()}  # the word of YAML


def _type(hint: Any) -> str:
    kinds = [f"kind '{kind}'" for kind in type_hints.kinds_of(hint)]
    others = [type_hints.word(one) for one in type_hints.members_of(hint) if not is_dataclass(one)]
    return type_hints.either(list(dict.fromkeys([*kinds, *others])) or [type_hints.word(hint)])


def _range(spec: Any, name: str, hint: Any) -> str:
    """The range of a number, as the spec itself says it where a value lies beyond; empty where it has none."""
    kinds = [kind for kind in (int, float) if kind in type_hints.members_of(hint)]
    if not kinds or type_hints.needed(spec):
        return ""
    said = []
    for far in (-FAR, FAR):
        try:
            spec(**{name: kinds[0](far)})
        except ValueError as error:
            row = _RANGE.fullmatch(str(error))
            said += [row["range"]] if row and row["name"] == name else []
        except ArithmeticError:  # it computes with the value before it looks at it
            continue
    return " and ".join(dict.fromkeys(said))


def _said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else _yaml(value)


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) and re.fullmatch(r"[a-z_]+", value) else json.dumps(value)
