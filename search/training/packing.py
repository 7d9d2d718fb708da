"""Packing trials into cohorts: which train together, and how many a device has room for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from recallmap.search.documents import content_key
from recallmap.search.trials import Trial, memory_needs

# For cohorts on a GPU. `recallmap bench step` on an H200: the cost of a member's step falls up to about so many tokens.
SATURATING = 2**17  # tokens of all members in one step

FEWEST, MOST = 8, 64  # members

SHARE = 0.25  # of the memory: a GPU may train several cohorts, and deep memories take more than `bytes` says

SMALL_GPU = 40 * 2**30  # bytes; of a cluster's GPUs, which the driver does not see

Room = Callable[[Trial], int]  # how many trials like this one a cohort has at most


def pack(specs: Sequence[Trial], room: Room, saved: Sequence[frozenset[str]] = ()) -> list[list[int]]:
    """Pack trials into cohorts of as many members as there is room for: indices into `specs`, by first member.

    A family shares its first phase and stays together, even where it is larger than that. Learned twice on a GPU, the
    phase would differ in its last digits, and what follows could not be compared seed by seed. Trials whose keys are in
    one set of `saved` stay together, too, and with no others: they have one checkpoint."""
    keys = [content_key.key(spec) for spec in specs] if saved else []
    held = {key: number for number, own in reversed(list(enumerate(saved))) for key in own}
    groups: dict[Hashable, dict[Hashable, list[int]]] = {}
    for index, spec in enumerate(specs):
        together = held.get(keys[index]) if saved else None
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
    """The default cohort size on this device. On a GPU it is as many members as keep it busy, beyond which each costs the
    same, and as its memory surely holds. The engine halves a cohort that does not fit after all."""
    if device.type != "cuda":
        return at_most(8)
    whole = memory_needs.held_by(device) if torch.cuda.is_available() else SMALL_GPU

    def members(spec: Trial) -> int:
        busy = max(FEWEST, SATURATING * spec.steps // max(1, spec.tokens))
        return max(1, min(busy, MOST, int(whole * SHARE / spec.bytes)))

    return members
