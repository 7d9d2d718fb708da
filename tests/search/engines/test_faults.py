"""Whatever breaks, the ledger is whole and the study ends with every trial once: real Ray, real kills. Minutes."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.engines import inline, ray_workers

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
STEPS = 400  # of a trial: about a second
STUDY = {
    "name": "fragile",
    "trial": {
        "task": {"kind": "parity", "length": 16},
        "arch": {
            "name": "tiny",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "linear_attention", "heads": 2}}],
        },
        "training": {"steps": STEPS, "batch": 8, "evaluations": 6},
        "data": {"validation": 16, "test": 16},
    },
    "space": {"kind": "grid", "axes": {"trial.training.lr": [1e-3, 1e-2], "trial.seed": [0, 1, 2, 3]}},
}
SEARCH = STUDY | {
    "space": {
        "kind": "tpe",
        "points": 8,
        "generation": 4,
        "dials": {"trial.training.lr": {"float": [1e-4, 1e-1], "log": True}},
    }
}

# A driver of its own process. What stands in FAULT is done by every worker before it trains; what stands in DRIVER by
# the driver before it begins. Both are code that the test gives.
SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from recallmap.search import codec
from recallmap.search.engines import ray_workers

original = ray_workers._train

def fault(specs):
{fault}

def train(cohort, tell):  # of this file, so that it travels to the workers whole
    from recallmap.search.training import run_cohort
    whole = run_cohort.follow_cohort

    def follow(specs, **where):
        fault(specs)
        return (yield from whole(specs, **where))

    run_cohort.follow_cohort = follow
    try:
        return original(cohort, tell)
    finally:
        run_cohort.follow_cohort = whole

def report(report):
    for record in report.records:
        print("record", record.key, flush=True)
    if report.progress:
        print("progress", flush=True)

if __name__ == "__main__":
    ray_workers._train = train
    address = None
{driver}
    study, ledger = codec.read_study("study.yaml"), Path("study.sqlite")
    ray_workers.run(study, ledger, report=report, cohort_size={cohort_size}, address=address)
    print("ended", flush=True)
"""


class Place:
    """A folder with a study in it, and drivers that work on it."""

    def __init__(self, folder: Path, temporary: str) -> None:
        self.folder = folder
        self.temporary = temporary
        self.ledger = folder / "study.sqlite"
        self.write(STUDY)

    def write(self, study: dict[str, object]) -> None:
        (self.folder / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")

    def start(self, *, cohort_size: int = 1, fault: str = "pass", driver: str = "pass") -> subprocess.Popen[str]:
        script = SCRIPT.format(fault=_indented(fault), driver=_indented(driver), cohort_size=cohort_size)
        (self.folder / "driver.py").write_text(script, encoding="utf-8")
        return self.open([sys.executable, "driver.py"])

    def command(self, *words: str) -> subprocess.Popen[str]:
        """`recallmap run` with the Ray engine."""
        door = "import sys; from recallmap.search.cli import main; sys.argv[0] = 'recallmap'; main()"
        words = ("run", "study.yaml", "--ledger", "study.sqlite", "--engine", "ray", *words)
        return self.open([sys.executable, "-c", door, *words])

    def open(self, words: list[str]) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": self.temporary}
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def records(self) -> list[Record]:
        with Ledger.open(self.ledger) as ledger:
            return ledger.all()

    def check(self, status: str = "done", study: dict[str, object] = STUDY) -> dict[str, Record]:
        """The ledger is intact, and holds every trial of the study once; by key."""
        with sqlite3.connect(self.ledger) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.close()
        records = self.records()
        wanted = [codec.key(trial) for trial in codec.read_study(study).trials()]
        assert sorted(r.key for r in records) == sorted(wanted)
        assert {r.status for r in records} == set(status.split())
        return {r.key: r for r in records}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="f", dir="/tmp") as short:  # Ray's sockets have room for no more
        yield Place(tmp_path, short)
        assert _until(lambda: not _processes_in(short))
        monkeypatch.setattr(tempfile, "tempdir", short)
        ray_workers._sweep()  # as the next study does
        assert not list(Path(short).glob("recallmap-*"))


