"""Ray as the engine: workers of a cluster, each with a GPU, a share of it, or a CPU, that train one cohort after another.

Ray only places and watches them. The driver, in this process, plans the cohorts and keeps the records. Workers on this machine
save their cohorts every few minutes, as the inline engine does; those of a cluster do not, so that a killed driver loses what
they train.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search.engines.desk import Desk
from recallmap.search.engines.driver import Driver, EngineError
from recallmap.search.engines.gpu_sharing import cohorts_at_once, side_by_side_on
from recallmap.search.engines.listeners.audience import Audience
from recallmap.search.engines.plan import Plan, Report
from recallmap.search.engines.processes import children, end_marked, how_it_ended, marking
from recallmap.search.engines.shipped import MARK, ShippedCohort, Trained, train
from recallmap.search.engines.stopping import is_noticed, undisturbed
from recallmap.search.engines.time_spent import TimeSpent
from recallmap.search.measurement import gpu_busy
from recallmap.search.sequences.drawn_ahead import workers_for
from recallmap.search.study.spec import StudySpec
from recallmap.search.training import checkpoints, device_time
from recallmap.search.training.checkpoints import CheckpointFolder
from recallmap.search.training.devices import default_device
from recallmap.search.training.kernels_ahead import ask_for_kernels, compiling_ahead
from recallmap.search.training.outcome import Progress
from recallmap.search.training.phase_clock import timing
from recallmap.search.training.time_limit import NEVER, TimeIsUp, TimeLimit
from recallmap.search.weights.kept import WeightFolder

LIVES = 3  # attempts at a cohort whose worker dies; then it is halved

# Seconds between two rounds of LIVES attempts for a single trial: a cluster takes some to notice that a node is gone, and sends
# workers there until then.
REST = 10.0

FOLDER = "recallmap-ray-"  # ours while a study runs, in the system's folder for temporary files

INSIDE = "r"  # Ray's folder in it: Ray opens its own to everybody, and nobody else comes through ours

LONGEST = 40  # letters of Ray's folder: its sockets lie 66 letters below it, and 107 is a socket's limit

CORE = ("gcs_server", "raylet")  # without one of these Ray goes no further, and may wait for ever

SHUTDOWN = 3.0  # seconds that Ray takes to end: by so much earlier cohorts are saved at a time limit

HOME_BY = 2.0  # seconds after that at which workers are ended that have not saved their cohorts

LOOK = 1.0  # seconds between looks for them

MOMENT = 0.1  # seconds of waiting where nothing trains

PATIENCE = 3.0  # seconds in which a study notices that one is gone, at most

QUIET = {  # read by Ray when it is imported, or by the processes that it starts
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9/",  # clusters of `ray start` ping even where it is disabled
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # SIGTERM ends a study, it is no crash of Ray's
}

NOWHERE = "http://127.0.0.1:9"  # where nobody listens

LOCAL = {  # where Ray is ours alone
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else Ray listens on every interface of this machine
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # it is on this machine: once it is gone it does not come again
    # Ray asks the hosts of clouds on which of them it runs, by HTTP, also where it is told to report nothing.
    "http_proxy": NOWHERE,
    "https_proxy": NOWHERE,
    "all_proxy": NOWHERE,
    "no_proxy": "127.0.0.1,::1,localhost",
}


def run(
    study: StudySpec,
    ledger_path: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    device: str | None = None,
    cohort_size: int | None = None,
    address: str | None = None,
    part: tuple[int, int] = (1, 1),
    cohorts_per_gpu: int | None = None,
    seeds: int = 0,
    known: Mapping[str, Record] | None = None,
    limit: TimeLimit = NEVER,
    weights: WeightFolder | None = None,
    listeners: Audience | None = None,
) -> Plan:
    """Train what the ledger lacks with Ray. Finished trials are in the ledger; after an interruption the same call resumes.

    device           "cuda" gives each cohort a GPU, "cpu" a CPU; None: GPUs where there are any
    cohort_size      most members of a cohort; None: as `packing.room` says
    cohorts_per_gpu  cohorts that share a GPU and its memory in equal parts: while one is compiled, others train. None: three
                     on this machine where their kernels can run side by side, else one
    address          a running cluster that this machine is a part of: "auto" or "host:port"; None: start Ray on this
                     machine, bound to loopback, and end it with the study
    part, seeds      as for `Driver`, as are `known`, `limit`, `weights` and `listeners`

    Raises LedgerError where the ledger cannot be written, ConnectionError where there is no cluster at the address,
    EngineError where Ray itself does not start, or ends under way, TimeIsUp at the limit.
    """
    with timing() as clock, Ledger(ledger_path) as ledger, contextlib.ExitStack() as stack:
        _sweep()
        unfinished = CheckpointFolder(checkpoints.checkpoint_folder(ledger_path))
        unfinished.tidy(ledger.keys())
        limit = limit.earlier(SHUTDOWN)
        stack.callback(lambda: unfinished.tidy(ledger.keys()))
        if address is not None:
            stack.enter_context(_joined(address))
        kind = torch.device(device or _device(address)).type
        here = default_device() if kind == "cuda" else "cpu"  # a cluster's GPUs need not be the driver's
        gpus = [torch.device("cuda", n) for n in range(torch.cuda.device_count())] if kind == "cuda" else []
        busy = stack.enter_context(gpu_busy.sampled(gpu_busy.reader(gpus) if address is None else None))
        at_once = cohorts_per_gpu or (cohorts_at_once(torch.device(kind)) if address is None else 1)
        on_gpus = at_once * max(1, len(gpus))
        if address is None:
            places = on_gpus if kind == "cuda" else len(os.sched_getaffinity(0))
        else:
            places = max(1, _places(_resources(kind, at_once)))
        driver = Driver(
            study,
            ledger,
            report=report,
            cohort_size=cohort_size,
            where=here,
            on=kind,
            places=places,
            part=part,
            seeds=seeds,
            saved=unfinished.saved() if address is None else (),
            known=known,
            limit=limit,
            saves=address is None,
            time=TimeSpent(clock=clock, busy=busy),
            weights=weights,
            listeners=listeners,
        )
        own = unfinished.folder if address is None else None
        drawers = workers_for(kind, 1 / on_gpus) if address is None else None
        desk = Desk(driver, kind, 1 / at_once, drawers, folder=own, lives=LIVES, rest=REST)
        if desk.prepare():
            if address is None:
                stack.enter_context(compiling_ahead(torch.device(here), workers_for(kind)))
            folder = stack.enter_context(_temporary_folder())
            if address is None:
                shared = stack.enter_context(side_by_side_on(torch.device(kind))) if at_once > 1 else {}
                for name, value in shared.items():
                    stack.enter_context(marking(name, value))
                stack.enter_context(_started(folder, desk))
            with _watched(desk, folder):
                _Crew(desk, _resources(kind, at_once)).train()
        if driver.out_of_time:
            is_noticed()
            raise TimeIsUp
    return driver.plan


def _train(cohort: ShippedCohort, tell: Callable[[Progress], None]) -> Trained:
    """Train a cohort in a worker."""
    _keep_to(cohort.share, cohort.device)
    return train(cohort, tell)


def _keep_to(share: float, device: str) -> None:
    """Limit a cohort to its part of a shared GPU's memory, so that a cohort that needs more is halved, not its neighbours."""
    if share < 1 and torch.device(device).type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share)
        device_time.share(round(1 / share))


