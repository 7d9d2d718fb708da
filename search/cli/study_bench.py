"""The bench of a study: it trains for a while in a folder of its own, and says where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from recallmap.search.engines import inline
from recallmap.search.engines.plan import Report
from recallmap.search.engines.stopping import stoppable
from recallmap.search.engines.time_spent import TimeSpent, percents
from recallmap.search.study.spec import StudySpec
from recallmap.search.training.time_limit import TimeIsUp, TimeLimit


def rows(
    study: StudySpec, *, device: str, seconds: float, cohorts_per_gpu: int | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Rows of `TimeSpent` of a study that trains from its beginning for so many seconds at most, `cohorts_per_gpu` cohorts at
    once (None: as in a run), and its line. What it trains is not kept."""
    spent = TimeSpent()

    def report(told: Report) -> None:
        nonlocal spent
        spent = told.time

    limit = TimeLimit.of(seconds)
    with TemporaryDirectory(prefix="recallmap-bench-") as folder, stoppable(limit):
        with suppress(TimeIsUp):
            inline.run(
                study,
                Path(folder) / "bench.sqlite",
                report=report,
                device=device,
                limit=limit,
                cohorts_per_gpu=cohorts_per_gpu,
            )
        spent.clock.stop()
        return [{"study": study.name, **row} for row in spent.rows()], spent.line()


def shown(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Phase, seconds and share of rows, the shares in the percents of the line."""
    share_of = percents({row["phase"]: row["share"] for row in rows})
    return [{"phase": row["phase"], "seconds": row["seconds"], "share": f"{share_of[row['phase']]}%"} for row in rows]
