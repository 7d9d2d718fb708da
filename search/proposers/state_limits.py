"""Did a search beat what is published? The best found point and the best anchor within each limit of state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from recallmap.search.proposers.search_results import Candidate, Findings
from recallmap.search.space.search_space import ANCHORS

LIMITS = (16, 32, 64, 128)  # kB of state


@dataclass(frozen=True, kw_only=True)
class Within:
    """The best within a limit, chosen on validation by the first goal that is a score; None where no point is as small.

    limit  bytes of state
    goal   place of the goal among those of the study
    """

    limit: int
    goal: int
    found: Candidate | None
    anchor: Candidate | None

    @property
    def gain(self) -> float | None:
        """The found point less the anchor, on test."""
        if self.found is None or self.anchor is None:
            return None
        return self.found.tested[self.goal] - self.anchor.tested[self.goal]


def within_limits(found: Findings) -> list[Within]:
    """A row a limit, of those that the search may reach; none where no anchor is done, or nothing else, or no goal is a
    score."""
    goal = found.scored
    known = [one for one, apart in zip(found.candidates, found.apart, strict=True) if not apart]
    if goal is None or {one.proposer == ANCHORS for one in known} != {True, False}:
        return []
    sign = 1 if found.study.goals[goal].direction == "maximise" else -1
    most = found.study.constraints.state_bytes
    rows = []
    for limit in (1024 * kilobytes for kilobytes in LIMITS):
        if most is None or limit <= most:
            small = [one for one in known if one.state_bytes <= limit]
            best = [
                max(own, key=lambda one: (sign * one.chosen[goal], -one.state_bytes), default=None)
                for own in ([c for c in small if c.proposer != ANCHORS], [c for c in small if c.proposer == ANCHORS])
            ]
            rows.append(Within(limit=limit, goal=goal, found=best[0], anchor=best[1]))
    return rows


def cells_of(found: Findings, rows: Sequence[Within]) -> list[tuple[str, ...]]:
    """Heads, then a line a limit; empty without limits."""
    if not rows:
        return []
    score = f"{found.study.goals[rows[0].goal].name} (test)"
    lines: list[tuple[str, ...]] = [("state", "best found", score, "best anchor", score, "gain")]
    for row in rows:
        gain = "" if row.gain is None else f"{row.gain:+.3f}"
        lines.append((f"{row.limit // 1024} kB", *_said(row.found, row.goal), *_said(row.anchor, row.goal), gain))
    return lines


def table_of(found: Findings, rows: Sequence[Within]) -> Table:
    """A line a limit."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    heads, *lines = cells_of(found, rows)
    for name in heads:
        table.add_column(name, overflow="fold")
    for line in lines:
        table.add_row(*line)
    seeds = " with each seed in brackets" if any(len(one.by_seed) > 1 for one in found.candidates) else ""
    table.caption = (
        f"the best within each limit of state, chosen on validation, on test{seeds}; the found one is the "
        "best of many and so scores too high: train both again with fresh seeds, as hybrid_transfer does"
    )
    return table


def data_of(rows: Sequence[Within]) -> list[dict[str, Any]]:
    """The rows as plain data for programs."""
    return [
        {
            "state_bytes": row.limit,
            "gain": row.gain,
            **{
                name: one
                and {
                    "point": one.name,
                    "arch": one.trial.name,
                    "state_bytes": one.state_bytes,
                    "validation": one.chosen[row.goal],
                    "test": one.tested[row.goal],
                    "test_by_seed": [values[row.goal] for values in one.by_seed],
                }
                for name, one in (("found", row.found), ("anchor", row.anchor))
            },
        }
        for row in rows
    ]


def _said(one: Candidate | None, goal: int) -> tuple[str, str]:
    if one is None:
        return "none", ""
    name = one.trial.name if one.proposer == ANCHORS else f"{one.name} ({one.trial.name})"
    seeds = ", ".join(f"{values[goal]:.3f}" for values in one.by_seed)
    return name, f"{one.tested[goal]:.3f}" + (f" [{seeds}]" if len(one.by_seed) > 1 else "")