def _resources(kind: str, at_once: int) -> dict[str, float]:
    """The resources of a machine that a cohort takes."""
    return {"cpu": 1, "gpu": 1 / at_once} if kind == "cuda" else {"cpu": 1}


def _places(resources: Mapping[str, float]) -> int:
    """How many cohorts the cluster, as it is now, trains at once."""
    import ray

    there = ray.cluster_resources()
    return int(round(min(there.get(name.upper(), 0.0) / share for name, share in resources.items()), 6))


class _Worker:
    """A process of the cluster's that trains one cohort after another, as `train` does: `follow` tells how each goes, and last
    what came of it."""

    def __init__(self, train: Callable[[ShippedCohort, Callable[[Progress], None]], Trained]) -> None:
        self.train = train

    def ready(self) -> None:
        """Answer, once this process has begun."""

    def follow(self, cohort: ShippedCohort) -> Iterator[Progress | Trained]:
        told: SimpleQueue[Progress | Trained | BaseException] = SimpleQueue()

        def work() -> None:
            try:
                told.put(self.train(cohort, told.put))
            except BaseException as error:  # of whatever kind, it is raised below
                told.put(error)

        threading.Thread(target=work, name=f"cohort {cohort!r}", daemon=True).start()
        while isinstance(message := told.get(), Progress):
            yield message
        if isinstance(message, BaseException):
            raise message
        yield message


@dataclass
class _Sent:
    """A cohort under its name at the desk, and how many workers have died of it."""

    name: str
    cohort: ShippedCohort
    deaths: int = 0
    worker: Any = None


