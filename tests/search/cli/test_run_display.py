"""What a run shows: lines of JSON, only its end, plain lines, or a live display that fits the terminal."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.cli import run_display
from recallmap.search.cli.app import app
from recallmap.search.cli.json_events import Events
from recallmap.search.cli.json_text import document, line
from recallmap.search.cli.live_display import LiveDisplay, is_lively
from recallmap.search.cli.pace import Pace, best_of
from recallmap.search.cli.run_display import End, Lines, Names
from recallmap.search.engines.plan import Report, Work
from recallmap.search.engines.time_spent import TimeSpent
from recallmap.search.measurement.gpu_busy import BusyShare
from recallmap.search.training.checkpoints import SavedCohort
from recallmap.search.training.outcome import Progress

GUIDE = Path(__file__).parents[3] / "docs" / "terminal.md"
STUDY = """\
name: story
trial:
  task: {kind: mqar, vocab: 32, length: 16, pairs: 2}
  arch: {name: tiny, width: 16, stack: [{kind: block, mixer: {kind: linear_attention, heads: 2}}]}
  training: {steps: 4, batch: 8, evaluations: 2}
  data: {validation: 16, test: 16}
space: {kind: grid, axes: {"trial.arch.stack[0].mixer.key_dim": [4, 8]}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "story.yaml").write_text(STUDY)
    return tmp_path


