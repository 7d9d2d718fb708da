"""The bench times what agrees, and refuses what does not."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark import peers, timing
from recallmap.arch.kernels.benchmark.tolerance import TABLE, attainable, error, tolerance


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "INTERPRETED", False)


SMALL = timing.Shape(batch=2, time=20, heads=2, key_width=4, value_width=3)


def test_rows_stand_side_by_side() -> None:
    rows = timing.bench("delta", [SMALL], repeats=2, warm_up=1)
    assert [row["implementation"] for row in rows] == ["chunked", "recurrent"]
    for row in rows:
        assert row["op"] == "delta"
        assert row["time"] == 20
        assert row["dtype"] == "float32"
        assert row["forward_ms"] > 0
        assert row["forward_backward_ms"] > 0
        assert 0 < row["error_share"] < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_disagrees_is_not_timed(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = select.load("delta", "chunked")

    def wrong(*args: Any, **arguments: Any) -> Any:
        o, final = honest(*args, **arguments)
        return o * 1.1, final

    monkeypatch.setattr(sys.modules["recallmap.arch.kernels.delta.chunked"], "chunked", wrong)
    timed: list[Callable[[], object]] = []
    monkeypatch.setattr(timing, "_milliseconds", lambda call, *_: timed.append(call))
    with pytest.raises(
        timing.Disagreement, match=r"'chunked' of 'delta' in .*: outputs differ .* a wrong result is not timed"
    ):
        timing.bench("delta", [SMALL], dtype=dtype)
    assert not timed


def test_a_wrong_gradient_is_found_too(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = select.load("delta", "chunked")

    def wrong(*args: Any, log_decay: Any, **arguments: Any) -> Any:
        return honest(*args, log_decay=log_decay.detach() + 0.5 * (log_decay - log_decay.detach()), **arguments)

    monkeypatch.setattr(sys.modules["recallmap.arch.kernels.delta.chunked"], "chunked", wrong)
    with pytest.raises(timing.Disagreement, match="gradients of log_decay differ"):
        timing.bench("delta", [SMALL])


def test_agreement_is_checked_on_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few sequences and tokens, but with all of them there: tables choose kernels by how many there are."""
    honest = select.load("delta", "chunked")

    def wrong_of_many(q: torch.Tensor, *args: Any, **arguments: Any) -> Any:
        o, final = honest(q, *args, **arguments)
        return o * (1.1 if q.shape[:2] == (2, 20) else 1), final

    monkeypatch.setattr(sys.modules["recallmap.arch.kernels.delta.chunked"], "chunked", wrong_of_many)
    monkeypatch.setattr(timing, "CHECKED", (1, 7))
    with pytest.raises(timing.Disagreement, match="outputs differ"):
        timing.bench("delta", [SMALL])


