"""Reading the trials of a study: each point is laid over the base trial, and faults name their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from recallmap.search.documents import built_in, outside, type_hints
from recallmap.search.documents.nodes import Fault, Node, Patch, Place, SpecError, patched
from recallmap.search.documents.type_hints import Memo, Opener
from recallmap.search.space.axis_values import Point
from recallmap.search.trials import Trial
from recallmap.search.trials.single import TrialSpec

ARCH = "trial.arch"


class TrialReader:
    """A reader of the trials of one study. Parts that they share are read once."""

    def __init__(self, base: Node) -> None:
        self.archs: dict[tuple[str, str], Node] = {}
        self.memo: Memo = {}
        self.openers = dict.fromkeys(built_in.openers(), self.open_arch)
        whole = Node({"trial": opened(base, self.open_arch)}, base.place, {"trial": base.place})
        self.base = whole
        self.walk: list[tuple[Patch | None, Node, tuple[Fault, ...]]] = [(None, whole, ())]

    def trial(self, point: Point) -> Trial:
        node, found = self._laid(point)
        trial, faults = node.value["trial"], list(found)
        try:
            sort = Trial if "kind" in trial else TrialSpec
            spec: Trial = type_hints.read(sort, trial, openers=self.openers, memo=self.memo)
        except SpecError as error:
            faults += [Fault(f.place, _of_trial(f.path), f.message) for f in error.faults]
        if faults:
            raise SpecError(faults)
        return spec

    def document(self, point: Point) -> Node:
        """The trial of a point before it is read. Raises SpecError where a patch leads nowhere."""
        node, faults = self._laid(point)
        if faults:
            raise SpecError(faults)
        trial: Node = node.value["trial"]
        return trial

    def _laid(self, point: Point) -> tuple[Node, tuple[Fault, ...]]:
        """The trial with the patches of a point laid over it, and their faults. Neighbouring points of a grid differ in their
        last patches: the shared ones are kept from the point before, so that their parts are read once."""
        same = 0
        while same < min(len(point), len(self.walk) - 1) and self.walk[same + 1][0] is point[same]:
            same += 1
        del self.walk[same + 1 :]
        for patch in point[same:]:
            _, node, faults = self.walk[-1]
            try:
                node = laid(node, patch, self.open_arch)
            except SpecError as error:
                faults = (*faults, *error.faults)
            self.walk.append((patch, node, faults))
        return self.walk[-1][1:]

    def open_arch(self, node: Node) -> Node:
        named = (node.place.source, node.value)
        if named not in self.archs:
            self.archs[named] = named_arch(node)
        return self.archs[named]


def named_arch(node: Node) -> Node:
    """The architecture that a study names, after the code that it uses was executed."""
    return outside.ready(built_in.open_arch(node))


def opened(trial: Node, open_arch: Opener) -> Node:
    """The trial with its architecture written out, so that a patch can reach inside. One that cannot be opened stays a name:
    reading the trial reports that with all other faults."""
    arch = trial.get("arch")
    if arch is None or not isinstance(arch.value, str):
        return trial
    try:
        return trial.with_key("arch", open_arch(arch), trial.keys["arch"])
    except SpecError:
        return trial


def laid(whole: Node, patch: Patch, open_arch: Opener) -> Node:
    """A document under whose key `trial` a trial may stand, with a patch laid over it and the architecture written out. Raises
    SpecError. What reaches into an architecture that cannot be opened is left out, so that its name is the only fault of it."""
    name = _arch_of(whole)
    if name is not None and isinstance(name.value, str) and patch.path.startswith((f"{ARCH}.", f"{ARCH}[")):
        return whole
    whole = patched(whole, patch)
    trial, arch = whole.get("trial"), _arch_of(whole)
    if trial is None:
        return whole
    spelled_out = name is not None and arch is not None and arch.get("kind") is name  # for what lies over it
    if name is not None and spelled_out:
        trial = trial.with_key("arch", name, trial.keys["arch"])
    return whole.with_key("trial", opened(trial, open_arch), whole.keys["trial"])


def _arch_of(whole: Node) -> Node | None:
    trial = whole.get("trial")
    return None if trial is None else trial.get("arch")


def at_their_axes(base: Node, faulty: Sequence[tuple[Point, Fault]], points: int) -> Iterator[Fault]:
    """Move a fault of the base that only some points have to the axis that brought it."""
    suffering = Counter(f for _, f in faulty)
    places = set(_places(base))
    for point, f in faulty:
        guilty = [p.value.place for p in point if is_within(p.path, f.path) or p.path == "trial"]
        is_axis = guilty and f.place in places and suffering[f] < points
        yield Fault(guilty[-1], f.path, f.message) if is_axis else f


def _places(node: Node) -> Iterator[Place]:
    yield node.place
    parts = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, tuple) else ()
    for part in parts:
        yield from _places(part)


def _of_trial(path: str) -> str:
    return f"trial.{path}" if path else "trial"


def is_within(path: str, whole: str) -> bool:
    """True where a path is another, or a part of it."""
    return path == whole or path.startswith((f"{whole}.", f"{whole}["))
