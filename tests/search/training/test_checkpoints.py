"""Interrupted training goes on where it was: the same to the last bit on a CPU, and nothing is left lying about."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers import Attention, BaseConv
from recallmap.results.ledger import Ledger, LedgerError
from recallmap.search import codec
from recallmap.search.engines import inline, ray_workers
from recallmap.search.engines.plan import Report
from recallmap.search.training import loop
from recallmap.search.training.checkpoints import CheckpointFolder, checkpointing
from recallmap.search.training.cohort import Cohort
from recallmap.search.training.outcome import Outcome, Progress
from recallmap.search.trial import Data, Portion, Training, TrialSpec
from recallmap.synth.tasks import Mqar, Regbench

TASK = Mqar(vocab=16, length=16, pairs=2)
ARCH = BackboneSpec(name="tiny", width=16, stack=(Block(mixer=BaseConv()), Block(mixer=Attention(heads=2))))
STEPS = Training(steps=12, batch=8, evaluations=4, lr=3e-3)
FRESH = TrialSpec(task=TASK, arch=ARCH, training=STEPS, data=Data(validation=32, test=32))
EPOCHS = replace(FRESH, training=replace(STEPS, steps=None, epochs=4), data=Data(train=20, validation=32, test=32))
MIX = replace(
    FRESH,
    mix=(Portion(task=TASK, examples=20), Portion(task=Mqar(vocab=16, length=24, pairs=2), examples=12)),
    tests=(Mqar(vocab=16, length=32, pairs=4),),
)
CASES = {
    "fresh sequences": [FRESH, replace(FRESH, seed=1)],
    "epochs": [EPOCHS, replace(EPOCHS, seed=1)],
    "a mix, and tests": [MIX],
    "a published protocol": [replace(FRESH, task=Mqar(vocab=32, length=16, pairs=2, protocol="zoology"))],
    "one leaves early": [replace(FRESH, training=replace(STEPS, stop_at=-1.0)), FRESH],
    "one diverges": [FRESH, replace(FRESH, seed=1, training=replace(STEPS, lr=1e30, clip=None))],
}


def follow(specs: list[TrialSpec]) -> Iterator[Progress]:
    return loop.train(specs, torch.device("cpu"))


def ended(steps: Iterator[Progress]) -> list[Outcome]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def interrupted_after(reports: int) -> tuple[list[tuple[int, int]], Callable[[Report], None]]:
    """Steps and members as they are told of, and who tells: somebody stops it, once, after so many."""
    seen: list[tuple[int, int]] = []

    def report(told: Report) -> None:
        if told.progress is not None:
            seen.append((told.progress.step, told.progress.members))
            if len(seen) == reports:
                raise KeyboardInterrupt

    return seen, report


@pytest.mark.parametrize("stop", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_who_is_interrupted_ends_as_if_nothing_had_been(
    case: str, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs, taken, step = CASES[case], [0], Cohort.train_step

    def counted(self: Cohort, *batch: object) -> object:
        taken[0] += 1
        return step(self, *batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Cohort, "train_step", counted)
    expected = ended(follow(specs))
    whole, taken[0] = taken[0], 0
    with checkpointing(CheckpointFolder(tmp_path / "checkpoints", every=0)) as checkpoints:
        steps = follow(specs)
        for _ in range(stop):
            next(steps)
        steps.close()  # type: ignore[attr-defined]
        before, taken[0] = taken[0], 0
        found = ended(follow(specs))
        assert 0 < taken[0] < whole
        assert before + taken[0] == whole
        checkpoints.clear()
    assert not (tmp_path / "checkpoints").exists()
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("error", "scores", "validation", "tests", "curve", "published_choice", "steps", "selected_step"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert all(torch.equal(ours.weights[name], weight) for name, weight in theirs.weights.items())


def test_what_is_through_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with checkpointing(CheckpointFolder(tmp_path, every=0)):
        expected = ended(follow([FRESH]))
        monkeypatch.setattr(Cohort, "train_step", None)
        (found,) = ended(follow([FRESH]))
    assert found.scores == expected[0].scores


def test_who_was_through_may_be_left_out_when_the_others_go_on(tmp_path: Path) -> None:
    early, one, two = replace(FRESH, training=replace(STEPS, stop_at=-1.0)), FRESH, replace(FRESH, seed=1)
    expected = ended(follow([two, one]))
    with checkpointing(CheckpointFolder(tmp_path / "checkpoints", every=0)) as checkpoints:
        steps = follow([one, early, two])
        assert list(next(steps).ended) == [1]
        steps.close()  # type: ignore[attr-defined]
        rest = follow([two, one])
        assert [next(rest).step, next(rest).step] == [3, 6]
        found = ended(rest)
        checkpoints.clear()
    assert not (tmp_path / "checkpoints").exists()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.scores == theirs.scores
        assert all(torch.equal(ours.weights[name], weight) for name, weight in theirs.weights.items())


def test_other_trials_are_not_taken_up(tmp_path: Path) -> None:
    with checkpointing(CheckpointFolder(tmp_path, every=0)):
        ended(follow([FRESH]))
        other = ended(follow([replace(FRESH, seed=1)]))
    assert other[0].scores == ended(follow([replace(FRESH, seed=1)]))[0].scores
    assert len(list(tmp_path.iterdir())) == 2


def test_what_began_with_other_weights_is_not_taken_up(tmp_path: Path) -> None:
    """As blocks that inherit and blocks that start anew do, in trials that are otherwise the same."""

    def trained(seed: int) -> Outcome:
        weights = ARCH.build(vocab=TASK.vocab, seed=seed).state_dict()
        return ended(loop.train([FRESH], torch.device("cpu"), starts=[weights]))[0]

    alone = [trained(seed).scores for seed in (3, 4)]
    with checkpointing(CheckpointFolder(tmp_path, every=0)):
        assert [trained(seed).scores for seed in (3, 4)] == alone
    assert alone[0] != alone[1]


def test_a_file_of_an_earlier_version_is_not_taken_up(tmp_path: Path) -> None:
    expected = ended(follow([FRESH]))
    save_file({"row 0": torch.zeros(1, 3)}, tmp_path / "old.safetensors", metadata={"said": "{}"})
    with checkpointing(CheckpointFolder(tmp_path, every=0)):
        assert ended(follow([FRESH]))[0].scores == expected[0].scores


def test_a_file_that_was_cut_short_is_not_read_and_goes_with_the_others(tmp_path: Path) -> None:
    with checkpointing(CheckpointFolder(tmp_path / "checkpoints", every=0)) as checkpoints:
        expected = ended(follow([FRESH]))
        (whole,) = (tmp_path / "checkpoints").iterdir()
        whole.rename(whole.with_suffix(".partial"))
        whole.with_suffix(".partial").write_bytes(b"cut")
        assert ended(follow([FRESH]))[0].scores == expected[0].scores
        checkpoints.clear()
    assert not (tmp_path / "checkpoints").exists()


def test_nothing_is_written_before_it_is_time_nor_where_nobody_keeps(tmp_path: Path) -> None:
    with checkpointing(CheckpointFolder(tmp_path / "checkpoints", every=1e6)):
        ended(follow([FRESH]))
    ended(follow([FRESH]))
    assert not (tmp_path / "checkpoints").exists()


def test_a_study_that_was_interrupted_goes_on_within_a_cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "recallmap.search.engines.inline.CheckpointFolder", lambda folder: CheckpointFolder(folder, every=0)
    )
    study = codec.read_study({"name": "tiny", "trial": codec.plain(FRESH), "space": {"kind": "grid"}})
    path = tmp_path / "tiny.sqlite"
    seen, report = interrupted_after(3)
    with pytest.raises(KeyboardInterrupt):
        inline.run(study, path, report=report)
    assert list((tmp_path / "tiny.unfinished").iterdir())
    inline.run(study, path, report=report)
    assert seen == [(3, 1), (6, 1), (9, 1), (9, 1), (12, 1)]  # it says from where it is resumed
    assert not (tmp_path / "tiny.unfinished").exists()
    assert Ledger(path).all()[0].curve["step"] == [3, 6, 9, 12]


def test_of_an_interrupted_cohort_what_is_solved_stays_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "recallmap.search.engines.inline.CheckpointFolder", lambda folder: CheckpointFolder(folder, every=0)
    )
    stops = {"kind": "grid", "axes": {"trial.training.stop_at": [-1.0, None]}}
    study = codec.read_study({"name": "tiny", "trial": codec.plain(FRESH), "space": stops})
    path = tmp_path / "tiny.sqlite"
    seen, report = interrupted_after(2)
    with pytest.raises(KeyboardInterrupt):
        inline.run(study, path, report=report)
    (solved,) = Ledger(path).all()
    assert (solved.status, solved.steps) == ("done", 3)
    inline.run(study, path, report=report)
    assert seen == [(3, 2), (6, 2), (6, 1), (9, 1), (12, 1)]
    assert not (tmp_path / "tiny.unfinished").exists()
    assert [r.steps for r in Ledger(path).all()] == [3, 12]
    assert Ledger(path).all()[0] == solved


def test_a_checkpoint_that_cannot_be_written_ends_the_study_and_fails_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "recallmap.search.engines.inline.CheckpointFolder", lambda folder: CheckpointFolder(folder, every=0)
    )
    study = codec.read_study({"name": "tiny", "trial": codec.plain(FRESH), "space": {"kind": "grid"}})
    (tmp_path / "tiny.unfinished").write_text("a file stands in its way")
    with pytest.raises(LedgerError, match=r"tiny\.unfinished: cannot write the checkpoint of a cohort: .+ exists"):
        inline.run(study, tmp_path / "tiny.sqlite")
    assert Ledger(tmp_path / "tiny.sqlite").all() == []


def test_a_full_disk_ends_the_study_with_a_remedy_and_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import torch as safetensors

    def full(tensors: object, path: Path, **_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        "recallmap.search.engines.inline.CheckpointFolder", lambda folder: CheckpointFolder(folder, every=0)
    )
    monkeypatch.setattr(safetensors, "save_file", full)
    study = codec.read_study({"name": "tiny", "trial": codec.plain(FRESH), "space": {"kind": "grid"}})
    with pytest.raises(LedgerError, match=r"tiny\.unfinished: .*the disk is full; free some space and run the same"):
        inline.run(study, tmp_path / "tiny.sqlite")
    assert not list((tmp_path / "tiny.unfinished").glob("*.safetensors"))


def test_a_checkpoint_folder_that_is_a_link_is_refused_and_nothing_goes_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "model.safetensors").write_text("damaged, and not ours")
    (tmp_path / "tiny.unfinished").symlink_to(tmp_path / "theirs")
    study = codec.read_study({"name": "tiny", "trial": codec.plain(FRESH), "space": {"kind": "grid"}})
    with pytest.raises(
        LedgerError, match=r"tiny\.unfinished is a symbolic link, a folder is expected.*remove the link"
    ):
        inline.run(study, tmp_path / "tiny.sqlite")
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["model.safetensors"]


def test_what_lies_where_a_cohort_is_saved_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    checkpoints = CheckpointFolder(tmp_path / "checkpoints", every=0)
    checkpoints.folder.mkdir()
    with checkpointing(checkpoints):
        steps = follow([FRESH])
        next(steps)
        (saved,) = checkpoints.folder.glob("*.safetensors")
        saved.with_suffix(".partial").symlink_to(tmp_path / "theirs")
        next(steps)
        steps.close()  # type: ignore[attr-defined]
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not saved.is_symlink()


def test_those_who_were_interrupted_together_go_on_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one of them is through there would be room for one that has not begun, which would go on from nowhere."""
    monkeypatch.setattr(
        "recallmap.search.engines.inline.CheckpointFolder", lambda folder: CheckpointFolder(folder, every=0)
    )
    space = {"kind": "grid", "axes": {"trial.training.stop_at": [-1.0, None], "trial.seed": [0, 1]}}
    study = codec.read_study({"name": "tiny", "trial": codec.plain(FRESH), "space": space})
    path = tmp_path / "tiny.sqlite"
    seen, report = interrupted_after(2)
    with pytest.raises(KeyboardInterrupt):
        inline.run(study, path, report=report, cohort_size=3)
    inline.run(study, path, report=report, cohort_size=3)
    assert seen == [(3, 3), (6, 3), (6, 1), (9, 1), (12, 1), (3, 1), (6, 1), (9, 1), (12, 1)]
    assert not (tmp_path / "tiny.unfinished").exists()


