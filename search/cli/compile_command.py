"""The command that compiles a study's kernels ahead of a run."""

from __future__ import annotations

import os
import re
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from recallmap.search.cli.app import Sets, Study, app, refuse, terminal
from recallmap.search.cli.streams import say

if TYPE_CHECKING:
    from recallmap.arch.kernels.ahead import Target
    from recallmap.search.study.spec import StudySpec
    from recallmap.search.training.kernels_ahead import Wanted

CAPABILITY = re.compile(r"([1-9][0-9]?)\.([0-9])")


@app.command("compile")
def compile_(
    study: Study,
    capability: Annotated[
        str | None,
        typer.Option(
            metavar="X.Y", help="Compute capability of the GPU, 9.0 for an H100 or H200.  [default: of the one here]"
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Processes.  [default: one a core]")] = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Compile the kernels of a study into Triton's cache, with or without a GPU. Cohorts of a later run find them there. A run
    on a GPU also compiles what its next cohorts need while others train."""
    from recallmap.results.analysis.labels import counted
    from recallmap.search import codec
    from recallmap.search.training import kernels_ahead
    from recallmap.search.workers.pool import Workers

    if not find_spec("triton"):
        refuse("compile: Triton is not installed; add it with: pip install 'recallmap[triton]'")
    target = _target(capability)
    spec = codec.read_study(study, overrides=sets)
    every = _wanted(spec, target)
    new = [one for one in every if not kernels_ahead.is_compiled(one)]
    began = time.perf_counter()
    crew = Workers(workers or len(os.sched_getaffinity(0)), kernels_ahead.__name__)
    try:
        with terminal().status(f"{counted(len(new), 'block')} to compile"):
            found = [future.result() for future in [crew.ask(crew.seat(), one) for one in new]]
    finally:
        crew.close()
    kernels = sum(count for count in found if count is not None)
    known = f", {len(every) - len(new)} of {len(every)} known" if len(every) > len(new) else ""
    say(
        f"{counted(kernels, 'kernel')} of {counted(len(new), 'block')} compiled for {target.said} in "
        f"{time.perf_counter() - began:.0f} s{known}"
    )
    if failed := found.count(None):
        say(f"{counted(failed, 'block')} failed here, and will compile where a cohort uses them")
        raise typer.Exit(1)


def _target(capability: str | None) -> Target:
    import torch

    from recallmap.arch.kernels.ahead import Target, target_here

    if capability is None:
        if not torch.cuda.is_available():
            refuse(
                "--capability: there is no GPU here; give the compute capability of the one that will train, such as 9.0"
            )
        return target_here()
    said = CAPABILITY.fullmatch(capability)
    if said is None:
        refuse(f"--capability: got {capability[:20]!r}, expected X.Y, such as 9.0 for an H100")
    return Target("cuda", 10 * int(said[1]) + int(said[2]), 32)


def _wanted(study: StudySpec, target: Target) -> list[Wanted]:
    """What the cohorts of a grid need; of a search those of its anchors and corners."""
    import torch

    from recallmap.search.space.search_space import Search
    from recallmap.search.training.kernels_ahead import wanted
    from recallmap.search.training.packing import pack, room

    if isinstance(study.space, Search):
        points = [*study.space.anchor_points(), *(point for _, point in study.space.corners())]
        groups = [study.expanded(point) for point in points]
    else:
        groups = [study.trials()]
    size = room(torch.device("cuda"))
    return list(
        dict.fromkeys(
            one
            for trials in groups
            for cohort in pack(trials, size)
            for one in wanted([trials[index] for index in cohort], target)
        )
    )