class _Crew:
    """The workers of a cluster: as many as it has places for and there is work for. They stay until all is trained, because it
    takes seconds to begin one.

    starting   workers, by the reference that says that they are ready
    idle       workers without a cohort
    following  cohorts that train, by the stream of what is told of them
    again      cohorts whose workers died
    """

    def __init__(self, desk: Desk, resources: Mapping[str, float]) -> None:
        import ray

        self.ray = ray
        self.desk = desk
        self.resources = resources
        self.worker = ray.remote(num_cpus=resources["cpu"], num_gpus=resources.get("gpu", 0))(_Worker)
        self.starting: dict[Any, Any] = {}
        self.idle: list[Any] = []
        self.following: dict[Any, _Sent] = {}
        self.again: deque[_Sent] = deque()
        self.names = count(1)
        self.places, self.counted = 0, -LOOK  # and when they were

    def train(self) -> None:
        """Train all that the desk hands out. Raises what it keeps as its error, and TimeIsUp where workers do not come home."""
        while self.following or self.again or not self.desk.finished:
            self._hand_out()
            self._hire()
            self._hear()
            if self.desk.driver.limit.left < -HOME_BY:
                is_noticed()
                raise TimeIsUp
            self._raise_errors()

    def _hire(self) -> None:
        """Begin workers where there are places and cohorts for them."""
        missing = len(self.again) + self.desk.ready - len(self.starting) - len(self.idle)
        if missing < 1:
            return
        if time.monotonic() - self.counted >= LOOK:
            self.places, self.counted = max(1, _places(self.resources)), time.monotonic()
        room = self.places - len(self.starting) - len(self.idle) - len(self.following)
        for _ in range(min(missing, room)):
            worker = self.worker.remote(_train)
            self.starting[worker.ready.remote()] = worker

    def _hand_out(self) -> None:
        """A cohort for every worker that has none, as far as there are cohorts."""
        while self.idle and (sent := self._next()) is not None:
            for work in self.desk.driver.waiting:  # this one's worker compiles what it lacks itself
                ask_for_kernels(work.specs)
            sent.worker = self.idle.pop()
            stream = sent.worker.follow.options(num_returns="streaming").remote(sent.cohort)
            self.following[stream] = sent

    def _next(self) -> _Sent | None:
        if self.again:
            return self.again.popleft()
        name = str(next(self.names))
        cohort = self.desk.ask(name)
        self._raise_errors()
        return None if cohort is None else _Sent(name, cohort)

    def _hear(self) -> None:
        """Take what a worker says, for which we wait a moment."""
        waiting = [*self.starting, *self.following]
        if not waiting:  # a cohort rests
            time.sleep(MOMENT)
            return
        for heard in self.ray.wait(waiting, num_returns=1, timeout=LOOK)[0]:
            try:
                if heard in self.starting:
                    self.ray.get(heard)
                    self.idle.append(self.starting.pop(heard))
                else:
                    self._take(heard)
            except self.ray.exceptions.RayError as error:
                self._bury(heard, _reason(str(error)))

    def _take(self, stream: Any) -> None:
        """Take a message about a cohort that trains. After the last its worker is idle."""
        sent, message = self.following[stream], self.ray.get(next(stream))
        if isinstance(message, Progress):
            self.desk.progress(sent.name, message)
            return
        del self.following[stream]
        self.idle.append(sent.worker)
        self.desk.keep(sent.name, *message)

    def _bury(self, heard: Any, why: str) -> None:
        """Do without a worker that is gone, or has raised. If it died before it had a cohort, it counts as the next one's."""
        sent: _Sent | None
        if heard in self.starting:
            worker, sent = self.starting.pop(heard), self._next()
        else:
            sent = self.following.pop(heard)
            worker = sent.worker
        self.ray.kill(worker)
        if sent is None:
            return
        sent.deaths += 1
        if sent.deaths < LIVES:
            self.again.append(sent)
        else:
            self.desk.lost(sent.name, why)

    def _raise_errors(self) -> None:
        if self.desk.error is not None:
            raise self.desk.error


# Ray itself. --------------------------------------------------------------------------------------


def _ray(environment: dict[str, str]) -> Any:
    """The library, imported only now that its environment is set."""
    os.environ.update(environment)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations of the libraries that Ray imports; nothing of ours runs in here
        import ray
    ray._private.worker._worker_logs_enabled = (
        False  # what Ray says of one among our lines, and a raylet's last thousand
    )
    return ray