def test_what_others_still_need_stays(tmp_path: Path) -> None:
    one, two = FRESH, replace(FRESH, seed=1)
    checkpoints = CheckpointFolder(tmp_path / "checkpoints", every=0)
    with checkpointing(checkpoints):
        steps = follow([one, two])
        next(steps), next(steps)
        steps.close()  # type: ignore[attr-defined]
    for spec in (one, two):
        later = CheckpointFolder(tmp_path / "checkpoints", every=0)  # another process
        with checkpointing(later):
            rest = follow([spec])
            assert [next(rest).step, next(rest).step] == [6, 9]
            ended(rest)
            later.clear()
    assert not (tmp_path / "checkpoints").exists()


def test_what_is_damaged_begins_anew(tmp_path: Path) -> None:
    expected = ended(follow([FRESH]))
    (tmp_path / f"{'0123' * 8}.safetensors").write_bytes(b"")
    with (
        checkpointing(CheckpointFolder(tmp_path, every=1e6)),
        pytest.warns(RuntimeWarning, match=r"0123\.safetensors is damaged"),
    ):
        assert ended(follow([FRESH]))[0].scores == expected[0].scores
    assert not list(tmp_path.iterdir())


def test_who_goes_on_has_as_much_room_for_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sequences ask for more or less, pools keep the room that one before had: sums go by it, to the last digit."""
    monkeypatch.setattr("recallmap.search.training.batches.HORIZON", 1)
    dials: dict[str, Any] = {"letters": 6, "states": (3, 4), "alphabet": (3, 6), "out_degree": (1, 2), "words": (3, 5)}
    spec = replace(
        FRESH,
        task=Regbench(**dials, word_length=(1, 8), length=44),
        training=replace(STEPS, steps=24, batch=2, lr=1e-2),
    )
    expected = ended(follow([spec]))
    with checkpointing(CheckpointFolder(tmp_path, every=0)):
        steps = follow([spec])
        next(steps), next(steps), next(steps)
        steps.close()  # type: ignore[attr-defined]
        (found,) = ended(follow([spec]))
    assert found.curve == expected[0].curve


# What stays after a kill, and what is not ours ----------------------------------------------------------

PHASED = codec.plain(FRESH) | {"kind": "phased", "phases": [{"task": codec.plain(TASK)}, {}]}


class Cut(BaseException):
    """The driver is killed."""


def cut(*_: object) -> None:
    raise Cut


def of_one_trial(plain: dict[str, Any]) -> Any:
    return codec.read_study({"name": "tiny", "trial": plain, "space": {"kind": "grid"}})


@pytest.mark.parametrize("with_ray", [False, True], ids=["inline", "ray"])
@pytest.mark.parametrize("plain", [codec.plain(FRESH), PHASED], ids=["trial", "phased"])
def test_a_kill_between_a_record_and_its_checkpoint_leaves_nothing_for_ever(
    plain: dict[str, Any], with_ray: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "recallmap.search.engines.inline.CheckpointFolder", lambda folder: CheckpointFolder(folder, every=0)
    )
    study, path = of_one_trial(plain), tmp_path / "tiny.sqlite"
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "clear", cut)
        with pytest.raises(Cut):
            inline.run(study, path, device="cpu")
    assert [record.status for record in Ledger(path).all()] == ["done"]
    assert list((tmp_path / "tiny.unfinished").iterdir())
    (ray_workers if with_ray else inline).run(study, path, device="cpu")
    assert not (tmp_path / "tiny.unfinished").exists()


def test_what_is_half_of_something_goes_at_the_next_start_and_what_is_unfinished_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "recallmap.search.engines.inline.CheckpointFolder", lambda folder: CheckpointFolder(folder, every=0)
    )
    study, path, folder = of_one_trial(codec.plain(FRESH)), tmp_path / "tiny.sqlite", tmp_path / "tiny.unfinished"
    _, stop = interrupted_after(2)
    with pytest.raises(KeyboardInterrupt):
        inline.run(study, path, report=stop)
    (whole,) = folder.iterdir()
    told = whole.with_suffix(".through")
    told.write_text("[]")
    other = "0123" * 8
    for name in (
        *(f"{other}.partial", f"{other}.through", f".{other}.77.through", whole.with_suffix(".partial").name),
        ".tmp9ZrB2g",  # of safetensors, in a process that was killed
    ):
        (folder / name).write_bytes(b"half")
    CheckpointFolder(folder).tidy(Ledger(path).keys())
    assert sorted(folder.iterdir()) == sorted([whole, told])
    seen, report = interrupted_after(9)
    inline.run(study, path, report=report)
    assert seen == [(6, 1), (9, 1), (12, 1)]
    assert not folder.exists()


def test_what_others_put_among_checkpoints_is_neither_read_nor_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links, pipes, folders, and files of another making, also under our names."""
    monkeypatch.setattr(
        "recallmap.search.engines.inline.CheckpointFolder", lambda folder: CheckpointFolder(folder, every=0)
    )
    path, folder = tmp_path / "tiny.sqlite", tmp_path / "tiny.unfinished"
    folder.mkdir()
    weights = tmp_path / "weights.safetensors"
    save_file({"weight": torch.ones(3)}, weights)
    save_file({"weight": torch.ones(3)}, folder / "foreign.safetensors")
    save_file({"weight": torch.ones(3)}, folder / "told.safetensors", metadata={"said": "much"})
    save_file({"weight": torch.ones(3)}, folder / f"{'0' * 32}.safetensors", metadata={"said": "{}", "keys": "7"})
    (folder / f"{'1' * 32}.safetensors").symlink_to(weights)
    (folder / f"{'2' * 32}.safetensors").symlink_to(tmp_path / "nowhere")
    (folder / f"{'3' * 32}.safetensors").mkdir()
    (folder / f"{'4' * 32}.partial").mkdir()
    os.mkfifo(folder / f"{'5' * 32}.safetensors")
    (folder / "notes.safetensors").write_text("no such format")
    before = {file.name: file.lstat() for file in folder.iterdir()}
    _, stop = interrupted_after(2)
    with pytest.raises(KeyboardInterrupt):
        inline.run(of_one_trial(codec.plain(FRESH)), path, report=stop)
    inline.run(of_one_trial(codec.plain(FRESH)), path)
    after = {file.name: file.lstat() for file in folder.iterdir()}
    assert {name: (found.st_ino, found.st_mtime) for name, found in after.items()} == {
        name: (found.st_ino, found.st_mtime) for name, found in before.items()
    }
    assert [record.status for record in Ledger(path).all()] == ["done"]


