"""The Ray engine as a specification: workers train, the driver hands out and keeps, nothing but loopback listens."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from recallmap.results.ledger import Ledger, LedgerError
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.engines import inline, ray_workers
from recallmap.search.engines.desk import Desk
from recallmap.search.engines.driver import Driver, EngineError
from recallmap.search.engines.plan import Report
from recallmap.search.engines.processes import how_it_ended, marking
from recallmap.search.engines.ray_workers import INSIDE, LIVES, LONGEST, NOWHERE, QUIET, REST
from recallmap.search.engines.shipped import MARK
from recallmap.search.engines.stopping import stoppable
from recallmap.search.study.spec import StudySpec
from recallmap.search.training import device_time, run_cohort
from recallmap.search.training.outcome import Progress
from recallmap.search.trials import Trial

ROOT = Path(__file__).parents[3]
TINY = {
    "name": "tiny",
    "trial": {
        "task": {"kind": "parity", "length": 8},
        "arch": {
            "name": "tiny",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "linear_attention", "heads": 2}}],
        },
        "training": {"steps": 5, "batch": 8, "evaluations": 1},
        "data": {"validation": 16, "test": 16},
    },
    "space": {"kind": "grid", "axes": {"trial.training.lr": [1e-3, 1e-2], "trial.seed": [0, 1, 2, 3]}},
}


def study() -> StudySpec:
    return codec.read_study(TINY)


def done(spec: Trial) -> Record:
    return replace(run_cohort.failed(spec, "", study="tiny", device=torch.device("cpu")), status="done", error=None)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "tiny.sqlite") as held:
        yield held


@pytest.fixture
def desk(ledger: Ledger) -> Desk:
    return Desk(Driver(study(), ledger, cohort_size=4, where="cpu"), "cpu", lives=LIVES, rest=REST)


# Between workers and the driver ------------------------------------------------------------------------


def test_cohorts_go_out_one_by_one_and_come_home_in_any_order(desk: Desk, ledger: Ledger) -> None:
    first, second = desk.ask("a"), desk.ask("b")
    assert first is not None
    assert second is not None
    assert [s.seed for s in first.specs] == [s.seed for s in second.specs] == [0, 1, 2, 3]
    assert (desk.ask("c"), desk.finished) == (None, False)
    desk.keep("b", [done(s) for s in second.specs])
    assert not desk.finished
    desk.keep("a", [done(s) for s in first.specs])
    assert desk.finished
    assert len(ledger.keys()) == 8


def test_what_won_goes_out_once_the_grid_is_home(ledger: Ledger) -> None:
    desk = Desk(Driver(study(), ledger, cohort_size=4, where="cpu", seeds=6), "cpu")
    first, second = desk.ask("a"), desk.ask("b")
    assert first is not None
    assert second is not None
    for name, cohort, score in (("b", second, 0.9), ("a", first, 0.1)):
        assert (desk.ask("c"), desk.finished) == (None, False)
        known = {"scores": {"accuracy": score}, "validation": {"accuracy": score}}
        desk.keep(name, [replace(done(s), **known) for s in cohort.specs])
    further = desk.ask("c")
    assert further is not None
    assert [(s.training.lr, s.seed) for s in further.specs] == [(second.specs[0].training.lr, s) for s in (4, 5)]
    desk.keep("c", [done(s) for s in further.specs])
    assert (desk.ask("d"), desk.finished) == (None, True)


def test_what_is_through_counts_though_its_cohort_dies_and_the_rest_of_it_fails(ledger: Ledger) -> None:
    """By the records of its first life: the next may fail where the first did not."""
    reports: list[Report] = []
    desk = Desk(Driver(study(), ledger, report=reports.append, cohort_size=4, where="cpu"), "cpu")
    cohort = desk.ask("a")
    assert cohort is not None
    through = Progress(step=5, steps=5, members=4, loss=0.0, accuracy=(0.0,), ended={0: done(cohort.specs[0])})
    desk.progress("a", through)
    assert (reports[-1].done, reports[-1].failed) == (1, 0)
    desk.keep("a", [run_cohort.failed(s, "", study="tiny", device=torch.device("cpu")) for s in cohort.specs])
    assert (reports[-1].done, reports[-1].failed) == (1, 3)
    assert [r.status for r in ledger.all()].count("done") == 1


def test_a_cohort_that_kills_its_workers_goes_on_in_halves_until_the_trial_at_fault_fails_alone(
    desk: Desk, ledger: Ledger
) -> None:
    desk.rest = 0.0
    sizes = []
    for name in map(str, range(20)):
        cohort = desk.ask(name)
        if cohort is None:
            break
        sizes.append(len(cohort.specs))
        if any(s.seed == 2 and s.training.lr == 1e-3 for s in cohort.specs):
            desk.lost(name, "killed by the kernel")
        else:
            desk.keep(name, [done(s) for s in cohort.specs])
    assert sizes == [4, 2, 2, 1, 1, 1, 4]
    assert desk.finished
    assert desk.error is None
    failed = [r for r in ledger.all() if r.status == "failed"]
    assert len(ledger) == 8
    assert [(r.seed, r.error) for r in failed] == [(2, "the worker died 6 times: killed by the kernel")]
    assert [r.key for r in ledger.all()] == [codec.key(s) for s in study().trials()]


def test_a_trial_whose_worker_died_rests_while_others_go_on(desk: Desk) -> None:
    for name in "abcde":  # of the first cohort one trial is left in the end
        cohort = desk.ask(name)
        assert cohort is not None
        desk.lost(name, "its node is gone")
        if len(cohort.specs) == 1:
            break
    assert len(desk.resting) == 1
    others = []
    for name in "klmnop":
        if (cohort := desk.ask(name)) is not None:
            others += cohort.specs
            desk.keep(name, [done(s) for s in cohort.specs])
    assert len(others) == 7
    assert not desk.finished


def test_a_study_whose_ledger_cannot_be_written_ends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(record: Record) -> bool:
        raise LedgerError("the disk is full")

    cohort = desk.ask("a")
    assert cohort is not None
    monkeypatch.setattr(desk.driver.ledger, "add", full)
    desk.keep("a", [done(s) for s in cohort.specs])
    assert isinstance(desk.error, LedgerError)
    assert desk.finished
    assert desk.ask("b") is None


def test_a_study_that_is_known_starts_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.sqlite"
    with Ledger(path) as ledger:
        for spec in study().trials():
            ledger.add(done(spec))

    def never(environment: dict[str, str]) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr("recallmap.search.engines.ray_workers._ray", never)
    assert len(ray_workers.run(study(), path).missing) == 0


# Where Ray lies ---------------------------------------------------------------------------------------


def test_folders_of_killed_drivers_are_swept_and_those_in_use_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("recallmap.search.engines.ray_workers.LONGEST", 4096)
    (tmp_path / "recallmap-ray-old" / "session").mkdir(parents=True)
    (tmp_path / "another").mkdir()
    with ray_workers._temporary_folder() as used:
        ray_workers._sweep()
        assert {p.name for p in tmp_path.iterdir()} == {"another", used.name}
    assert {p.name for p in tmp_path.iterdir()} == {"another"}


def test_a_temporary_folder_is_short_enough_for_rays_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr(ray_workers.tempfile, "gettempdir", lambda: str(deep))
    with ray_workers._temporary_folder() as folder:
        assert len(str(folder / INSIDE)) <= LONGEST
        assert folder.stat().st_mode & 0o777 == 0o700


def test_what_killed_drivers_left_running_ends_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of a driver that still goes."""
    monkeypatch.setattr(ray_workers.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("recallmap.search.engines.ray_workers.LONGEST", 4096)
    monkeypatch.setattr("recallmap.search.engines.ray_workers._ray", None)
    left = tmp_path / "recallmap-ray-left"
    left.mkdir()
    path = tmp_path / "tiny.sqlite"
    with Ledger(path) as ledger:
        for spec in study().trials():
            ledger.add(done(spec))
    with contextlib.ExitStack() as stack:
        used = stack.enter_context(ray_workers._temporary_folder())
        lost, going = stack.enter_context(_sleeping(left)), stack.enter_context(_sleeping(used))
        ray_workers.run(study(), path)
        assert lost.wait(10) == -signal.SIGKILL
        assert going.poll() is None
        assert not left.exists()
        assert used.exists()


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("recallmap.search.engines.ray_workers.LONGEST", 4096)
    (tmp_path / "somebodys").mkdir()
    (tmp_path / "recallmap-ray-link").symlink_to(tmp_path / "somebodys")
    with _sleeping(tmp_path / "recallmap-ray-link") as process:
        ray_workers._sweep()
        assert process.poll() is None
    assert (tmp_path / "somebodys").is_dir()


@contextlib.contextmanager
def _sleeping(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process as Ray starts them for a driver with this folder."""
    with marking(MARK, str(folder)):
        process = subprocess.Popen(["sleep", "600"])
    with process:
        try:
            yield process
        finally:
            process.kill()


# What Ray is given, and what becomes of it ----------------------------------------------------------------


class _FakeRay:
    """Takes SIGTERM, as Ray does, and remembers what it was given."""

    def __init__(self) -> None:
        self.ended = False

    def init(self, **given: Any) -> None:
        self.given, self.environment = given, dict(os.environ)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))

    def shutdown(self) -> None:
        self.ended = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[_FakeRay]:
    ray = _FakeRay()
    before, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)

    def loaded(environment: dict[str, str]) -> _FakeRay:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return ray

    monkeypatch.setattr("recallmap.search.engines.ray_workers._ray", loaded)
    assert MARK not in before
    yield ray
    signal.signal(signal.SIGTERM, handler)


def test_ray_is_started_for_us_alone_and_asks_nobody(
    desk: Desk, fake: _FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from requests.utils import get_environ_proxies, select_proxy

    monkeypatch.setenv("NO_PROXY", "169.254.169.254,metadata.google.internal")
    with stoppable() as stop, ray_workers._started(tmp_path, desk):
        assert MARK not in os.environ  # what else this process starts is not Ray's
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert stop.code == 128 + signal.SIGTERM
    assert fake.ended
    assert fake.given["_temp_dir"] == str(tmp_path / INSIDE)
    assert fake.given["include_dashboard"] is False
    assert fake.environment[MARK] == str(tmp_path)
    assert fake.environment["RAY_USAGE_STATS_ENABLED"] == "0"
    monkeypatch.setattr(os, "environ", fake.environment)
    for host in ("169.254.169.254", "metadata.google.internal"):  # whom Ray asks on which cloud it runs
        url = f"http://{host}/latest/meta-data/"
        assert select_proxy(url, get_environ_proxies(url)) == NOWHERE


def test_a_ray_that_does_not_start_says_why(
    desk: Desk, fake: _FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(**given: Any) -> None:
        raise RuntimeError("The node timed out during startup.\nA long story.")

    monkeypatch.setattr(fake, "init", late)
    with pytest.raises(EngineError, match=r"^Ray does not start: The node timed out during startup\.$"):
        ray_workers._started(tmp_path, desk).__enter__()
    assert fake.ended


@pytest.mark.parametrize(("program", "lost"), [("raylet", True), ("gcs_server", True), ("python", False)])
def test_a_study_ends_where_ray_itself_is_gone_and_not_with_what_ray_can_do_without(
    desk: Desk, fake: _FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, lost: bool
) -> None:
    monkeypatch.setattr("recallmap.search.engines.ray_workers.LOOK", 0.01)
    with _sleeping(tmp_path) as process, contextlib.ExitStack() as stack:
        monkeypatch.setattr("recallmap.search.engines.ray_workers.children", lambda *mark: {process.pid: program})
        stack.enter_context(pytest.raises(EngineError, match=program) if lost else pytest.raises(KeyboardInterrupt))
        stack.enter_context(ray_workers._started(tmp_path, desk))
        stack.enter_context(ray_workers._watched(desk, tmp_path))
        process.kill()
        while how_it_ended(process.pid) is None:
            time.sleep(0.01)
        raise KeyboardInterrupt  # as the crew does, and whoever else
    assert isinstance(desk.error, EngineError) == lost
    assert desk.finished == lost
    assert fake.ended != lost  # Ray would wait for what is gone


def test_who_waits_for_what_is_gone_is_told_of_it(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own code may wait for ever, which nothing interrupts; then Ray ends the process."""
    monkeypatch.setattr("recallmap.search.engines.ray_workers.LOOK", 0.01)
    monkeypatch.setattr("recallmap.search.engines.ray_workers.PATIENCE", 0.01)
    told = io.StringIO()  # to read and empty what pytest captures may lose what another thread writes meanwhile
    monkeypatch.setattr("sys.stderr", told)

    def wait_for_ray() -> None:
        while not told.getvalue():
            time.sleep(0.01)
        raise KeyboardInterrupt

    with _sleeping(tmp_path) as process:
        monkeypatch.setattr("recallmap.search.engines.ray_workers.children", lambda *mark: {process.pid: "raylet"})
        process.kill()
        with pytest.raises(EngineError), ray_workers._watched(desk, tmp_path):
            wait_for_ray()
    expected = "Ray is gone: its process raylet was ended by SIGKILL"
    assert told.getvalue() == f"{expected}. Finished trials are kept, the same command resumes.\n"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "nobody answers at 127.0.0.1:1"),
        ("somewhere", "expected auto or HOST:PORT"),
        ("host:", "expected auto or HOST:PORT"),
        ("ray://127.0.0.1:10001", "run recallmap on a machine of the cluster"),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(tmp_path: Path, address: str, said: str) -> None:
    with pytest.raises(ConnectionError, match=said):
        ray_workers.run(study(), tmp_path / "tiny.sqlite", address=address)


# One study, really ----------------------------------------------------------------------------------

# As /proc/net/tcp and tcp6 write 127.0.0.1, ::1 and ::ffff:127.0.0.1.
LOOPBACK = {"0100007F", "0" * 24 + "01000000", "0" * 16 + "FFFF0000" + "0100007F"}
DRIVER = """
import os, sys
from pathlib import Path
from recallmap.search import codec
from recallmap.search.engines import ray_workers
import test_ray_workers as told

def family():
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            pass
    ours = {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return ours

def sockets(processes):
    found = set()
    for process in processes:
        for handle in Path(f"/proc/{process}/fd").glob("*"):
            try:
                found.add(os.readlink(handle))
            except OSError:
                pass
    return found

def listening():
    ours, processes = [], family()
    links = sockets(processes)
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and f"socket:[{parts[9]}]" in links:
                ours.append(parts[1].split(":")[0])
    print("listening", len(processes), *ours, flush=True)

begun = ray_workers._started

def started(folder, desk):
    folders.append(folder)
    return begun(folder, desk)

def report(report):
    if report.progress:
        listening()
        for folder in folders:
            print("mode", oct(folder.stat().st_mode & 0o777), flush=True)
    for record in report.records:
        print("record", record.seed, record.status, record.cohort, flush=True)

if __name__ == "__main__":
    folders = []
    ray_workers._started = started
    ray_workers.run(told.study(), Path("tiny.sqlite"), report=report, cohort_size=4)
    print("left", len(family()) - 1, flush=True)
"""


def test_a_study_on_this_machine(tmp_path: Path) -> None:
    """One for all, because Ray takes seconds to start. The folder has modules with names of ours, which nobody imports."""
    (tmp_path / "driver.py").write_text(DRIVER, encoding="utf-8")
    for name in ("search.py", "results/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"raise SystemExit('{name} was imported')\n", encoding="utf-8")
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parent),
        "OMP_NUM_THREADS": "1",
        "HOME": str(tmp_path / "home"),
    }
    script = [sys.executable, "-W", "error", str(tmp_path / "driver.py")]
    ended = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
    said = [line.split() for line in ended.stdout.splitlines()]
    assert {word[0] for word in said} == {"listening", "mode", "record", "left"}  # Ray itself says nothing
    assert {word[1] for word in said if word[0] == "mode"} == {"0o700"}  # Ray opens its own folder to everybody

    listeners = [word for word in said if word[0] == "listening"]
    assert listeners
    assert all(int(processes) > 3 and addresses for _, processes, *addresses in listeners)
    assert {address for _, _, *addresses in listeners for address in addresses} <= LOOPBACK
    assert said[-1] == ["left", "0"]
    assert not (tmp_path / "home").exists()  # no token, no settings, no results

    assert sorted(word[1:] for word in said if word[0] == "record") == [
        [str(seed), "done", "4"] for seed in (0, 0, 1, 1, 2, 2, 3, 3)
    ]
    with Ledger.open(tmp_path / "tiny.sqlite") as ledger:
        through_ray = {r.key: r for r in ledger.all()}
    assert set(through_ray) == {codec.key(s) for s in study().trials()}

    inline.run(study(), tmp_path / "inline.sqlite", cohort_size=4, device="cpu")
    with Ledger.open(tmp_path / "inline.sqlite") as ledger:
        alone = {r.key: r for r in ledger.all()}
    for key, record in alone.items():
        assert through_ray[key].scores == pytest.approx(record.scores)
        assert through_ray[key].curve == record.curve


