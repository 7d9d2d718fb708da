"""The account of a run's time: seconds by phase, and trials and points an hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recallmap.search.measurement.gpu_busy import BusyShare
from recallmap.search.training.phase_clock import OTHER, PhaseClock

HOUR = 3600.0  # seconds

Figure = str | int | float | None


@dataclass
class TimeSpent:
    """Where the time of a run goes. It goes on until the run ends: read it then.

    clock     of this process
    busy      of the GPUs of this machine
    workers   seconds by phase of cohorts that trained in other processes
    trials    trained in this run, failed ones too; `failed` counts these
    points    of a search, that got their results in this run
    cohorts   begun in this run, with so many `members` altogether
    """

    clock: PhaseClock = field(default_factory=PhaseClock)
    busy: BusyShare = field(default_factory=BusyShare)
    workers: dict[str, float] = field(default_factory=dict)
    trials: int = 0
    failed: int = 0
    points: int = 0
    cohorts: int = 0
    members: int = 0

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count the phases of a cohort that another process trained."""
        for name, spent in seconds.items():
            self.workers[name] = self.workers.get(name, 0.0) + spent

    def begin(self, members: int) -> None:
        """Count a cohort that begins."""
        self.cohorts, self.members = self.cohorts + 1, self.members + members

    @property
    def wall(self) -> float:
        """Seconds from the begin of the run until now."""
        return self.clock.now() - self.clock.began

    def seconds(self) -> dict[str, float]:
        """Seconds by phase. Where other processes train, all of theirs count, and this one's but for its waiting."""
        own = self.clock.seconds()
        if self.workers:
            own[OTHER] = 0.0
        return {name: spent + self.workers.get(name, 0.0) for name, spent in own.items()}

    def shares(self) -> dict[str, float]:
        """Shares of the time by phase; they add up to 1."""
        seconds = self.seconds()
        total = sum(seconds.values())
        return {name: spent / total if total else float(name == OTHER) for name, spent in seconds.items()}

    def figures(self) -> dict[str, Figure]:
        """Figures of the whole run. Those of one that has none are None: points of a grid, a GPU's share on a CPU."""
        wall = self.wall
        hours = wall / HOUR
        return {
            "wall s": wall,
            "trials": self.trials,
            "failed": self.failed,
            "trials an hour": self.trials / hours if hours else 0.0,
            "points an hour": self.points / hours if self.points and hours else None,
            "cohorts": self.cohorts,
            "mean cohort size": self.members / self.cohorts if self.cohorts else None,
            "cohorts at once": sum(self.workers.values()) / wall if self.workers and wall else None,
            "GPU busy": self.busy.mean,
        }

    def rows(self) -> list[dict[str, Figure]]:
        """A row for each phase, with the figures of the whole run in each."""
        seconds, shares = self.seconds(), self.shares()
        whole = {name: figure for name, figure in self.figures().items() if figure is not None}
        return [{"phase": name, "seconds": seconds[name], "share": shares[name], **whole} for name in seconds]

    def line(self) -> str:
        """One line for people: `time: 214 s: training 61%, ...; 690 trials an hour; ...`."""
        named = sorted(percents(self.shares()).items(), key=lambda one: (one[0] == OTHER, -one[1]))
        figures = self.figures()
        words = [", ".join(f"{name} {percent}%" for name, percent in named if percent)]
        words.append(f"{_many(figures['trials an hour'], ',.0f', 'trial')} an hour")
        if figures["points an hour"] is not None:
            words[-1] += f", {_many(figures['points an hour'], ',.0f', 'point')} an hour"
        if self.failed:
            words[-1] += f", {self.failed:,} of {self.trials:,} failed"
        words.append(f"{_many(figures['mean cohort size'] or 0, '.3g', 'trial')} a cohort")
        if figures["cohorts at once"] is not None:
            words.append(f"{_many(figures['cohorts at once'], '.2g', 'cohort')} at once")
        if figures["GPU busy"] is not None:
            words.append(f"GPU busy {figures['GPU busy']:.0%}")
        return f"time: {figures['wall s']:,.0f} s: {'; '.join(words)}"


def _many(number: Figure, form: str, name: str) -> str:
    said = f"{number:{form}}"
    return f"{said} {name}{'' if said == '1' else 's'}"


def percents(shares: Mapping[str, float]) -> dict[str, int]:
    """Whole percents that add up to 100: the largest remainders are rounded up."""
    down = {name: int(100 * share) for name, share in shares.items()}
    by_rest = sorted(shares, key=lambda name: down[name] - 100 * shares[name])
    for name in by_rest[: 100 - sum(down.values())]:
        down[name] += 1
    return down
