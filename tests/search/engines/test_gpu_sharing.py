"""The service by which processes share a GPU is started for a run, and ends with it. Here a script plays its part."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from recallmap.search.engines import gpu_sharing
from recallmap.search.engines.gpu_sharing import FOLDER, SERVICE, cohorts_at_once, side_by_side_on

GPU = torch.device("cuda")
SCRIPT = f"""#!/bin/sh
if [ "$1" = -f ]; then
    echo $$ > "$SAID/pid"
    touch "${FOLDER}/control"
    until [ -e "$SAID/quit" ]; do sleep 0.02; done
else
    cat > "$SAID/quit"
fi
"""


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the service says what it does."""
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setenv("SAID", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    play(tmp_path, SCRIPT)
    return tmp_path


def play(folder: Path, script: str) -> None:
    (folder / SERVICE).write_text(script)
    (folder / SERVICE).chmod(0o755)


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def gone(pid: int) -> bool:
    until = time.monotonic() + 30
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not runs(pid)


def test_it_runs_while_cohorts_train_and_no_longer(said: Path) -> None:
    with side_by_side_on(GPU) as environment:
        folder = Path(environment[FOLDER])
        pid = int((said / "pid").read_text())
        assert folder.is_dir()
        assert runs(pid)
    assert (said / "quit").read_text() == "quit\n"
    assert gone(pid)
    assert not folder.exists()


def test_it_ends_with_a_process_that_is_killed(said: Path) -> None:
    child = os.fork()
    if not child:
        with side_by_side_on(GPU):
            os._exit(0)  # as if killed: nothing is tidied up
    os.waitpid(child, 0)
    assert gone(int((said / "pid").read_text()))


def test_nothing_is_started_where_it_does_not_serve(said: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with side_by_side_on(torch.device("cpu")) as environment:
        assert environment == {}
    monkeypatch.setenv(FOLDER, "/run/theirs")
    with side_by_side_on(GPU) as environment:  # the user's own is inherited
        assert environment == {}
    monkeypatch.delenv(FOLDER)
    (said / SERVICE).unlink()
    with side_by_side_on(GPU) as environment:
        assert environment == {}
    assert not (said / "pid").exists()


def test_processes_take_turns_where_it_does_not_start(said: Path) -> None:
    play(said, "#!/bin/sh\nexit 1\n")
    with side_by_side_on(GPU) as environment:
        assert environment == {}


def test_processes_take_turns_where_it_does_not_answer(said: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(said, '#!/bin/sh\n[ "$1" = -f ] && exec sleep 60\nexit 0\n')
    monkeypatch.setattr(gpu_sharing, "Program", lambda module: _Impatient(module))
    with side_by_side_on(GPU) as environment:
        assert environment == {}


class _Impatient(gpu_sharing.Program):
    def __init__(self, module: str) -> None:
        super().__init__(f"{module} import PATIENCE; import {module}; {module}.PATIENCE = 0.1\nfrom {module}")


def test_cohorts_train_at_once_where_their_kernels_run_side_by_side(said: Path) -> None:
    assert cohorts_at_once(torch.device("cpu")) == 1
    assert cohorts_at_once(GPU) == gpu_sharing.AT_ONCE
    (said / SERVICE).unlink()
    assert cohorts_at_once(GPU) == 1