def test_a_driver_that_is_killed_three_times_loses_nothing_and_repeats_nothing(place: Place) -> None:
    kept: dict[str, str] = {}
    for _ in range(3):
        driver = place.start()
        wanted = len(kept) + random.randint(0, 1)
        _wait(driver, lambda wanted=wanted: len(_seen(place)) > wanted)
        time.sleep(random.uniform(0, 1))
        _kill(driver)
        seen = _seen(place)
        assert kept.items() <= seen.items()  # nothing lost, nothing trained again
        kept = seen
    _finish(place.start())
    found = place.check()
    assert kept.items() <= {key: r.created for key, r in found.items()}.items()


def test_a_search_whose_driver_is_killed_three_times_asks_every_point_once(place: Place) -> None:
    import optuna

    place.write(SEARCH)
    wanted = 0
    for _ in range(3):
        driver = place.start()
        wanted += random.randint(1, 2)
        _wait(driver, lambda wanted=wanted: len(_seen(place)) >= wanted)
        time.sleep(random.uniform(0, 1))
        _kill(driver)
        wanted = len(_seen(place))
    _finish(place.start())
    records = place.records()
    assert len(records) == len({r.key for r in records}) == 8
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(place.folder / "study.journal"))
    )
    (name,) = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=name, storage=storage).trials
    states = [t.state for t in trials]
    assert states.count(optuna.trial.TrialState.COMPLETE) == 8
    assert optuna.trial.TrialState.RUNNING not in states
    assert optuna.trial.TrialState.WAITING not in states


def test_a_worker_that_is_killed_mid_cohort_is_replaced(place: Place) -> None:
    driver = place.start(cohort_size=3)
    _wait_for_line(driver, "progress")
    worker = _until(lambda: _workers(driver.pid))
    os.kill(worker[0], signal.SIGKILL)
    _finish(driver)
    place.check()


def test_workers_stay_from_one_generation_of_a_search_to_the_next(place: Place) -> None:
    """It takes seconds to begin one."""
    place.write(SEARCH)
    _finish(place.start(fault="print(os.getpid(), file=open('workers', 'a'))"))
    workers = (place.folder / "workers").read_text(encoding="utf-8").split()
    assert len(workers) == 8
    assert len(set(workers)) <= len(os.sched_getaffinity(0))


def test_what_a_driver_leaves_that_is_killed_while_ray_starts_ends_at_the_next_start(place: Place) -> None:
    """Workers that are not yet through with their start notice for a minute that nobody waits for them."""
    driver = place.start()
    assert _until(lambda: any("default_worker.py" in name for name in _named(place.temporary).values()), seconds=120)
    (folder,) = Path(place.temporary).glob("recallmap-ray-*")
    _kill(driver)
    following = place.start()
    _wait_for_line(following, "progress")
    assert not _processes_in(str(folder))
    assert not folder.exists()
    _finish(following)
    place.check()


@pytest.mark.parametrize("program", ["raylet", "gcs_server"])
def test_a_study_whose_ray_is_gone_ends_and_says_so_and_goes_on(place: Place, program: str) -> None:
    driver = place.command("--cohort-size", "1")
    _wait(driver, lambda: len(_seen(place)) > 0)
    (victim,) = (p for p, name in _named(place.temporary).items() if name.split()[0].endswith(f"/{program}"))
    os.kill(victim, signal.SIGKILL)
    said, error = driver.communicate(timeout=60)
    assert driver.returncode == 1
    assert f"Ray is gone: its process {program} was ended by SIGKILL" in error
    assert "Traceback" not in error
    assert "state-dump" not in said + error
    kept = _seen(place)
    _finish(place.start())
    assert kept.items() <= {key: r.created for key, r in place.check().items()}.items()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_study_with_ray_that_is_stopped_says_how_to_go_on(place: Place, number: signal.Signals, code: int) -> None:
    driver = place.command("--cohort-size", "1")
    _wait(driver, lambda: len(_seen(place)) > 0)
    driver.send_signal(number)
    _, error = driver.communicate(timeout=60)
    assert driver.returncode == code
    assert f"stopped; {len(_seen(place))} of 8 trials are in study.sqlite. To resume:\n  recallmap run " in error
    assert "Traceback" not in error