@pytest.mark.parametrize(("op", "variant"), [("delta", "head"), ("spanned_newton_schulz", "atlas")])
def test_what_is_not_checked_has_no_part_in_the_gradients(
    op: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where inputs have sequences and no tokens, and outputs a shape of their own."""
    monkeypatch.setattr(timing, "CHECKED", (1, 7))
    assert timing.disagreement(op, "chunked", timing.example(op, variant, SMALL)) < 1


def test_what_cannot_serve_is_refused() -> None:
    with pytest.raises(ValueError, match="implementation 'fused' needs a CUDA tensor"):
        timing.bench("delta", [SMALL], implementations=["fused"])
    with pytest.raises(ValueError, match="op 'delta' has no variant 'heads'; there are head, plain"):
        timing.bench("delta", [SMALL], variant="heads")
    with pytest.raises(ValueError, match="time must be at least 1, got 0"):
        timing.Shape(time=0)


def test_errors_are_relative_to_each_head() -> None:
    reference = torch.ones(2, 5, 3, 4, dtype=torch.float64)
    reference[:, :, 1] = 1e-3
    x = reference.clone()
    assert error(x, reference, (0, 2)) == 0
    x[0, :, 1] += 1e-5
    assert error(x, reference, (0, 2)) == pytest.approx(1e-2)
    x[0, 0, 0, 0] = torch.nan
    assert error(x, reference, (0, 2)) == torch.inf


def test_one_large_error_among_many_small_ones_counts() -> None:
    reference = torch.ones(1, 10_000, 1, 1, dtype=torch.float64)
    x = reference.clone()
    x[0, 0] += 1
    assert error(x, reference, (0, 2)) == pytest.approx(0.1)


def test_nothing_equals_nothing_only() -> None:
    reference = torch.zeros(1, 5, 1, 2, dtype=torch.float64)
    assert error(reference.clone(), reference, (0, 2)) == 0
    assert error(reference + 1e-30, reference, (0, 2)) == torch.inf


def test_no_error_is_asked_for_that_is_smaller_than_the_rounding_of_the_answer() -> None:
    reference = torch.full((1, 100_000, 1, 1), 1e-3, dtype=torch.float64)
    reference[0, 0] = 1 + 2**-8 - 1e-6  # just below the middle of two numbers in bf16
    assert attainable(reference, torch.float64, (0, 2)) == 0
    rounding = attainable(reference, torch.bfloat16, (0, 2))
    assert rounding == error(reference.bfloat16(), reference, (0, 2)) > tolerance("mlstm", torch.bfloat16)


def test_the_table_is_asked_by_dtype() -> None:
    assert tolerance("delta", torch.float64) == 1e-10
    assert tolerance("delta", torch.float32, case="repeated") == 5e-5
    assert tolerance("attention", torch.float32, case="repeated") == tolerance("attention", torch.float32)
    assert tolerance("mesa", torch.bfloat16, of="gate_gradient") == 4e-2
    assert tolerance("gated_linear", torch.float32, tf32=True) == 2e-3
    with pytest.raises(ValueError, match="'mesa' must not compute in tf32"):
        tolerance("mesa", torch.float32, tf32=True)
    with pytest.raises(ValueError, match="no tolerance is known for 'sort'"):
        tolerance("sort", torch.float32)


@pytest.mark.parametrize("op", select.ops())
def test_an_op_without_examples_says_what_it_lacks(op: str) -> None:
    """And one with examples has a tolerance."""
    try:
        timing.variants(op)
    except ValueError as lacking:
        assert f"arch/kernels/{op}/example.py" in str(lacking)  # noqa: PT017
    else:
        assert op in TABLE


def test_a_peer_may_err_a_little_more_than_ours_and_without_its_gradients_it_is_timed_forward_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = select.load("delta", "chunked")
    small = tolerance("delta", torch.float32)

    def peer_that(turns: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        def call(inputs: dict[str, Any]) -> torch.Tensor:
            constants = {"a": None, "b": None, "sign": None, "scale": 1.0, "initial_state": None}
            v = inputs["v"]
            rest = {name: inputs[name] for name in ("q", "k", "log_decay", "beta")}
            o: torch.Tensor = honest(v=v, **rest, **constants, return_state=False, chunk=None)[0]
            return turns(o)

        monkeypatch.setattr(timing, "peer", lambda *_: ("theirs", call))
        rows = timing.bench("delta", [SMALL], implementations=["chunked"], repeats=1, warm_up=0, beside=True)
        assert [row["implementation"] for row in rows] == ["chunked", "theirs"]
        return rows[1]

    fair = peer_that(lambda o: o * (1 + 2 * small))
    assert 1 < fair["error_share"] < timing.PEERS_MAY
    assert fair["forward_ms"] > 0
    wrong = peer_that(lambda o: o * 1.1)
    assert "outputs differ" in wrong["note"]
    assert math.isnan(wrong["forward_ms"])
    half = peer_that(lambda o: o.detach() + 0.5 * (o - o.detach()))
    assert "gradients of q differ" in half["note"]
    assert half["forward_ms"] > 0
    assert math.isnan(half["forward_backward_ms"])


def test_the_taps_of_a_peer_stand_the_other_way_around(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_they_convolve(x: torch.Tensor, weight: torch.Tensor, *, activation: str) -> tuple[torch.Tensor, None]:
        padded = torch.nn.functional.pad(x.mT, (weight.shape[-1] - 1, 0))
        return torch.nn.functional.silu(
            torch.nn.functional.conv1d(padded, weight[:, None], groups=len(weight)).mT
        ), None

    def as_they_norm(x: torch.Tensor) -> torch.Tensor:
        return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()

    monkeypatch.setattr(peers, "find_spec", lambda _: True)
    monkeypatch.setattr(peers, "_from", lambda _, name: as_they_norm if name == "l2norm" else as_they_convolve)
    rows = timing.bench("short_conv", [SMALL], variant="unit", implementations=["chunked"], repeats=1, beside=True)
    assert rows[1]["note"] == ""
    assert rows[1]["error_share"] < 1