@contextlib.contextmanager
def _started(folder: Path, desk: Desk) -> Iterator[None]:
    """Ray on this machine, on loopback alone, for as long as the study goes."""
    token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)  # else Ray would leave one in the home folder
    ray = _ray(QUIET | LOCAL | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token})
    try:
        with marking(MARK, str(folder)), undisturbed():
            try:
                ray.init(
                    address="local",  # never somebody's cluster
                    include_dashboard=False,
                    num_cpus=len(os.sched_getaffinity(0)),
                    object_store_memory=80 * 2**20,
                    log_to_driver=False,
                    logging_level="ERROR",
                    _temp_dir=str(folder / INSIDE),
                )
            except Exception as error:  # time is up on a machine that is busy, a disk is full, ...
                raise EngineError(f"Ray does not start: {_first_line(error)}") from error
        yield
    finally:
        if isinstance(desk.error, EngineError):  # what is left of Ray would keep us waiting for what is gone
            end_marked(MARK, str(folder))
        else:
            ray.shutdown()


@contextlib.contextmanager
def _joined(address: str) -> Iterator[None]:
    """Join a cluster that runs already, and leave it running."""
    _knock(address)
    ray = _ray(QUIET)
    try:
        try:
            with undisturbed():
                ray.init(address=address, log_to_driver=False, logging_level="WARNING")
        except (ray.exceptions.AuthenticationError, RuntimeError) as error:
            raise ConnectionError(f"cannot join {address}: {_first_line(error)}") from error
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise ConnectionError where nobody answers; Ray itself would go on trying for many minutes."""
    if address == "auto":
        return
    if "://" in address:
        here = "run recallmap on a machine of the cluster, with --address auto"
        raise ConnectionError(
            f"{address} is Ray's client, through which the driver and its ledger would move away; {here}"
        )
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and len(port) <= 5):
        raise ConnectionError(f"{address[:80]} is no address, expected auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nobody answers at {address} ({error}); is the cluster up?") from error


def _device(address: str | None) -> str:
    """The default device of cohorts."""
    if address is None:
        return default_device()
    import ray

    return "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"


@contextlib.contextmanager
def _watched(desk: Desk, folder: Path) -> Iterator[None]:
    """Raise EngineError where a process that Ray cannot do without has ended. A cluster's are not ours to watch."""
    core = {number: program for number, program in children(MARK, str(folder)).items() if program in CORE}
    over = threading.Event()

    def look() -> bool:
        for number, program in core.items():
            if desk.error is None and (how := how_it_ended(number)) is not None:
                desk.error = EngineError(f"Ray is gone: its process {program} {how}")
        return isinstance(desk.error, EngineError)

    def watch() -> None:
        while not over.wait(LOOK):
            if look():  # the crew is told at its next step, unless it waits for what is gone, until Ray ends us
                if not over.wait(PATIENCE):
                    sys.stderr.write(f"{desk.error}. Finished trials are kept, the same command resumes.\n")
                return

    watching = threading.Thread(target=watch, name="watch over Ray", daemon=True)
    watching.start()
    try:
        yield
    except BaseException:
        if look() and desk.error is not None:
            raise desk.error from None
        raise
    finally:
        over.set()
        watching.join()


def _root() -> Path:
    """The place of temporary folders: short enough for Ray's sockets."""
    root = Path(tempfile.gettempdir())
    return root if len(str(root / FOLDER)) + 8 + len(f"/{INSIDE}") <= LONGEST else Path("/tmp")


def _sweep() -> None:
    """End the processes that drivers left behind when they were killed, and remove their folders."""
    for old in _root().glob(f"{FOLDER}*"):
        with contextlib.suppress(OSError), _locked(old):  # OSError: in use, somebody else's, or gone by now
            end_marked(MARK, str(old))
            shutil.rmtree(old)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A private folder that is removed afterwards."""
    new = Path(tempfile.mkdtemp(prefix=f"new-{FOLDER}", dir=_root()))
    with _locked(new):
        folder = new.rename(new.with_name(new.name.removeprefix("new-")))  # ours already when others may sweep it
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # Ray's processes may still be leaving; the next study sweeps


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder for this process; the lock ends with the process. Raises OSError where another holds it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _reason(error: str) -> str:
    """The last line of an error: Ray's reason for the worker's end."""
    said = next((line for line in reversed(error.split("\n")) if line.strip()), "Ray does not say why")
    return textwrap.shorten(said, 200, placeholder=" ...")