# A cluster of two nodes. It tells its address, takes one node away at the next line that it is given, and ends with its input.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
node = cluster.add_node(num_cpus=1)
print("address", cluster.address, flush=True)
if sys.stdin.readline():
    cluster.remove_node(node)
    print("gone", flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def cluster(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "of-this-test"}
    for name, value in (
        ray_workers.QUIET | ray_workers.LOCAL | own
    ).items():  # of the command too, which then looks on this machine
        monkeypatch.setenv(name, value)
    process = place.open([sys.executable, "-c", CLUSTER])
    yield process
    process.communicate(timeout=60)


@pytest.mark.parametrize("study", [STUDY, SEARCH], ids=["grid", "search"])
def test_the_same_command_over_two_nodes_of_which_one_goes_makes_the_same_records(
    place: Place, cluster: subprocess.Popen[str], study: dict[str, object], tmp_path: Path
) -> None:
    """Every trial, and of a search every point, is what it is in one process without Ray."""
    place.write(study)
    address = _wait_for_line(cluster, "address").split()[1]
    driver = place.command("--address", address, "--cohort-size", "1")
    _wait(driver, lambda: len(_seen(place)) > 0)
    assert cluster.stdin is not None
    cluster.stdin.write("now\n")
    cluster.stdin.flush()
    _wait_for_line(cluster, "gone")
    _finish(driver)
    over_nodes = {record.key: record for record in place.records()}
    inline.run(codec.read_study(study), tmp_path / "inline.sqlite", device="cpu")
    with Ledger.open(tmp_path / "inline.sqlite") as ledger:
        alone = {record.key: record for record in ledger.all()}
    assert len(place.records()) == len(alone) == 8
    assert over_nodes.keys() == alone.keys()
    for key, record in alone.items():
        other = over_nodes[key]
        assert (other.status, other.scores, other.validation, other.curve) == (
            "done",
            record.scores,
            record.validation,
            record.curve,
        )


def test_a_trial_that_raises_fails_alone(place: Place) -> None:
    _finish(place.start(cohort_size=4, fault="if any(s.seed == 2 for s in specs): raise ValueError('no such thing')"))
    found = place.check("done failed")
    assert {r.seed for r in found.values() if r.status == "failed"} == {2}
    assert {r.error for r in found.values() if r.status == "failed"} == {"ValueError: no such thing"}


def test_a_trial_that_diverges_fails_alone(place: Place) -> None:
    study = STUDY | {"space": {"kind": "grid", "axes": {"trial.training.lr": [1e-2, 1e30], "trial.seed": [0, 1]}}}
    place.write(study)
    ended = place.command()
    assert "diverged: the loss was not finite at step" in _finish(ended, code=1)
    found = place.check("done failed", study)
    assert sorted((r.spec["training"]["lr"], r.seed, r.status) for r in found.values()) == [
        *((1e-2, seed, "done") for seed in (0, 1)),
        *((1e30, seed, "failed") for seed in (0, 1)),
    ]


def test_a_cohort_that_is_too_large_for_memory_is_halved_and_its_records_say_so(place: Place) -> None:
    _finish(place.start(cohort_size=4, fault="if len(specs) > 2: raise torch.OutOfMemoryError('CUDA out of memory')"))
    found = place.check()
    assert {r.cohort for r in found.values()} == {2}


def test_a_trial_that_brings_its_worker_down_fails_alone(place: Place) -> None:
    """As the kernel does when a machine's memory is used up."""
    study = STUDY | {"space": {"kind": "grid", "axes": {"trial.seed": [1, 2]}}}
    place.write(study)
    deadly, soon = "if any(s.seed == 2 for s in specs): os.kill(os.getpid(), 9)", "ray_workers.REST = 0.1"
    _finish(place.start(cohort_size=2, fault=deadly, driver=soon))
    found = place.check("done failed", study)
    (failed,) = (r for r in found.values() if r.status == "failed")
    assert failed.seed == 2
    assert "the worker died 6 times: " in str(failed.error)
    assert "worker process has died" in str(failed.error)


def test_a_full_disk_ends_the_study_and_room_lets_it_go_on(place: Place) -> None:
    small = """
    from recallmap.results.ledger import Ledger
    class Small(Ledger):
        def __enter__(self):
            super().__enter__()
            pages = self._db.execute("PRAGMA page_count").fetchone()[0]
            self._db.execute(f"PRAGMA max_page_count = {pages + 2}")
            return self
    ray_workers.Ledger = Small
    """
    driver = place.start(driver=small)
    _, error = driver.communicate(timeout=300)
    assert driver.returncode == 1
    assert "LedgerError" in error
    assert "the disk is full; free some space and run the same command again" in error
    kept = _seen(place)
    assert 0 < len(kept) < 8
    _finish(place.start())
    assert kept.items() <= {key: r.created for key, r in place.check().items()}.items()


def test_a_second_driver_on_the_same_ledger_is_refused(place: Place) -> None:
    first = place.start()
    _wait(first, lambda: len(_seen(place)) > 0)
    second = place.command()
    _, error = second.communicate(timeout=120)
    assert second.returncode == 2
    assert f"being written by process {first.pid}" in error
    _finish(first)
    place.check()


def test_a_study_that_was_edited_says_what_is_known_and_trains_the_rest(place: Place) -> None:
    _finish(place.command())
    before = {key: r.created for key, r in place.check().items()}
    wider = STUDY | {"space": {"kind": "grid", "axes": {"trial.training.lr": [1e-2, 1e-1], "trial.seed": [0, 1, 2, 3]}}}
    place.write(wider)
    said = _finish(place.command())
    assert "8 trials, 4 known, 4 to train" in said
    assert "4 known, 4 done, 0 failed" in said
    after = {r.key: r.created for r in place.records()}
    assert len(after) == 12
    assert before.items() <= after.items()


# What tests do --------------------------------------------------------------------------------------


def _indented(code: str) -> str:
    lines = [line for line in code.splitlines() if line.strip()]
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    return "\n".join(f"    {line[margin:]}" for line in lines)


def _finish(driver: subprocess.Popen[str], code: int = 0) -> str:
    said, error = driver.communicate(timeout=400)
    assert driver.returncode == code, said + error
    return said


def _kill(driver: subprocess.Popen[str]) -> None:
    driver.kill()
    driver.communicate()


def _seen(place: Place) -> dict[str, str]:
    """When each record was made, by key."""
    if not place.ledger.exists():
        return {}
    return {r.key: r.created for r in place.records()}


def _wait(driver: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    assert _until(lambda: happened() or driver.poll() is not None, seconds=120)
    assert driver.poll() is None, driver.communicate()


def _wait_for_line(driver: subprocess.Popen[str], word: str) -> str:
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.startswith(word):
            return line
    raise AssertionError(f"the driver ended without '{word}': {driver.communicate()}")


def _until(happened: Callable[[], object], seconds: float = 30) -> object:
    deadline = time.monotonic() + seconds
    while not (found := happened()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _processes_in(folder: str) -> list[int]:
    """Those that Ray started there and that are still alive."""
    return list(_named(folder))


def _named(folder: str) -> dict[int, str]:
    """The same with their command lines."""
    found = {}
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_text(errors="replace").replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if folder in words:
            found[int(line.parent.name)] = words
    return found


def _workers(driver: int) -> list[int]:
    """Processes below the driver that train right now."""
    parents, names = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
            names[int(stat.parent.name)] = (stat.parent / "cmdline").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue

    def is_below(process: int) -> bool:
        while process in parents:
            if process == driver:
                return True
            process = parents[process]
        return False

    return [p for p, name in names.items() if name.startswith("ray::") and ".follow" in name and is_below(p)]
