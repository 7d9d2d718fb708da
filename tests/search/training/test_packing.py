"""Which trials form a cohort, and how a dry run says why others do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers import Attention
from recallmap.search.cli.app import app
from recallmap.search.documents import content_key
from recallmap.search.training.packing import PADDED, at_most, fewest, pack, shared_out
from recallmap.search.trial import Data, Training, TrialSpec
from recallmap.search.trials.phased import Phase, PhasedTrial
from recallmap.synth.tasks import Mqar

ARCH = BackboneSpec(name="tiny", width=16, stack=(Block(mixer=Attention(heads=2)),))


def trial(vocab: int = 32, pairs: int = 2, steps: int = 12, **rest: Any) -> TrialSpec:
    task, training = Mqar(vocab=vocab, length=16, pairs=pairs), Training(steps=steps, batch=8)
    return TrialSpec(**({"task": task, "arch": ARCH, "training": training, "data": Data(test=8)} | rest))


def packed(specs: list[TrialSpec], most: int = 64) -> list[list[int]]:
    return pack(specs, at_most(most))


def test_trials_that_need_about_as_many_steps_train_together() -> None:
    specs = [trial(steps=steps, seed=seed) for seed in (0, 1) for steps in (100, 1000, 110)]
    assert packed(specs) == [[0, 2, 3, 5], [1, 4]]
    assert packed(specs, 3) == [[0, 2, 3], [1, 4], [5]]


def test_vocabularies_are_padded_where_logits_are_the_lesser_part_of_a_step() -> None:
    """Ids cost by the positions that are read out, beside all that the blocks keep."""
    few, more, many = (trial(vocab) for vocab in (16, 64, 2**14))
    assert packed([many, few, more, replace(many, seed=1)]) == [[0, 3], [1, 2]]
    wide = replace(ARCH, width=8192)
    assert packed([replace(spec, arch=wide) for spec in (many, few, more)]) == [[0, 1, 2]]


def test_a_cohort_costs_at_most_a_quarter_more_than_its_members() -> None:
    specs = [trial(16 + 48 * n, 1 + n % 3, 100 + 7 * n) for n in range(40)]
    cohorts = packed(specs)
    assert sorted(index for cohort in cohorts for index in cohort) == list(range(40))
    assert 1 < len(cohorts) < 20
    for cohort in cohorts:
        own = [specs[index] for index in cohort]
        steps = max(spec.steps for spec in own)
        places, vocab = (max(sizes) for sizes in zip(*(spec.read_out for spec in own), strict=True))
        alone = sum(spec.steps * spec.kept(*spec.read_out) for spec in own)
        assert len(own) * steps * own[0].kept(places, vocab) <= PADDED * alone


def test_the_smallest_room_of_all_members_counts() -> None:
    specs = [trial(steps=100 + n) for n in range(6)]
    assert pack(specs, lambda spec: 3 if spec.steps >= 102 else 5) == [[0, 1, 2], [3, 4, 5]]


def test_what_is_longer_than_a_places_share_is_halved_until_halves_would_leave_a_device_idle() -> None:
    long, short = [trial(steps=1200, seed=n) for n in range(8)], [trial(steps=100, seed=n) for n in range(4)]
    specs = [*long, *short]
    cohorts = packed(specs)
    assert cohorts == [[*range(8)], [*range(8, 12)]]

    def shared(places: int, fewest: int = 1) -> list[int]:
        parts = shared_out(specs, cohorts, places, at_most(fewest))
        assert sorted(index for part in parts for index in part) == [*range(12)]
        return [len(part) for part in parts]

    assert shared(1) == [8, 4]
    assert shared(2) == [4, 4, 4]
    assert shared(3) == [2, 2, 2, 2, 4]
    assert shared(3, fewest=4) == [4, 4, 4]
    assert shared(1000) == [1] * 12


def test_what_learns_a_phase_together_or_was_saved_together_is_not_halved() -> None:
    single = [trial(seed=n) for n in range(4)]
    shared = {"task": single[0].task, "arch": ARCH, "data": Data(test=8)}
    family = [
        PhasedTrial(
            training=Training(steps=steps, batch=8), phases=(Phase(training=single[0].training), Phase()), **shared
        )
        for steps in (12, 14)
    ]
    assert shared_out(family, pack(family, at_most(8)), 4, at_most(1)) == [[0, 1]]
    saved = [frozenset(map(content_key.key, single))]
    assert shared_out(single, packed(single), 2, at_most(1)) == [[0, 1], [2, 3]]
    assert shared_out(single, packed(single), 2, at_most(1), saved) == [[0, 1, 2, 3]]


def test_a_gpu_is_kept_busy_by_few_members_with_many_tokens_each_and_a_cpu_by_one() -> None:
    gpu, cpu = fewest(torch.device("cuda")), fewest(torch.device("cpu"))
    short, long = trial(), trial(task=Mqar(vocab=32, length=1024, pairs=2))
    assert [gpu(short), gpu(long), gpu(replace(long, training=Training(steps=1, batch=4096)))] == [1024, 16, 1]
    assert cpu(short) == 1


STORY = """
name: story
trial:
  task: {kind: mqar, vocab: 32, length: 16, pairs: 2}
  arch: {name: tiny, width: 16, stack: [{kind: block, mixer: {kind: linear_attention, heads: 2}}]}
  training: {steps: 6, batch: 8, evaluations: 1}
  data: {validation: 4, test: 4}
space: {kind: grid, axes: {%s}}
"""


@pytest.mark.parametrize(
    ("axes", "words", "said"),
    [
        (
            "trial.task.vocab: [16, 32], trial.seed: [0, 1]",
            [],
            ["cohort 1: 4 trials of tiny on mqar, 6 steps, 16 to 32 ids"],
        ),
        (
            "trial.task.length: [16, 24], trial.training.batch: [4, 8], trial.seed: [0, 1]",
            [],
            ["cohorts 1 to 4: 2 trials each of tiny on mqar, 6 steps, 32 ids", "apart: length 16/24; batch 4/8"],
        ),
        (
            "trial.training.steps: [6, 7, 600]",
            [],
            [
                "cohort 1: 2 trials of tiny on mqar, 6 to 7 steps, 32 ids",
                "cohort 2: 1 trial of tiny on mqar, 600 steps, 32 ids",
                "apart: steps 6 to 600: padding would cost more than 25%",
            ],
        ),
        (
            "trial.seed: [0, 1, 2]",
            ["--cohort-size", "2"],
            [
                "cohort 1: 2 trials of tiny on mqar, 6 steps, 32 ids",
                "cohort 2: 1 trial of tiny on mqar, 6 steps, 32 ids",
                "apart: room for 2 members",
            ],
        ),
    ],
    ids=["together", "other shapes", "other steps", "no room"],
)
def test_a_dry_run_says_which_trials_train_together_and_why_others_do_not(
    axes: str, words: list[str], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("story.yaml").write_text(STORY % axes, encoding="utf-8")
    result = CliRunner().invoke(app, ["run", "story.yaml", "--dry-run", "--device", "cpu", *words])
    *lines, _ = result.output.splitlines()
    assert lines[-len(said) :] == said