@pytest.mark.parametrize("suffix", [".partial", ".safetensors", ".through"])
def test_a_link_in_place_of_a_file_of_ours_is_not_written_through(suffix: str, tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "checkpoints"
    victim.write_text("precious")
    folder.mkdir()
    with checkpointing(CheckpointFolder(folder, every=0)) as checkpoints:
        steps = follow([FRESH, replace(FRESH, seed=1)])
        next(steps)
        steps.close()  # type: ignore[attr-defined]
        (whole,) = folder.iterdir()
        whole.unlink()
        whole.with_suffix(suffix).symlink_to(victim)
        steps = follow([FRESH, replace(FRESH, seed=1)])
        next(steps), next(steps)
        steps.close()  # type: ignore[attr-defined]
        checkpoints.used = [(path, trials[:1]) for path, trials in checkpoints.used]  # of two one is through
        checkpoints.clear()
    assert victim.read_text() == "precious"
    assert whole.exists()
    assert not whole.is_symlink()


def test_a_folder_in_place_of_what_is_written_ends_the_study_with_a_remedy(tmp_path: Path) -> None:
    with checkpointing(CheckpointFolder(tmp_path, every=0)):
        steps = follow([FRESH])
        next(steps)
        steps.close()  # type: ignore[attr-defined]
        (whole,) = tmp_path.iterdir()
        whole.with_suffix(".partial").mkdir()
        with pytest.raises(
            LedgerError, match=r"cannot write the checkpoint of a cohort: .+; make room for it, or move away what"
        ):
            ended(follow([FRESH]))
