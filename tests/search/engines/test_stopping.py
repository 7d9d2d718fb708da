"""Signals that ask us to end: heard once, ignored where they were, and no longer ours afterwards."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from recallmap.search.engines.stopping import ASKING, stoppable, undisturbed

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ASKING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ASKING)
def test_who_asks_twice_is_heard_once(number: signal.Signals) -> None:
    tidied = False
    with stoppable() as stop:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            os.kill(os.getpid(), number)  # while we tidy up
            tidied = True
    assert tidied
    assert stop.code == 128 + number
    assert signal.getsignal(number) is signal.SIG_DFL


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stoppable():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_library_that_takes_a_signal_gives_it_back() -> None:
    with stoppable() as stop:
        with undisturbed():
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert stop.code == 128 + signal.SIGTERM
    with undisturbed():  # where nobody listens, the library may
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler


def test_a_study_whose_terminal_is_closed_ends_as_if_it_was_stopped(tmp_path: Path) -> None:
    """There is nobody to tell, which is no fault."""
    trial = {
        "task": {"kind": "parity", "length": 8},
        "arch": "mesa",
        "training": {"steps": 1_000_000, "batch": 4, "evaluations": 1},
        "data": {"validation": 8, "test": 8},
    }
    study = {"name": "long", "trial": trial, "space": {"kind": "grid"}}
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    ours, theirs = pty.openpty()
    program = "from recallmap.search.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "run", "long.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        said = b""
        while b"1 to train" not in said:
            said += os.read(ours, 1000)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 128 + signal.SIGHUP
