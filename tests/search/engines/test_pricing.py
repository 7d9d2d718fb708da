"""What a plan costs: every trial has a price of its own, and minutes are by what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from recallmap.results.analysis.labels import device_label
from recallmap.results.ledger import Ledger
from recallmap.results.record import Record, address
from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.cli.listings import plan_of
from recallmap.search.engines import pricing
from recallmap.search.engines.plan import Plan
from recallmap.search.engines.plan import plan as planned
from recallmap.search.engines.pricing import Rates, priced
from recallmap.search.training import run_cohort
from recallmap.search.training.packing import at_most
from recallmap.search.training.run_cohort import device_name
from recallmap.search.trials import Trial

CPU = torch.device("cpu")
STUDY: dict[str, Any] = {
    "name": "prices",
    "trial": {
        "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
        "arch": {"name": "small", "width": 16, "stack": [{"kind": "block", "mixer": {"kind": "mesa", "heads": 2}}]},
        "training": {"steps": 4, "batch": 4, "evaluations": 1},
        "data": {"validation": 4, "test": 4},
    },
    "space": {"kind": "grid", "axes": {"trial.arch.width": [16, 32, 64], "trial.training.steps": [4, 8]}},
}


def trials(**over: Any) -> tuple[Trial, ...]:
    return codec.read_study(STUDY | over).trials()


def cells(table: Any, column: str) -> list[str]:
    (found,) = (c for c in table.columns if c.header == column)
    return list(found.cells)


def plan(of: tuple[Trial, ...]) -> Plan:
    return Plan(trials=of, missing=of, cohorts=())


NOTHING = Rates(source="nothing was measured")


def test_trials_of_one_line_differ_in_price_and_the_line_says_from_where_to_where() -> None:
    every = trials()
    table = plan_of(plan(every), NOTHING)
    prices = [trial.price() for trial in every]
    assert cells(table, "trials") == ["6", "6"]
    for column, figures in (
        ("parameters", [p.parameters for p in prices]),
        ("state bytes", [p.state_bytes for p in prices]),
        ("steps", [4, 8]),
    ):
        assert len(set(figures)) > 1
        assert cells(table, column) == [f"{min(figures):,}-{max(figures):,}", ""]
    whole = sum(3 * p.flops_per_token * t.tokens for t, p in zip(every, prices, strict=True))
    assert cells(table, "training FLOPs") == [f"{whole:.3g}"] * 2
    assert whole != pytest.approx(3 * prices[0].flops_per_token * sum(t.tokens for t in every), rel=0.5)


def test_what_is_alike_in_all_trials_of_a_line_is_said_once() -> None:
    table = plan_of(plan(trials(space={"kind": "grid", "axes": {"trial.seed": [0, 1]}})), NOTHING)
    assert cells(table, "steps") == ["4", ""]


def test_a_mix_costs_what_the_sequences_of_each_part_cost() -> None:
    part = {"kind": "mqar", "vocab": 32, "pairs": 2}
    mix = [{"task": part | {"length": 16}, "examples": 64}, {"task": part | {"length": 64}, "examples": 32}]
    (trial,) = trials(trial=STUDY["trial"] | {"mix": mix}, space={"kind": "grid"})
    short, long = (trial.price(length).flops_per_token * length for length in (16, 64))
    ((_, operations),) = trial.stretches
    assert operations == pytest.approx(3 * 4 * 4 * (2 / 3 * short + 1 / 3 * long))


def test_a_first_phase_that_trials_share_is_counted_once() -> None:
    phases = [[{"training": {"steps": 100}}, {"training": {"steps": n}}] for n in (2, 4)]
    one, other = trials(
        trial=STUDY["trial"] | {"kind": "phased", "phases": phases[0]},
        space={"kind": "grid", "axes": {"trial.phases": phases}},
    )
    step = 3 * one.price().flops_per_token * 32 * 16
    (group,) = priced([one, other])
    assert group.operations == pytest.approx(106 * step)
    assert priced([other])[0].operations == pytest.approx(104 * step)


def test_an_online_trial_takes_a_step_at_every_position() -> None:
    (trial,) = trials(
        trial={"kind": "online", "task": {"kind": "learnability", "width": 8, "length": 64}}, space={"kind": "grid"}
    )
    (group,) = priced([trial])
    assert group.operations == 64 * 3 * 2 * trial.price().parameters


# Minutes ------------------------------------------------------------------------------------------


def record(trial: Trial, seconds: float, **over: Any) -> Record:
    found = run_cohort.failed(trial, "", study="prices", device=CPU)
    return replace(found, status="done", error=None, seconds=seconds, steps=trial.steps, **over)


def rates(tmp_path: Path, *records: Record) -> Rates:
    with Ledger(tmp_path / "x.sqlite") as ledger:
        for one in records:
            ledger.add(one)
        return pricing.rates_on(CPU, ledger)


def test_minutes_are_by_the_records_of_the_ledger_by_architecture(tmp_path: Path) -> None:
    every = trials()
    operations = [trial.stretches[0][1] for trial in every]
    found = rates(tmp_path, record(every[0], 2.0), record(every[1], 4.0), record(every[2], 50.0, arch="another"))
    assert found.of("small") == pytest.approx(sum(operations[:2]) / 6)
    assert found.of("another") == pytest.approx(operations[2] / 50)
    assert found.of("never seen") == pytest.approx(sum(operations[:3]) / 56)
    assert found.source.startswith(f"by 3 records of this ledger on {device_label(device_name(CPU))}, ")
    (group,) = priced(every)
    assert group.seconds(found) == pytest.approx(sum(operations) / sum(operations[:2]) * 6)
    assert cells(plan_of(plan(every), found), "minutes")[0] == pricing.said_minutes(group.seconds(found))


def test_a_trial_that_ended_early_counts_for_the_steps_it_took(tmp_path: Path) -> None:
    trial = trials()[1]
    found = rates(tmp_path, replace(record(trial, 2.0), steps=trial.steps // 4))
    assert found.of("small") == pytest.approx(trial.stretches[0][1] / 4 / 2)


def test_what_failed_or_ran_on_another_device_tells_nothing(tmp_path: Path) -> None:
    first, second, third, *_ = trials()
    other = record(second, 2.0, device="cpu, 99 threads")
    spec = {**record(third, 2.0).spec, "kind": "of another version"}
    foreign = replace(record(third, 2.0), spec=spec, key=address(spec))
    found = rates(tmp_path, replace(record(first, 2.0), status="failed"), other, foreign)
    assert not found.known
    assert found.source.startswith(f"no rate was measured on {device_label(device_name(CPU))}; start the run, ")
    table = plan_of(plan(trials()), found)
    assert "minutes" not in [column.header for column in table.columns]
    assert str(table.caption).startswith("no minutes: no rate was measured on")


def test_without_records_minutes_are_by_the_bench_of_the_device() -> None:
    found = pricing._of_bench("NVIDIA H200")
    assert found.source.startswith("at best: by ")
    assert "`recallmap bench step` on NVIDIA H200" in found.source
    assert found.by_arch["gla"] == pytest.approx(8e13, rel=0.2)
    assert min(found.by_arch.values()) < found.whole < max(found.by_arch.values())


def test_a_dry_run_prices_a_grid_and_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["run", "parity", "--dry-run", "--device", "cpu"]).output
    said = " ".join(said.split())
    assert "minutes by a guess, by 270 records of demo.jsonl on cpu, 1 thread, " in said
    assert "which may be four times too fast or too slow; no rate was measured on cpu" in said
    said = CliRunner().invoke(app, ["run", "hybrid_search", "--set", "budget=smoke", "--dry-run"]).output
    assert "training FLOPs of a point from " in said
    assert "minutes on one device by a guess, " in said


def test_a_guess_is_made_for_a_reader_alone(tmp_path: Path) -> None:
    nothing = Ledger(tmp_path / "none.sqlite")
    assert not pricing.rates_on(CPU, nothing).known
    assert pricing.rates_or_guess(CPU, nothing).whole == pytest.approx(2e10, rel=0.2)
    assert not pricing.rates_or_guess(torch.device("meta"), nothing).known  # neither a CPU nor a GPU
    assert pricing._of_bench(None).source.startswith("at best: by ")


def test_a_dry_run_says_which_trials_this_machine_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    every = trials()
    needs = sorted(sum(trial.needs.values()) for trial in every)
    monkeypatch.setattr("recallmap.search.trials.memory_needs.held_by", lambda device: needs[2])
    said = pricing.too_large(every, CPU)
    assert said.startswith("2 trials will fail here: up to ")
    monkeypatch.setattr("recallmap.search.trials.memory_needs.held_by", lambda device: 1e12)
    assert pricing.too_large(every, CPU) == ""
    assert planned(codec.read_study(STUDY), set(), room=at_most(8)).missing == every
