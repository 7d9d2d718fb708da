"""Made-up records that look like those of real trials: recall falls where a task asks more than a state holds. A browser."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recallmap.results.record import Record, address

Make = Callable[..., Record]

DEFAULTS: dict[str, dict[str, Any]] = {
    "mqar": {"vocab": 256, "length": 64, "pairs": 4},
    "in_context_recall": {"vocab": 16, "length": 128},
    "noisy_in_context_recall": {"vocab": 32, "length": 128, "noise": 0.2},
    "fuzzy_in_context_recall": {"vocab": 16, "length": 128},
    "memorization": {"vocab": 256, "length": 32},
    "compression": {"vocab": 16, "length": 32},
    "selective_copying": {"vocab": 16, "length": 256, "copies": 16},
    "parity": {"length": 40},
    "regbench": {"letters": 18, "length": 640},
    "rearrangement": {"rule": "copy", "alphabet": 16, "length": 8},
    "needle": {"level": 1, "length": 512},
}
HARD = {"fuzzy_in_context_recall": 0.45, "compression": 0.48, "memorization": 0.8, "selective_copying": 0.97}
ARCHS = {  # bytes of state, or of a token's cache, and skill
    "transformer": (1024, 1.0),
    "gated_deltanet": (34304, 0.95),
    "mesa": (66560, 1.0),
    "mamba2": (16384, 0.8),
    "gla": (17920, 0.75),
    "sliding_window": (65536, 0.5),
}


def make_record(
    *,
    arch: str = "mesa",
    task: str = "mqar",
    seed: int = 0,
    score: float | None = 0.5,
    validation: float | None = None,
    error: str | None = None,
    dials: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    arch_dials: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    protocol: str = "repaired",
    **rest: Any,
) -> Record:
    """A record whose key, setting and spec fit together. `score` is of test, `validation` the same unless given."""
    own = {**DEFAULTS[task], **(dials or {})}
    spec = {
        "task": {"kind": task, "protocol": protocol, **own},
        "arch": {"name": arch, "width": 128, **(arch_dials or {})},
        "training": {"steps": 1000, "lr": 1e-3, "weight_decay": 0.1, **(training or {})},
        "data": {"train": None, "validation": 512, **(data or {})},
        "mix": [],
        "tests": rest.pop("test_specs", []),
        "seed": seed,
        "version": 1,
    }
    judged = score if validation is None else validation
    settings: dict[str, Any] = {
        "chance": 1 / own.get("pairs", 8),
        "length": own.get("length", 0),
        "state_bytes": 1000,
        "state_floats": 250,
        "parameters": 400_000,
        "steps": 1000,
        "seconds": 12.5,
        "created": "2026-01-01T00:00:00+00:00",
        "commit": "c0ffee0",
    }
    return Record(
        key=address(spec),
        study="made_up",
        status="failed" if error else "done",
        error=error,
        spec=spec,
        task=task,
        setting=" ".join(f"{n}={v}" for n, v in own.items() if DEFAULTS[task].get(n) != v),
        protocol=protocol,
        arch=arch,
        seed=seed,
        scores={} if error or score is None else {"accuracy": score, "loss": 1 - score},
        validation={} if error or judged is None else {"accuracy": judged},
        **{**settings, **rest},
    )


def curve_to(score: float, chance: float, rng: np.random.Generator, evaluations: int = 10) -> dict[str, list[float]]:
    steps = [1000.0 * (i + 1) / evaluations for i in range(evaluations)]
    rise = [1 / (1 + math.exp(-(s - 350) / 90)) for s in steps]
    accuracy = [min(1.0, max(0.0, chance + (score - chance) * r + rng.normal(0, 0.008))) for r in rise]
    loss = [3 * (1.05 - a) for a in accuracy]
    return {"step": steps, "train_loss": loss, "validation_loss": loss, "validation_accuracy": accuracy}


def make_study(
    *, tasks: tuple[str, ...], seeds: int = 3, rates: tuple[float, ...] = (1e-3, 3e-4), lengths: tuple[int, ...] = (1,)
) -> list[Record]:
    """A whole study: every architecture on every task, a few seeds and learning rates, and a trial or two that failed."""
    rng = np.random.default_rng(7)
    records = []
    for task in tasks:
        for stretch in lengths:
            dials = {"pairs": 4 * stretch, "length": 64 * stretch} if task == "mqar" else {}
            length = {**DEFAULTS[task], **dials}["length"]
            chance = 1 / (4 * stretch) if task == "mqar" else 0.1
            for arch, (unit, skill) in ARCHS.items():
                grows = arch == "transformer"
                state = unit * length if grows else unit
                reach = 1 / (1 + math.exp(-(math.log2(state) - 12.5 - math.log2(stretch) * 1.3)))
                peak = chance + (HARD.get(task, 1.0) - chance) * skill * (1.0 if grows else reach)
                for rate in rates:
                    for seed in range(seeds):
                        score = float(np.clip(peak * (1.0 if rate == 1e-3 else 0.93) + rng.normal(0, 0.012), 0, 1))
                        lost = arch == "mamba2" and rate == 1e-3 and seed == 2 and task in ("mqar", "compression")
                        records.append(
                            make_record(
                                arch=arch,
                                task=task,
                                seed=seed,
                                score=None if lost else score,
                                validation=None if lost else score - 0.004,
                                error="diverged: the loss was not finite at step 312 of 1000" if lost else None,
                                dials=dials,
                                training={"lr": rate},
                                chance=chance,
                                state_bytes=state,
                                state_grows=grows,
                                curve={} if lost else curve_to(score, chance, rng),
                            )
                        )
    return records


FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)
PATIENCE = 60  # seconds; a shared machine can be slow


class Browser:
    """A Chromium that remembers what its pages said and asked for."""

    def __init__(self, profile: Path) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(str(shutil.which("chromedriver")))
        self.driver = webdriver.Chrome(options=options, service=service)

    def show(self, path: Path, *, dark: bool = False, width: int = 1280, whole: bool = True) -> None:
        """Open a page; `whole` draws also the figures that come when they come near."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        self.messages()
        self.requests()
        self.driver.get(path.as_uri())
        self.wait("return document.body.dataset.ready === 'true'")
        if whole:
            self.run("return window.drawAll?.()")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, f"waited in vain for: {condition}; {self.messages()}"
            time.sleep(0.02)

    def messages(self) -> list[str]:
        """What the console was told since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last time; what an address itself holds, as that of a picture may, is no request."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        urls = (e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent")
        return [url for url in urls if not url.startswith(("data:", "blob:"))]

    def click(self, x: float, y: float) -> None:
        """Press the mouse on a mark of a figure, in pixels of the window, once the figure has noticed the mouse."""
        at = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {**at, "type": "mouseMoved", "button": "none"})
        self.wait("return document.querySelector('.hoverlayer .hovertext') !== null")
        for kind in ("mousePressed", "mouseReleased"):
            self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {**at, "type": kind})

    def key(self, name: str) -> None:
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.driver.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": kind, "key": name, **text})


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs chromium and chromedriver")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.driver.quit()


@pytest.fixture(scope="session")
def make() -> Make:
    return make_record


@pytest.fixture(scope="session")
def study() -> list[Record]:
    """MAD and associative recall, as the demo has them."""
    mad = (
        "in_context_recall",
        "fuzzy_in_context_recall",
        "noisy_in_context_recall",
        "selective_copying",
        "compression",
    )
    return make_study(tasks=(*mad, "memorization")) + make_study(tasks=("mqar",), lengths=(1, 2, 4))
