"""Packing trials into cohorts: which train together, and how many a device has room for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from recallmap.results.analysis.labels import counted
from recallmap.search.documents import content_key
from recallmap.search.trials import Trial, memory_needs
from recallmap.search.trials.single import TrialSpec

# For cohorts on a GPU. `recallmap bench step` on an H200: the cost of a member's step falls up to about so many tokens.
SATURATING = 2**17  # tokens of all members in one step

FEWEST, MOST = 8, 64  # members

SHARE = 0.25  # of the memory: a GPU may train several cohorts, and deep memories take more than `bytes` says

SMALL_GPU = 40 * 2**30  # bytes; of a cluster's GPUs, which the driver does not see

Room = Callable[[Trial], int]  # how many trials like this one a cohort has at most


# A cohort's padded work over the work of its members, at most. On a GPU a member that is padded, or through and still in
# its lane, costs what its neighbours cost; a cohort saves the launches of the others, several times as much. On a CPU
# nothing is padded.
PADDED = 1.25


def pack(specs: Sequence[Trial], room: Room, saved: Sequence[frozenset[str]] = ()) -> list[list[int]]:
    """Pack trials into cohorts of as many members as there is room for: indices into `specs`, by first member.

    Trials of one shape are taken by their numbers of steps and of logits, the smallest first, and a cohort is closed where
    one more would make padding cost more than PADDED allows. A family shares its first phase and stays together, even where
    it is larger than that. Learned twice on a GPU, the phase would differ in its last digits, and what follows could not be
    compared seed by seed. Trials whose keys are in one set of `saved` stay together, too, and with no others: they have one
    checkpoint."""
    keys = [content_key.key(spec) for spec in specs] if saved else []
    held = {key: number for number, own in reversed(list(enumerate(saved))) for key in own}
    groups: dict[Hashable, dict[Hashable, list[int]]] = {}
    for index, spec in enumerate(specs):
        together = held.get(keys[index]) if saved else None
        groups.setdefault((spec.kind, spec.shape, together), {}).setdefault(spec.family, []).append(index)
    cohorts: list[list[int]] = []
    for families in groups.values():
        loads = _loads([specs[index] for family in families.values() for index in family])
        load_of = dict(zip((index for family in families.values() for index in family), loads, strict=True))
        opened: _Opened | None = None
        for family in sorted(families.values(), key=lambda family: load_of[family[0]].order):
            most = min(room(specs[index]) for index in family)
            wider = _Opened.of([load_of[index] for index in family], most, opened)
            if opened is None or not wider.fits:
                cohorts.append(list(family))
                opened = _Opened.of([load_of[index] for index in family], most)
            else:
                cohorts[-1] += family
                opened = wider
    return sorted(sorted(cohort) for cohort in cohorts)


def shared_out(
    specs: Sequence[Trial],
    cohorts: Sequence[Sequence[int]],
    places: int,
    fewest: Room,
    saved: Sequence[frozenset[str]] = (),
) -> list[list[int]]:
    """The cohorts for so many places that train at once: one that is more than a place's share of all the work, and so would
    be alone at the end, is halved until it is not, or its halves would be `fewest`, which keep a device busy, no more.
    Families and `saved` stay whole, as in `pack`."""
    keys = [content_key.key(spec) for spec in specs] if saved else []
    held = frozenset().union(*saved)
    share = sum(spec.effort for spec in specs) / places

    def parts(cohort: Sequence[int]) -> list[list[int]]:
        own = [specs[index] for index in cohort]
        half = (len(own) + 1) // 2
        if (
            places == 1
            or sum(spec.effort for spec in own) <= share
            or len(own) // 2 < max(map(fewest, own))
            or (saved and keys[cohort[0]] in held)
        ):
            return [list(cohort)]
        halves = [[cohort[index] for index in part] for part in pack(own, at_most(half))]
        return [list(cohort)] if len(halves) == 1 else [whole for part in halves for whole in parts(part)]

    return sorted(part for cohort in cohorts for part in parts(cohort))


def why_apart(one: Sequence[Trial], other: Sequence[Trial], room: Room) -> str:
    """The reason why two cohorts of one shape are not one, in words."""
    loads = _loads([*one, *other])
    most = min(room(spec) for spec in (*one, *other))
    if len(one) + 1 > most or len(other) + 1 > most:
        return f"room for {counted(most, 'member')}"
    sizes = {
        "steps": [spec.steps for spec in (*one, *other)],
        "vocabulary": [spec.task.shape[1] for spec in (*one, *other)],
        "positions read out": [load.places for load in loads],
    }
    wide = [f"{name} {min(values):,} to {max(values):,}" for name, values in sizes.items() if len(set(values)) > 1]
    return f"{', '.join(wide)}: padding would cost more than {PADDED - 1:.0%}"


@dataclass(frozen=True, kw_only=True)
class _Load:
    """What a member's training costs: steps, and in each the bytes of a sequence, with so many positions read out and so many
    logits at each. A step of a small model takes as long as it takes to move what it keeps."""

    spec: TrialSpec | None  # None: no padding, as all are alike
    steps: int = 1
    places: int = 0
    vocab: int = 0

    @property
    def order(self) -> tuple[int, int]:
        return self.steps, self.places * self.vocab

    def padded(self, steps: int, places: int, vocab: int) -> float:
        """Its work in a cohort of this size."""
        return steps * (1.0 if self.spec is None or not vocab else self.spec.kept(places, vocab))


def _loads(specs: Sequence[Trial]) -> list[_Load]:
    """The loads of trials of one shape."""
    singles = [spec for spec in specs if isinstance(spec, TrialSpec)]
    if len(singles) < len(specs):
        return [_Load(spec=None) for _ in specs]
    if len({(spec.task, spec.mix) for spec in singles}) == 1:  # nothing to pad: logits need not be counted
        return [_Load(spec=spec, steps=spec.steps) for spec in singles]
    sizes = [spec.read_out for spec in singles]
    return [
        _Load(spec=spec, steps=spec.steps, places=places, vocab=vocab)
        for spec, (places, vocab) in zip(singles, sizes, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class _Opened:
    """A cohort that may grow: its members, the work of them alone and together, and the room for them."""

    members: int
    most: int
    alone: float
    together: float
    largest: tuple[int, int, int]

    @staticmethod
    def of(loads: Sequence[_Load], most: int, before: _Opened | None = None) -> _Opened:
        """These, after those that are there."""
        members = len(loads) + (before.members if before else 0)
        sizes = [(load.steps, load.places, load.vocab) for load in loads]
        largest = tuple(map(max, zip(*sizes, *([before.largest] if before else []), strict=True)))
        alone = sum(load.padded(load.steps, load.places, load.vocab) for load in loads)
        return _Opened(
            members=members,
            most=min(most, before.most) if before else most,
            alone=alone + (before.alone if before else 0.0),
            together=members * loads[0].padded(*largest),
            largest=largest,
        )

    @property
    def fits(self) -> bool:
        return self.members <= self.most and self.together <= PADDED * self.alone


def at_most(members: int) -> Room:
    """The same bound for all. Raises ValueError where it leaves no room at all."""
    if members < 1:
        raise ValueError(f"a cohort needs room for at least 1 member, got {members}")
    return lambda spec: members


def room(device: torch.device) -> Room:
    """The default cohort size on this device. On a GPU it is as many members as keep it busy, beyond which each costs the
    same, and as its memory surely holds. The engine halves a cohort that does not fit after all."""
    if device.type != "cuda":
        return at_most(8)
    whole = memory_needs.held_by(device) if torch.cuda.is_available() else SMALL_GPU

    def members(spec: Trial) -> int:
        return max(1, min(max(FEWEST, _saturating(spec)), MOST, int(whole * SHARE / spec.bytes)))

    return members


def fewest(device: torch.device) -> Room:
    """How few members keep this device busy, so that to train fewer at once takes longer for each. A core is busy with one."""
    return at_most(1) if device.type != "cuda" else lambda spec: max(1, _saturating(spec))


def _saturating(spec: Trial) -> int:
    return SATURATING * spec.steps // max(1, spec.tokens)
