"""Patches of a study from its budget and the command line, and those that the space would undo."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from recallmap.search.documents import type_hints, yaml_text
from recallmap.search.documents.nodes import Fault, Node, Patch, SpecError, fault, patched
from recallmap.search.space.axis_values import axis_values
from recallmap.search.space.parameters import DIALS
from recallmap.search.study.reading import is_within, laid, named_arch, opened
from recallmap.search.study.spec import checked

LONGEST = 500  # characters of advice, beyond which it names only the places

_AXES = "space.axes."


def with_budget(study: Node, overrides: Sequence[Patch]) -> Node:
    """The study's document, patched by its budget and then by the command line. Raises SpecError; where the space would undo
    a patch, the error says what to write instead."""
    whole = _Laid(study, overrides)
    if whole.lost:
        raise SpecError(_instead(study, overrides, whole))
    return whole.study


class _Axis(NamedTuple):
    """An axis of a space, read before the space is.

    place   the mapping that it stands in: `space.spaces[2].axes`
    path    the path of the trial that it varies
    """

    place: str
    path: str
    values: Node


class _Laid:
    """The study with all patches applied, and the lost ones with the axes that undo them. Raises SpecError."""

    def __init__(self, study: Node, overrides: Sequence[Patch]) -> None:
        choice = [patch for patch in overrides if patch.path == "budget"]
        for patch in choice:
            study = patched(study, patch)
        patches = [*_chosen_budget(study), *(patch for patch in overrides if patch not in choice)]
        study = _with_arch(study)
        for patch in patches:
            _check_union(study.get("space"), patch)
            study = laid(study, patch, named_arch)
        self.study = study
        axes, said = _axes(study.get("space")), [patch.path for patch in overrides]
        of_budget = [patch.path for patch in patches if patch not in overrides]
        self.lost: list[tuple[Patch, list[_Axis]]] = []
        for patch in patches:
            is_said = patch in overrides
            by = _undone(patch, axes, said if is_said else [*of_budget, *said], whole=is_said)
            if by:
                self.lost.append((patch, by))


def _undone(patch: Patch, axes: Sequence[_Axis], said: Sequence[str], *, whole: bool) -> list[_Axis]:
    """The axes that would undo a patch of the trial, but for axes that are patched themselves; with `whole` also axes of the
    whole trial."""
    if not is_within(patch.path, "trial"):
        return []
    found = []
    for axis in axes:
        own = (f"{axis.place}.{patch.path}", f"{axis.place}.{axis.path}")
        if any(is_within(path, mine) for path in said for mine in own):
            continue
        if axis.path != "trial":
            undoes = is_within(patch.path, axis.path)
        else:
            undoes = whole and any(_says(node, patch.path.removeprefix("trial.")) for node in _mappings(axis.values))
        if undoes:
            found.append(axis)
    return found


def _instead(study: Node, overrides: Sequence[Patch], whole: _Laid) -> list[Fault]:
    """A fault for every lost patch, with advice that has been tried and is right: what to write instead, or besides. Where no
    advice works at all places that would undo a patch, it is tried at each."""
    mine = [(patch, by) for patch, by in whole.lost if patch in overrides]
    kept = [patch for patch in overrides if all(patch is not lost for lost, _ in mine)]
    advice = [(patch, text) for patch, by in mine for text in _assignments(patch, by)]
    refusal = _refusal(study, [*kept, *_patches(advice)])
    if refusal:
        advice = [one for one in advice if not _refusal(study, [*kept, *_patches([one])])]
    if advice and (not refusal or not _refusal(study, [*kept, *_patches(advice)])):
        besides = len(advice) > 1 and not _refusal(study, [*overrides, *_patches(advice)])
        told = {
            id(patch): _told(patch, [text for whose, text in advice if whose is patch], besides) for patch, _ in advice
        }
    else:
        told = {}
    texts = {id(p): f": say {' and '.join(_assignments(p, by))}" for p, by in whole.lost if p not in overrides}
    none = f"; said there it would be refused: {refusal}" if refusal else ""
    return [Fault(p.at, p.path, f"{_why(by)}{told.get(id(p), texts.get(id(p), none))}") for p, by in whole.lost]


def _patches(advice: Sequence[tuple[Patch, str]]) -> list[Patch]:
    return [yaml_text.override(text) for _, text in advice]


def _refusal(study: Node, overrides: Sequence[Patch]) -> str:
    """The first fault of a study under these overrides; "" where it has none."""
    try:
        whole = _Laid(study, overrides)
        if whole.lost:
            return f"{whole.lost[0][0].path}: {_why(whole.lost[0][1])}"
        checked(whole.study)
    except SpecError as error:
        return f"{error.faults[0].path}: {error.faults[0].message}"
    return ""


def _why(axes: Sequence[_Axis]) -> str:
    paths = list(dict.fromkeys(axis.path for axis in axes if axis.path != "trial"))
    varies = (
        f"varies {type_hints.either(paths).replace(' or ', ' and ')}"
        if paths
        else "lays settings over the trial that set it too"
    )
    return f"the space {varies}, so this would be lost"


def _assignments(patch: Patch, axes: Sequence[_Axis]) -> list[str]:
    """Assignments that set in these axes what the patch sets in the trial: other bounds, or another list of values. Where an
    axis varies more than that, it is a further axis after it."""
    value = _written(patch.value)
    found: dict[str, str] = {}
    for axis in axes:
        kind = next((kind for kind in DIALS if kind in axis.values), "")
        if axis.place == "space.dials" and axis.path == patch.path and kind in ("choice", "int", "float"):
            ends = value if kind == "choice" else f"{value}, {value}"
            found.setdefault(axis.place, f"space.dials.{patch.path}.{kind}=[{ends}]")
        else:
            place = "space.over" if axis.place == "space.dials" else axis.place
            found.setdefault(place, f"{place}.{patch.path}=[{value}]")
    return list(found.values())


def _told(patch: Patch, texts: Sequence[str], besides: bool) -> str:
    """`: set it there, too: --set ... --set ...`"""
    words = [f"{patch.at.source} {shlex.quote(text)}" for text in texts]
    how = "say there, too," if besides and len(texts) > 1 else "say instead"
    if sum(map(len, words)) <= LONGEST:
        return f": {how} {' '.join(words)}"
    if len(words[0]) > LONGEST:
        whole = shlex.quote(f"{texts[0].partition('=')[0]}=[...]")
        words[0] = f"{patch.at.source} {whole} with what was given between the brackets"
    if len(words) == 1:
        return f": {how} {words[0]}"
    places = [text.partition(f".{patch.path}=")[0] for text in texts]
    return f": {how} {words[0]} and so for {type_hints.either(places[1:]).replace(' or ', ' and ')}"


def _written(value: Node) -> str:
    """The value as it can stand in a list."""
    text = value.text
    if re.fullmatch(r"[\w.+-]+", text) and yaml_text.plain_scalar(text) == value.value:
        return text
    return json.dumps(value.plain())


def _check_union(space: Node | None, patch: Patch) -> None:
    """Raise SpecError for a patch of the axes of a union, which only its spaces have."""
    spaces = None if space is None else space.get("spaces")
    if patch.path.startswith(_AXES) and spaces is not None and isinstance(spaces.value, tuple):
        own = f"space.spaces[0].axes.{patch.path.removeprefix(_AXES)}"
        why = f"a union has no axes, its spaces have: set {own}, and so to spaces[{len(spaces.value) - 1}]"
        raise fault(patch.at, patch.path, why)


def _mappings(values: Node) -> tuple[Node, ...]:
    """The mappings that an axis `trial` lays over the whole trial; a faulty one is reported elsewhere."""
    try:
        return axis_values("trial", values)
    except SpecError:
        return ()


def _says(node: Node, path: str) -> bool:
    """True where a mapping, laid over a trial, changes the value at the path."""
    if not isinstance(node.value, dict):
        return True
    return any(
        key == path
        or key.startswith(f"{path}.")
        or (path.startswith(f"{key}.") and _says(part, path.removeprefix(f"{key}.")))
        for key, part in node.value.items()
    )


def _with_arch(study: Node) -> Node:
    trial = study.get("trial")
    return study if trial is None else study.with_key("trial", opened(trial, named_arch), study.keys["trial"])


def _chosen_budget(study: Node) -> tuple[Patch, ...]:
    budget, budgets = study.get("budget"), study.get("budgets")
    if budget is None or budget.value is None:
        return ()
    known = list(budgets.value) if budgets is not None and isinstance(budgets.value, dict) else []
    if not isinstance(budget.value, str) or budgets is None or budget.value not in known:
        may = f"expected {type_hints.either(known)}" if known else "the study has no budgets"
        raise fault(budget.place, "budget", f"no budget '{budget.text}', {may}{type_hints.guess(budget.text, known)}")
    patches = budgets.value[budget.value]
    if not isinstance(patches.value, dict):
        raise fault(patches.place, f"budgets.{budget.value}", "expected a mapping, a value by path of the study")
    return tuple(Patch(path, value, patches.keys[path]) for path, value in patches.value.items())


def _axes(space: Node | None, called: str = "space") -> list[_Axis]:
    found: list[_Axis] = []
    for key in ("axes", "dials", "over"):
        axes = None if space is None else space.get(key)
        if axes is not None and isinstance(axes.value, dict):
            found += [_Axis(f"{called}.{key}", path, values) for path, values in axes.value.items()]
    spaces = None if space is None else space.get("spaces")
    inner = spaces.value if spaces is not None and isinstance(spaces.value, tuple) else ()
    return found + [axis for i, part in enumerate(inner) for axis in _axes(part, f"{called}.spaces[{i}]")]
