"""Token ids carved into named, disjoint roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Roles:
    """Which ids play which part: `Roles({"key": range(0, 8), "value": range(8, 16)})`.

    The ranges together are 0 .. vocab - 1, each id once; a role may be empty. Iteration gives the names in id order.
    """

    ranges: Mapping[str, range]

    def __post_init__(self) -> None:
        ordered = sorted(self.ranges.items(), key=lambda named: (named[1].start, named[1].stop))
        object.__setattr__(self, "ranges", dict(ordered))
        expected = 0
        for name, ids in ordered:
            if ids.step != 1:
                raise ValueError(f"role '{name}' must be a range of step 1, got {ids}")
            if ids.start != expected or ids.stop < ids.start:
                raise ValueError(
                    f"roles must cover the ids from 0 on, each once: role '{name}' must start at {expected}, got {ids}"
                )
            expected = ids.stop

    def __hash__(self) -> int:
        return hash(tuple(self.ranges.items()))

    def __iter__(self) -> Iterator[str]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    @property
    def vocab(self) -> int:
        """Number of ids."""
        return max((ids.stop for ids in self.ranges.values()), default=0)

    def of(self, name: str) -> range:
        """The ids that play `name`. Raises KeyError for a role that is not there."""
        if name not in self.ranges:
            raise KeyError(f"no role '{name}'; there are {', '.join(self.ranges)}")
        return self.ranges[name]

    def name_of(self, token: int) -> str:
        """The role that `token` plays. Raises ValueError for an id outside 0 .. vocab - 1."""
        for name, ids in self.ranges.items():
            if token in ids:
                return name
        raise ValueError(f"token {token} has no role: ids are 0 .. {self.vocab - 1}")
