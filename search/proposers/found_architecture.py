"""The architecture of a point of a study as a YAML file that tells its story, ready for the zoo."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import wrap

from recallmap.arch.stack import Repeat, flatten
from recallmap.results.escape import one_line
from recallmap.search.documents import outside, type_hints, yaml_text
from recallmap.search.proposers.generations import said_choices
from recallmap.search.proposers.search_results import Candidate, Findings
from recallmap.search.space.search_space import Search
from recallmap.search.trials.single import TrialSpec

STORY = ("study", "point", "test", "validation", "training", "commit")  # that the file of a found architecture tells

COMMENT = 126  # columns of a line of it

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)  # of an architecture, which a file has


def arch_document(found: Findings, one: Candidate, folder: Path, name: str | None = None) -> str:
    """The architecture of a point as a YAML document of a folder, with its story in comments and the user's code that it uses.
    Its blocks stand in a repeat, as those of the zoo's hybrids do, so that `stack[0].times` deepens it. Raises ValueError where
    it has none, and for a name that no file can have."""
    if not isinstance(one.trial, TrialSpec):
        raise ValueError(f"a trial of kind {one.trial.kind} has no architecture of its own to write")
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(f"a name must be letters, digits and _ - . (it names the file), got {name!r}")
    stack = one.trial.arch.stack
    if not any(isinstance(part, Repeat) for part in stack):
        stack = (Repeat(times=1, blocks=stack),)
    arch = replace(one.trial.arch, name=name or _file_name(found.study.name, one), stack=stack)
    said = [source.said_from(folder) for source in outside.defining(type_hints.plain(arch))]
    uses = yaml_text.dump({"uses": said}) if said else ""
    about, *rest = (one_line(line) for line in _story(found, one, one.trial))
    lines = [
        about,
        *(part for line in rest for part in wrap(line, COMMENT, subsequent_indent="  ", break_on_hyphens=False)),
    ]
    return "".join(f"# {line}\n" for line in lines) + uses + yaml_text.dump(arch)


def _story(found: Findings, one: Candidate, trial: TrialSpec) -> Iterator[str]:
    """What it is, in a line; then a line for each of STORY."""
    study, goals = found.study, found.study.goals
    kinds = [getattr(block, "mixer", block).kind for block in flatten(trial.arch.stack)]
    figures = ", ".join(f"{goal.name} {value:.5g}" for goal, value in zip(goals, one.tested, strict=True))
    seeds = sorted({record.seed for record in one.records})
    by_seed = ", ".join(f"{values[found.scored or 0]:.5g}" for values in one.by_seed)
    yield f"{', '.join(kinds)} in turn: point {one.name} of the study {study.name}."
    limits = ", ".join(f"{name} {limit:,}" for name, limit in study.constraints.limits.items())
    within = f", within {limits}" if limits else ""
    yield f"study: {study.name}, budget {study.budget or 'whole'}, {len(found.candidates)} points{within}"
    sampler = f", seed {study.space.seed} of the samplers" if isinstance(study.space, Search) else ""
    yield f"point: {one.name}{sampler}; {said_choices(one.choices)}".rstrip("; ")
    yield f"test: {figures}; by seed ({', '.join(map(str, seeds))}): {by_seed}"
    chosen = ", ".join(f"{goal.name} {value:.5g}" for goal, value in zip(goals, one.chosen, strict=True))
    yield f"validation: {chosen}, by which it was chosen"
    rates: dict[float, dict[str, None]] = {}
    for record in one.records:
        rates.setdefault(record.spec["training"]["lr"], {})[f"{record.task} {record.setting}".strip()] = None
    training = trial.training
    said = "; ".join(f"lr {rate:g} on {', '.join(tasks)}" for rate, tasks in sorted(rates.items()))
    yield f"training: {trial.steps} steps of {training.batch} sequences, weight decay {training.weight_decay:g}; {said}"
    yield f"commit: {', '.join(sorted({record.commit or 'unknown' for record in one.records}))}"


def story_lacks(document: str) -> list[str]:
    """What the comments of an architecture lack that a search found: its study, its point, its scores on test and validation,
    its training, or a clean commit. Whoever reads it must be able to find and to repeat what is claimed of it."""
    said = dict(re.findall(rf"^# ({'|'.join(STORY)}): (\S.*)$", document, re.MULTILINE))
    commits = said.get("commit", "").split(", ")
    unclean = [f"a clean commit, got {commit}" for commit in commits if not re.fullmatch("[0-9a-f]{40}", commit)]
    return [name for name in STORY if name not in said] + (unclean if "commit" in said else [])


def _file_name(study: str, one: Candidate) -> str:
    proposer = re.sub(r"[^\w.-]+", "_", one.proposer).strip("_")
    return f"{study}_{proposer}_{one.ordinal}"
