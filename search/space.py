"""Which paths of a trial may vary, over what; how the points of a space are proposed is another room's work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from search import codec
from search.document import Fault, Node, Patch, Place, SpecError, fault

_NOWHERE = Place("space")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of the values of its axes; the first axis varies slowest. No axes: one point, the base trial.

    axes  a list of values by path (`trial.training.lr`, `trial.arch.stack[0].mixer.heads`, `trial` itself). A mapping
          is laid over what stands there, key by key; a mapping of another kind or name replaces it.
          {suite: mad, tier: smoke}, alone or in the list, stands for the settings of that tier.
    """

    kind: Literal["grid"] = "grid"
    axes: Node = field(default_factory=lambda: Node({}, _NOWHERE))

    def __post_init__(self) -> None:
        if not isinstance(self.axes.value, dict):
            raise fault(self.axes.place, "axes", "may come a mapping, a list of values by path")
        faults = []
        for path, values in self.axes.value.items():
            where = f"axes.{path}"
            if path != "trial" and not path.startswith("trial."):
                message = f"an axis is a path that begins with trial (did you mean 'trial.{path}'?)"
                faults.append(Fault(self.axes.keys[path], where, message))
            try:
                axis_values(path, values)
            except SpecError as error:
                faults += [f if f.path else Fault(f.place, where, f.message) for f in error.faults]
        if faults:
            raise SpecError(faults)

    def axis(self, path: str) -> tuple[Patch, ...]:
        """The choices of one axis."""
        at = self.axes.keys[path]
        return tuple(Patch(path, value, at) for value in axis_values(path, self.axes.value[path]))


@dataclass(frozen=True, kw_only=True)
class Union:
    """The points of several spaces, one space after the other."""

    kind: Literal["union"] = "union"
    spaces: tuple[Grid | Union, ...]

    def __post_init__(self) -> None:
        if not self.spaces:
            raise ValueError("spaces must hold at least one space, got none")


Space = Grid | Union


def axis_values(path: str, values: Node) -> tuple[Node, ...]:
    """The values of an axis, suites written out. Raises SpecError."""
    if "suite" in values:
        return _suite(path, values)
    if not isinstance(values.value, tuple):
        raise fault(values.place, "", "may come a list of values, or {suite: NAME, tier: TIER} for the axis trial")
    if not values.value:
        raise fault(values.place, "", "an axis must hold at least one value, got none")
    found: list[Node] = []
    for value in values.value:
        found += _suite(path, value) if "suite" in value else [value]
    wrong = [v for v in found if path == "trial" and not isinstance(v.value, dict)]
    if wrong:
        raise SpecError(Fault(v.place, "", "a value of the axis trial is a mapping such as {seed: 1}") for v in wrong)
    return tuple(found)


def _suite(path: str, said: Node) -> tuple[Node, ...]:
    if path != "trial":
        raise fault(said.place, "", "a suite says whole settings: put it under the axis trial")
    unknown = [key for key in said.value if key not in ("suite", "tier")]
    if unknown:
        raise fault(said.keys[unknown[0]], "", f"unknown key '{unknown[0]}', may come suite, tier")
    name, tier = said.get("suite"), said.get("tier")
    if name is None or tier is None or not isinstance(name.value, str) or not isinstance(tier.value, str):
        raise fault(said.place, "", "may come {suite: NAME, tier: TIER}, both text")
    return codec.settings_of(codec.open_named(name, "suite"), tier.value)