# Examples for clusters --------------------------------------------------------------------------------

CLUSTER = ROOT / "search" / "cluster"


def test_the_ray_up_example_is_what_ray_up_takes() -> None:
    import json

    import jsonschema
    import yaml

    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    schema = json.loads((Path(spec.origin).parent / "autoscaler" / "ray-schema.json").read_text(encoding="utf-8"))
    said = yaml.safe_load((CLUSTER / "ray_up.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(said, schema)
    for commands in (said["head_start_ray_commands"], said["worker_start_ray_commands"]):
        assert "RAY_AUTH_MODE=token" in commands[-1]
        assert f"RAY_USAGE_STATS_REPORT_URL={QUIET['RAY_USAGE_STATS_REPORT_URL']}" in commands[-1]


def test_the_kuberay_example_is_one_cluster_of_our_ray_whose_ledger_outlives_a_pod() -> None:
    """As far as a machine without Kubernetes can tell; its names were checked against the CRD of KubeRay 1.7."""
    import yaml

    volume, cluster = yaml.safe_load_all((CLUSTER / "kuberay.yaml").read_text(encoding="utf-8"))
    spec = cluster["spec"]
    assert (cluster["apiVersion"], cluster["kind"], spec["authOptions"]) == (
        "ray.io/v1",
        "RayCluster",
        {"mode": "token"},
    )
    assert f"ray=={spec['rayVersion']}" in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    pods = [group["template"]["spec"] for group in groups]
    containers = [container for pod in pods for container in pod["containers"]]
    assert len({container["image"] for container in containers}) == 1
    for container in containers:
        assert {one["name"]: one["value"] for one in container["env"]}.items() <= QUIET.items()
        assert container["resources"]["requests"] == container["resources"]["limits"]
    assert all(
        isinstance(value, str) for group in groups for value in group["rayStartParams"].values()
    )  # or it is refused
    (mount,), (kept,) = containers[0]["volumeMounts"], pods[0]["volumes"]
    assert mount["name"] == kept["name"]
    assert kept["persistentVolumeClaim"]["claimName"] == volume["metadata"]["name"]
    assert volume["spec"]["accessModes"] == ["ReadWriteOnce"]


@pytest.mark.parametrize("code", [0, 1])
def test_the_slurm_example_starts_a_cluster_and_brings_the_ledger_home(tmp_path: Path, code: int) -> None:
    """As far as a machine without Slurm can tell: what it calls, with what, and what is left."""
    commands = {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "ray": 'echo "ray $*" >> "$SLURM_SUBMIT_DIR/said"; test -n "$RAY_AUTH_TOKEN"',
        "hostname": "echo 192.0.2.7",
        "recallmap": "until grep -qs 'start --head' said && grep -qs 'start --address' said; do sleep 0.1; done; "
        f'echo "recallmap $*" >> said; cat "$4" >> said; echo more >> "$4"; exit {code}',
    }
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    for name, line in commands.items():
        (bin / name).write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
        (bin / name).chmod(0o755)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo.sqlite").write_text("begun\n", encoding="utf-8")
    (tmp_path / "disk").mkdir()
    slurm = {
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_TMPDIR": str(tmp_path / "disk"),
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NUM_NODES": "2",
    }
    script = ["bash", str(CLUSTER / "slurm.sh"), "demo", "--set", "budget=mini"]
    assert subprocess.run(script, env=os.environ | slurm, check=False).returncode == code

    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    address = "192.0.2.7:23456"
    place = next(line for line in said if line.startswith("recallmap")).split()[4]
    assert Path(place).is_relative_to(tmp_path / "disk")
    assert f"recallmap run demo --ledger {place} --engine ray --address {address} --set budget=mini" in said
    assert "ray start --head --node-ip-address=192.0.2.7 --port=23456 --include-dashboard=false --block" in said
    assert f"ray start --address={address} --block" in said
    assert "begun" in said
    assert (tmp_path / "runs" / "demo.sqlite").read_text(encoding="utf-8") == "begun\nmore\n"
    assert not list((tmp_path / "disk").iterdir())


def test_cohorts_on_one_gpu_have_equal_parts_of_its_memory_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_to: list[float] = []
    shared_by: list[int] = []
    monkeypatch.setattr(device_time, "share", shared_by.append)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", kept_to.append)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        desk = Desk(Driver(study(), ledger, cohort_size=4, where="cpu"), "cuda", 1 / 4)
        cohort = desk.ask("first")
    assert cohort is not None
    first, second = cohort.halves()
    for share, device in ((first.share, first.device), (second.share, second.device), (1.0, "cuda"), (0.25, "cpu")):
        ray_workers._keep_to(share, device)
    assert (kept_to, shared_by) == ([0.25, 0.25], [4, 4])
