"""Packing trials into cohorts: which train together, and how many a device has room for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from recallmap.search.documents import content_key
from recallmap.search.trials import Trial, memory_needs

# Of cohorts on a GPU. `recallmap bench step` on an H200: what a member's step costs falls up to about so many tokens.
SATURATING = 2**17  # tokens of all members in one step

FEWEST, MOST = 8, 64  # members

SHARE = 0.25  # of the memory: cohorts may be abreast, and deep memories take more than `bytes` says

SMALL_GPU = 40 * 2**30  # bytes; of a cluster's GPUs, which the driver does not see

Room = Callable[[Trial], int]  # how many trials like this one a cohort has at most


def pack(specs: Sequence[Trial], room: Room, laid: Sequence[frozenset[str]] = ()) -> list[list[int]]:
    """Cohorts of as many members as there is room for, as indices into `specs`, in the order of their first members. A
    family, which learns a first phase once, stays together even where it is larger than that: learnt twice, on a GPU, it is
    not the same to the last digit, and what follows can no longer be compared seed by seed. So do those whose keys are in one
    of `laid`, with no others, for what they have learned lies in one place."""
    keys = [content_key.key(spec) for spec in specs] if laid else []
    held = {key: number for number, own in reversed(list(enumerate(laid))) for key in own}
    groups: dict[Hashable, dict[Hashable, list[int]]] = {}
    for index, spec in enumerate(specs):
        together = held.get(keys[index]) if laid else None
        groups.setdefault((spec.kind, spec.shape, together), {}).setdefault(spec.family, []).append(index)
    cohorts: list[list[int]] = []
    for families in groups.values():
        first, *others = families.values()
        most = room(specs[first[0]])
        cohorts.append(first)
        for family in others:
            if len(cohorts[-1]) + len(family) <= most:
                cohorts[-1] = cohorts[-1] + family
            else:
                cohorts.append(family)
    return sorted(sorted(cohort) for cohort in cohorts)


def at_most(members: int) -> Room:
    """The same bound for all. Raises ValueError where it leaves no room at all."""
    if members < 1:
        raise ValueError(f"a cohort needs room for at least 1 member, got {members}")
    return lambda spec: members


def room(device: torch.device) -> Room:
    """How many members a cohort has on this device unless told otherwise: on a GPU as many as make it busy (more would
    cost as much each) and as its memory surely holds; a cohort that does not fit after all is halved by the engine."""
    if device.type != "cuda":
        return at_most(8)
    whole = memory_needs.held_by(device) if torch.cuda.is_available() else SMALL_GPU

    def members(spec: Trial) -> int:
        busy = max(FEWEST, SATURATING * spec.steps // max(1, spec.tokens))
        return max(1, min(busy, MOST, int(whole * SHARE / spec.bytes)))

    return members
