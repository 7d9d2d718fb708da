"""Processes that somebody left: those with the mark are found and ended, with what they started, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from recallmap.search.engines.processes import children, end_marked, how_it_ended, marked, marking

NAME = "RECALLMAP_TEST"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(words or ("sleep", "600"), stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def test_those_with_the_mark_are_ended_with_what_they_started_and_no_others(stack: ExitStack, tmp_path: Path) -> None:
    mark = str(tmp_path)
    stranger = start(stack)
    with marking(NAME, mark + "0"):
        other = start(stack)
    with marking(NAME, mark):
        ours = start(stack, "sh", "-c", "sleep 600 & echo $!; wait")
        deaf = start(stack, sys.executable, "-c", DEAF)
    assert ours.stdout is not None
    assert deaf.stdout is not None
    below = int(ours.stdout.readline())
    deaf.stdout.readline()
    assert NAME not in os.environ
    assert sorted(marked(NAME, mark)) == sorted((ours.pid, below, deaf.pid))
    assert children(NAME, mark) == {ours.pid: "sh", deaf.pid: Path(sys.executable).name[:15]}
    assert how_it_ended(ours.pid) is None

    end_marked(NAME, mark)
    assert marked(NAME, mark) == []
    assert how_it_ended(ours.pid) == "was ended by SIGKILL"
    assert (ours.wait(10), deaf.wait(10)) == (-signal.SIGKILL, -signal.SIGKILL)
    assert how_it_ended(ours.pid) == "ended"  # who it was we no longer know
    assert (stranger.poll(), other.poll()) == (None, None)
    end_marked(NAME, mark)


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"


def test_a_process_that_ends_by_itself_tells_its_code(stack: ExitStack) -> None:
    process = start(stack, "sh", "-c", "exit 3")
    deadline = time.monotonic() + 10
    while (how := how_it_ended(process.pid)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert how == "ended with code 3"
    assert process.wait() == 3  # who started it hears of it all the same


def test_a_mark_that_was_there_before_is_there_again() -> None:
    with marking(NAME, "first"):
        with marking(NAME, "second"):
            assert os.environ[NAME] == "second"
        assert os.environ[NAME] == "first"
    assert NAME not in os.environ


def test_where_nothing_tells_of_processes_none_is_ended(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with marking(NAME, str(tmp_path)):
        ours = start(stack)
    monkeypatch.setattr("recallmap.search.engines.processes.PROC", tmp_path / "none")
    end_marked(NAME, str(tmp_path))
    assert children(NAME, str(tmp_path)) == {}
    assert ours.poll() is None
