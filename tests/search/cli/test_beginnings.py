"""`recallmap new` writes a mixer or a task that keeps all laws, and a study of it that trains."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from recallmap.search.cli.app import app
from recallmap.search.cli.beginnings import NAMES

ROOT = Path(__file__).parents[3]
every_part = pytest.mark.parametrize("part", NAMES)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@every_part
def test_what_is_written_keeps_all_laws(part: str, folder: Path) -> None:
    assert call("new", part, "slow_one") == (
        0,
        f"my_slow_one.py: the {part} slow_one; next: recallmap verify my_slow_one.py\n"
        "my_slow_one.yaml: a study of it; next: recallmap run my_slow_one.yaml\n",
    )
    code, told = call("verify", "my_slow_one.py")
    assert code == 0, told
    assert told.startswith(f"{part} slow_one: ")
    assert f"class SlowOne(rm.{part.capitalize()}" in (folder / "my_slow_one.py").read_text(encoding="utf-8")
    for path in (folder / "my_slow_one.py", folder / "my_slow_one.yaml"):
        assert NAMES[part] not in path.read_text(encoding="utf-8").replace("self.fade", "").lower()


@every_part
def test_the_study_beside_it_trains_every_trial(part: str, folder: Path) -> None:
    call("new", part, "mine")
    short = ["trial.training.steps=2", "trial.training.batch=2", "trial.data={validation: 2, test: 2}"]
    sets = [word for one in [*short, "trial.training.evaluations=1"] for word in ("--set", one)]
    code, told = call("run", "my_mine.yaml", "--device", "cpu", *sets)
    assert code == 0, told
    assert "0 known, 4 done, 0 failed" in told
    assert call("table", "my_mine.yaml", *sets)[0] == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Fade", "NAME: got 'Fade', expected small letters, digits and _, such as fade"),
        ("2nd", "NAME: got '2nd', expected small letters"),
        ("../up", "NAME: got '../up', expected small letters"),
        ("class", "NAME: got 'class', expected small letters"),
        ("mesa", "NAME: a kind mesa ships with recallmap, expected another name, such as my_mesa"),
    ],
)
def test_a_name_that_no_kind_can_have_is_refused(name: str, said: str, folder: Path) -> None:
    code, told = call("new", "mixer", name)
    assert (code, told.startswith(said)) == (2, True)
    assert not list(folder.iterdir())


def test_nothing_is_written_over(folder: Path) -> None:
    (folder / "my_fade.yaml").write_text("mine", encoding="utf-8")
    code, told = call("new", "mixer", "fade")
    assert code == 2
    assert told == "my_fade.yaml: exists, and is not written over; choose another name, or -o FOLDER\n"
    assert [path.name for path in folder.iterdir()] == ["my_fade.yaml"]
    assert call("new", "mixer", "fade", "-o", "other")[0] == 0
    assert sorted(path.name for path in (folder / "other").iterdir()) == ["my_fade.py", "my_fade.yaml"]
