"""Values of a grid's axes: lists, suites, `every` mixer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from recallmap.search.documents import built_in, type_hints
from recallmap.search.documents.nodes import Fault, Node, Patch, Place, SpecError, fault

NOWHERE = Place("space")

Point = tuple[Patch, ...]


def axis_values(path: str, values: Node) -> tuple[Node, ...]:
    """The values of an axis, suites written out. Raises SpecError."""
    if "suite" in values:
        return _suite(path, values)
    if not isinstance(values.value, tuple):
        raise fault(values.place, "", "expected a list of values, or {suite: NAME, tier: TIER} for the axis trial")
    if not values.value:
        raise fault(values.place, "", "an axis must hold at least one value, got none")
    found: list[Node] = []
    for value in values.value:
        found += _suite(path, value) if "suite" in value else written_out(value)
    wrong = [v for v in found if path == "trial" and not isinstance(v.value, dict)]
    if wrong:
        raise SpecError(Fault(v.place, "", "a value of the axis trial is a mapping such as {seed: 1}") for v in wrong)
    return tuple(found)


def axis_faults(axes: Node, called: str) -> list[Fault]:
    if not isinstance(axes.value, dict):
        return [Fault(axes.place, called, "expected a mapping, a list of values by path")]
    faults = []
    for path, values in axes.value.items():
        where = f"{called}.{path}"
        if not is_of_trial(path):
            faults.append(Fault(axes.keys[path], where, begin_with_trial("an axis", path)))
        try:
            axis_values(path, values)
        except SpecError as error:
            faults += [f if f.path else Fault(f.place, where, f.message) for f in error.faults]
    return faults


def is_of_trial(path: str) -> bool:
    return path == "trial" or path.startswith("trial.")


def begin_with_trial(what: str, path: str) -> str:
    return f"{what} is a path that begins with trial (did you mean 'trial.{path}'?)"


def written_out(said: Node) -> tuple[Node, ...]:
    """The values that {every: mixer} stands for; anything else stands for itself."""
    if "every" not in said:
        return (said,)
    from recallmap.arch.mixers import Mixer

    unknown = [key for key in said.value if key not in ("every", "but", "as", "having")]
    if unknown:
        raise fault(said.keys[unknown[0]], "", f"unknown key '{unknown[0]}', expected every, but, as, having")
    specs = type_hints.kinds_of(Mixer)
    every = said.value["every"]
    whole = sorted(kind for kind, spec in specs.items() if not type_hints.needed(spec))
    kinds = whole if every.value == "mixer" else _kinds_said(every, specs, "'mixer', or a list of mixers")
    if "but" in said:
        left_out = _kinds_said(said.value["but"], specs, "a list of mixers")
        kinds = [kind for kind in kinds if kind not in left_out]
    if not kinds:
        raise fault(said.place, "", "no mixer is left, expected at least one")
    form, having = said.get("as"), _parameters_to_have(said, [specs[kind] for kind in kinds])
    return tuple(
        _kind_alone(kind, said.place) if form is None else _filled(form, kind, _known_to(specs[kind], having))
        for kind in kinds
    )


def _kinds_said(said: Node, specs: Mapping[str, type], wanted: str) -> list[str]:
    """A list of mixers."""
    if not isinstance(said.value, tuple):
        raise fault(said.place, "", f"got {json.dumps(said.plain())}, expected {wanted}")
    for one in said.value:
        if not isinstance(one.value, str) or one.value not in specs:
            raise fault(one.place, "", f"no mixer {json.dumps(one.plain())}{type_hints.guess(one.text, list(specs))}")
    return [one.value for one in said.value]


def _parameters_to_have(said: Node, specs: Sequence[type]) -> Node:
    having = said.get("having") or Node({}, said.place, {})
    if "having" in said and "as" not in said:
        raise fault(said.keys["having"], "", "'having' needs 'as', which says where the parameters go")
    if not isinstance(having.value, dict):
        raise fault(
            having.place, "", f"got {json.dumps(having.plain())}, expected parameters of mixers, such as {{heads: 2}}"
        )
    names = sorted({f.name for spec in specs for f in type_hints.dials(spec)} - {"kind"})
    for name in having.value:
        if name not in names:
            raise fault(having.keys[name], "", f"no mixer has a parameter '{name}'{type_hints.guess(name, names)}")
    return having


def _known_to(spec: type, having: Node) -> Node:
    """The parameters that this mixer has."""
    own = {f.name for f in type_hints.dials(spec)}
    return Node({name: part for name, part in having.value.items() if name in own}, having.place, having.keys)


def _kind_alone(kind: str, place: Place) -> Node:
    return Node({"kind": Node(kind, place, text=kind)}, place, {"kind": place})


def _filled(form: Node, kind: str, having: Node) -> Node:
    """The document with a kind wherever "*" stands, and with these parameters where it is the kind of a mapping."""
    if isinstance(form.value, dict):
        filled = {key: _filled(part, kind, having) for key, part in form.value.items()}
        if form.get("kind") is not None and form.value["kind"].value == "*":
            return Node({**having.value, **filled}, form.place, {**having.keys, **form.keys})
        return Node(filled, form.place, form.keys)
    if isinstance(form.value, tuple):
        return Node(tuple(_filled(part, kind, having) for part in form.value), form.place)
    if isinstance(form.value, str) and "*" in form.value:
        whole = form.value.replace("*", kind)
        return Node(whole, form.place, text=whole)
    return form


def _suite(path: str, said: Node) -> tuple[Node, ...]:
    if path != "trial":
        raise fault(said.place, "", "a suite has whole settings: put it under the axis trial")
    unknown = [key for key in said.value if key not in ("suite", "tier")]
    if unknown:
        raise fault(said.keys[unknown[0]], "", f"unknown key '{unknown[0]}', expected suite, tier")
    name, tier = said.get("suite"), said.get("tier")
    if name is None or tier is None or not isinstance(name.value, str) or not isinstance(tier.value, str):
        raise fault(said.place, "", "expected {suite: NAME, tier: TIER}, both text")
    return built_in.settings_of(built_in.open_named(name, "suite"), tier.value)