def call(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def told(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def documented() -> dict[str, set[str]]:
    """The fields of every event, as the guide lists them."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    return {event: {"event", *re.findall(r"`(\w+)`", fields)} for event, fields in rows}


# JSON. --------------------------------------------------------------------------------------------


def test_a_run_is_told_in_lines_of_json_with_the_fields_that_the_guide_lists() -> None:
    code, text, errors = call("run", "story.yaml", "--json")
    events = told(text)
    assert (code, errors) == (0, "")
    kinds = [event["event"] for event in events]
    assert [kinds[0], kinds[-1]] == ["began", "end"]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "began": 1,
        "cohort": 2,
        "progress": kinds.count("progress"),
        "trial": 2,
        "end": 1,
    }
    fields = documented()
    assert all(set(event) == fields[event["event"]] for event in events)
    trials = [event for event in events if event["event"] == "trial"]
    assert [(trial["status"], trial["varies"], trial["seed"]) for trial in trials] == [
        ("done", {"key_dim": 4}, 0),
        ("done", {"key_dim": 8}, 0),
    ]
    assert {key for event in events for key in event.get("keys", [])} == {trial["key"] for trial in trials}
    end = events[-1]
    assert (end["status"], end["exit_code"], end["done"], end["next"]) == (
        "finished",
        0,
        2,
        "recallmap table story.yaml",
    )
    assert sum(end["time"]["phases_s"].values()) == pytest.approx(end["time"]["wall_s"], rel=0.1)
    # Again all is known, and nothing trains.
    (began, end) = told(call("run", "story.yaml", "--json")[1])
    assert (began["known"], end["known"], end["done"], end["time"]) == (2, 2, 0, None)


def test_a_search_says_in_json_what_varies_in_its_blocks() -> None:
    small = ("budget=smoke", "space.points=1", "space.beside=[]", "space.anchors=[]")
    given = ("hybrid_search", *(word for one in small for word in ("--set", one)), "--json")
    code, text, errors = call("run", *given)
    events = told(text)
    assert (code, errors) == (0, "")
    fields = documented()
    assert all(set(event) == fields[event["event"]] for event in events)
    hybrids = [e for e in events if e["event"] == "trial" and e["arch"].startswith("hybrid_")]
    assert hybrids
    for trial in hybrids:
        letters = {name.partition(".")[0] for name in trial["varies"]}
        assert letters == set(trial["arch"].removeprefix("hybrid_")) - {"c"}  # whose block has no options
    assert any(event["event"] == "note" and event["text"].startswith("tpe 0: ") for event in events)
    front = json.loads(call("best", *given)[1])
    assert [goal["name"] for goal in front["goals"]] == ["accuracy", "state_bytes"]
    assert front["winner"] in {point["point"] for point in front["front"]}
    assert {point["point"] for point in front["front"]} <= {point["point"] for point in front["trained"]}
    assert len(front["trained"]) == front["points"]
    assert 0 < front["records"]["number"] <= len([event for event in events if event["event"] == "trial"])


def test_a_run_that_cannot_begin_complains_on_stderr_alone() -> None:
    code, text, errors = call("run", "nosuch.yaml", "--json")
    assert (code, text) == (2, "")
    assert "nosuch.yaml" in errors
    code, text, errors = call("run", "story.yaml", "--json", "--quiet")
    assert (code, text, errors) == (2, "", "--json prints the events of a run, got --quiet, too; leave one out\n")


def test_a_quiet_run_says_its_end_and_what_failed() -> None:
    code, text, errors = call("run", "story.yaml", "-q")
    assert (code, errors) == (0, "")
    assert [words.partition(" ")[0] for words in text.splitlines()] == ["time:", "0", "next:"]
    code, text, errors = call("run", "story.yaml", "-q", "--set", "trial.training.lr=1e30")
    assert code == 1
    assert errors.splitlines()[0].startswith("FAILED  tiny  mqar")
    assert text.splitlines()[-2].startswith("0 known, 0 done, 2 failed, in ")


def test_json_has_no_number_that_json_has_not() -> None:
    assert line({"a": math.nan, "b": (0.1 + 0.2, math.inf), "c": Path("x")}) == (
        '{"a": null, "b": [0.30000000000000004, null], "c": "x"}'
    )
    assert json.loads(document([{"a": True}])) == [{"a": True}]


@pytest.mark.parametrize("what", ["tasks", "mixers", "suites", "samplers"])
def test_a_list_in_json_has_the_rows_of_its_table(what: str) -> None:
    rows = json.loads(call("list", what, "--json")[1])
    names = [next(iter(row.values())) for row in rows]
    assert [line.split(" ")[1] for line in call("list", what, "--markdown")[1].splitlines()[2:]] == names


def test_cost_and_table_in_json_have_numbers_as_they_are() -> None:
    cost = json.loads(call("cost", "mesa", "--json")[1])
    assert f"{cost['parameters']:,}" in call("cost", "mesa")[1]
    assert cost["state_floats"] * 4 == cost["state_bytes"]
    kept = Path(__file__).parents[3] / "results" / "records" / "mad_rates_cpu.jsonl"
    code, text, errors = call("table", str(kept), "--json")
    tables = json.loads(text)
    assert (code, errors) == (0, "")
    assert all(len(row["cells"]) == len(table["columns"]) for table in tables for row in table["lines"])
    assert call("table", str(kept), "--json", "--format", "csv")[0] == 2


# The end of a run that was stopped, and the begin of one that is resumed. ----------------------------


def saved(step: int, steps: int | None = 400, *, in_phase: bool = False) -> SavedCohort:
    return SavedCohort(step=step, steps=steps, trials=2, in_phase=in_phase, owners=frozenset())


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([saved(240)], "1 cohort is saved at step 240 of 400"),
        ([saved(240, 12_000)], "1 cohort is saved at step 240 of 12,000"),
        ([saved(240, None)], "1 cohort is saved at step 240"),  # by an earlier version
        ([saved(24, in_phase=True)], "1 cohort is saved at step 24 of 400 of a phase"),
        ([saved(240), saved(80)], "2 cohorts are saved at step 240 of 400 and 80 of 400"),
        ([saved(240), saved(80), saved(9)], "3 cohorts are saved at step 240 of 400, 80 of 400 and 9 of 400"),
        ([saved(step) for step in (40, 9, 240, 80)], "4 cohorts are saved at steps 9 to 240"),
    ],
)
def test_the_end_of_a_stopped_run_says_which_steps_are_saved(found: list[SavedCohort], said: str) -> None:
    end = End(status="stopped", code=130, ledger=Path("x.sqlite"), next="recallmap run x", saved=found)
    assert end.lines(reported(1))[-2:] == [
        f"stopped; 13 of 54 trials are in x.sqlite; {said}. To resume:",
        f"  {end.next}",
    ]


@pytest.mark.parametrize(
    ("cohorts", "said"),
    [
        (0, "x.sqlite. To resume:"),
        (1, "x.sqlite; the cohort under way is not saved and begins anew. To resume:"),
        (3, "x.sqlite; 3 cohorts under way are not saved and begin anew. To resume:"),
    ],
)
def test_the_end_of_a_stopped_run_says_what_begins_anew(cohorts: int, said: str) -> None:
    end = End(status="stopped", code=130, ledger=Path("x.sqlite"), next="recallmap run x")
    assert end.lines(reported(cohorts))[-2].endswith(said)


def test_the_end_in_json_lists_the_saved_cohorts(capsys: pytest.CaptureFixture[str]) -> None:
    events = Events(Names(), "story", "x.sqlite")
    events.end(End(status="out of time", code=124, ledger=Path("x.sqlite"), next="again", saved=[saved(240)]))
    (end,) = told(capsys.readouterr().out)
    assert end["saved"] == [{"trials": 2, "step": 240, "steps": 400}]


@pytest.mark.parametrize("form", [Lines, LiveDisplay])
def test_a_resumed_cohort_has_a_line_with_its_step(form: type[Lines]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=24, color_system=None)
    display = form(Names(), console)
    with console.capture() as caught:
        display(reported(2, progress=progress(240, resumed=True, loss=math.nan)))
        display(reported(2, progress=progress(300)))
    assert caught.get().splitlines()[1:] == ["cohort 1 is resumed at step 240 of 900"]


# Signs of life. -------------------------------------------------------------------------------------


def test_plain_lines_say_how_far_a_run_is_after_ten_seconds_and_then_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(run_display, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=120)
    display, said = Lines(Names(), console), []
    for second in range(0, 200, 5):
        now[0] = float(second)
        with console.capture() as caught:
            display(reported(1, progress=progress(second)))
        if f"cohort 1 of 21  step {second}/900" in caught.get():
            said.append(second)
    assert said == [10, 70, 130, 190]


# The live display. ----------------------------------------------------------------------------------


def works(count: int) -> tuple[Work, ...]:
    trials = codec.read_study("story.yaml").trials()
    return tuple(Work(number=number, specs=trials) for number in range(1, count + 1))


def reported(cohorts: int, **rest: Any) -> Report:
    counts: dict[str, Any] = {"trials": 54, "known": 3, "done": 10, "failed": 1, "seconds": 9.0, "eta": 4000.0}
    busy = BusyShare()
    busy.add(0.7)
    known = {"cohort": 1, "cohorts": 21, "under_way": works(cohorts), "time": TimeSpent(busy=busy)}
    return Report(**{**counts, **known, **rest})


def progress(step: int, **rest: Any) -> Progress:
    return Progress(**{"step": step, "steps": 900, "members": 2, "loss": 1.25, "accuracy": (0.5, math.nan), **rest})


def record(**rest: Any) -> Record:
    (trial, *_) = codec.read_study("story.yaml").trials()
    names = {"task": "mqar", "setting": "pairs=2", "arch": "tiny\x1b[31m", "seed": 0, "study": "s", "protocol": ""}
    known: dict[str, Any] = {"key": "k", "status": "done", "scores": {"accuracy": 0.75}, "chance": 0.25, **names}
    return Record(spec=codec.plain(trial), **{**known, **rest})


def picture(wide: int, high: int = 24, cohorts: int = 2) -> list[str]:
    """The lines of a display on a terminal of so many columns and lines."""
    console = Console(file=io.StringIO(), force_terminal=True, width=wide, height=high, color_system=None)
    display = LiveDisplay(Names(), console)
    display.pace.clock = iter(range(100)).__next__  # type: ignore[assignment]
    for step in (100, 200):
        display.pace.hear(reported(cohorts, progress=progress(step)))
    display.last, display.best = reported(cohorts), record()
    with console.capture() as caught:
        console.print(display.picture())
    return [text.rstrip() for text in caught.get().splitlines()]


def test_a_display_says_how_far_trials_and_cohorts_are() -> None:
    trials, first, second, last = picture(120)
    assert re.fullmatch(r"trials +━+╸? +13/54  1 failed  1 h 7 min left  4 running", trials)
    assert re.fullmatch(r"cohort 1 +━+╸? +200/900  loss 1.250  best 0.500  \d+ s left  2 x tiny on mqar", first)
    assert re.fullmatch(r"cohort 2 +begins  2 x tiny on mqar", second)
    assert last == "GPU busy 70%  best so far accuracy 0.7500: tiny\\x1b[31m on mqar pairs=2"


@pytest.mark.parametrize("wide", [4, 20, 40, 80, 200])
@pytest.mark.parametrize("high", [5, 24])
def test_a_display_is_no_wider_and_no_higher_than_the_terminal(wide: int, high: int) -> None:
    lines = picture(wide, high, cohorts=30)
    assert max(map(len, lines)) <= max(4, wide - 2)
    assert len(lines) <= max(4, high - 1)
    if wide >= 20:
        assert lines[0].startswith("trials")
        assert any("more coho" in text for text in lines)
    if wide >= 40:
        assert "13/54" in lines[0]
        assert "200/900" in lines[1]


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert is_lively(Console(file=io.StringIO(), force_terminal=True))
    assert not is_lively(Console(file=io.StringIO(), force_terminal=False))
    monkeypatch.setenv("TERM", term)
    assert not is_lively(Console(file=io.StringIO(), force_terminal=True))


def test_a_display_is_cleared_and_the_cursor_comes_back_after_ctrl_c() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=24)
    display = LiveDisplay(Names(), console)

    def interrupted() -> None:
        with display:
            display(reported(1, progress=progress(100)))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    text = out.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # hidden, and shown again
    assert text.endswith("\x1b[?25h\r" + "\x1b[1A\x1b[2K" * 3)  # its three lines


def test_a_cohort_ends_by_its_pace_since_its_first_progress() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    assert pace.left(1) is None
    for now[0], step in ((50.0, 100), (60.0, 200)):  # what came before the first progress does not count
        pace.hear(reported(1, progress=progress(step)))
    assert pace.left(1) == pytest.approx(70.0)
    resumed = Pace(lambda: now[0])
    resumed.hear(reported(1, progress=progress(100, resumed=True)))
    resumed.hear(reported(1, progress=progress(200)))
    assert resumed.left(1) is None  # what is compiled before the first step lies between
    now[0] = 65.0
    assert pace.left(1) == pytest.approx(65.0)
    pace.hear(reported(1, progress=progress(300, ended={"k": record()})))
    assert pace.running(reported(1)) == 1
    pace.hear(reported(1, records=(record(),)))
    assert pace.left(1) is None


def test_the_best_trial_is_nearest_to_its_ceiling() -> None:
    easy = record(scores={"accuracy": 0.8}, chance=0.75)
    hard = record(scores={"accuracy": 0.5}, chance=0.1)
    assert best_of(best_of(None, easy), hard) is hard
    assert best_of(hard, easy) is hard
    assert best_of(hard, replace(easy, status="failed")) is hard
    assert best_of(None, record(metric="loss", scores={"loss": 3.0})) is None
