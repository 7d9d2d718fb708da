"""The choice of an implementation is a pure function, and says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from recallmap.arch import kernels
from recallmap.arch.kernels import select

CPU: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "INTERPRETED", False)


@pytest.mark.parametrize("op", select.ops())
def test_every_op_has_its_definition_and_its_fast_form(op: str) -> None:
    assert {"recurrent", "chunked"} <= set(select.implementations(op))
    assert callable(getattr(kernels, op))


def test_an_op_is_a_folder_with_a_definition_and_an_implementation_a_file_or_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for file in ("op/recurrent.py", "op/chunked.py", "op/fused/__init__.py", "shared/__init__.py", "shared/chunked.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "op" / "fused" / "recurrent.py").touch()
    monkeypatch.setattr(select, "__file__", str(tmp_path / "select.py"))
    assert select._found() == {"op": ("fused", "chunked", "recurrent")}


@pytest.mark.parametrize("op", select.ops())
def test_a_cpu_computes_chunks_but_single_tokens_one_by_one(op: str) -> None:
    assert select.choose(op, **CPU) == "chunked"
    assert select.choose(op, **CPU, sizes={"time": 64}) == "chunked"
    assert select.choose(op, **CPU, sizes={"time": 1}) == "recurrent"


@pytest.mark.parametrize("op", select.ops())
def test_what_is_asked_for_is_what_runs(op: str) -> None:
    for name in ("recurrent", "chunked"):
        assert select.choose(op, **CPU, wanted=name, sizes={"time": 1}) == name


@pytest.mark.parametrize("op", select.ops())
def test_fused_needs_a_cuda_tensor(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(select._FOUND, op, select.PREFERENCE)
    message = "implementation 'fused' needs a CUDA tensor, got one on cpu; use 'chunked' or 'auto'"
    with pytest.raises(ValueError, match=message):
        select.choose(op, **CPU, wanted="fused")


def test_the_door_does_not_fall_back_in_silence() -> None:
    q = torch.randn(1, 4, 1, 2)
    with pytest.raises(ValueError, match="implementation 'fused' needs a CUDA tensor"):
        kernels.delta(q, q, q, implementation="fused")


def test_an_implementation_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"there is no implementation 'triton'; there are .*chunked, recurrent and auto"
    ):
        select.choose("delta", **CPU, wanted="triton")
    monkeypatch.setitem(select._FOUND, "delta", ("recurrent",))
    with pytest.raises(
        ValueError, match="implementation 'chunked' of op 'delta' does not exist; use 'recurrent' or 'auto'"
    ):
        select.choose("delta", **CPU, wanted="chunked")


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_fused_file_that_is_not_there_is_told_on_every_device(
    interpreted: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "INTERPRETED", interpreted)
    monkeypatch.setitem(select._FOUND, "delta", ("chunked", "recurrent"))
    with pytest.raises(
        ValueError, match="implementation 'fused' of op 'delta' does not exist; use 'chunked' or 'auto'"
    ):
        select.choose("delta", device=device, dtype=torch.float32, wanted="fused")


def test_an_op_that_is_not_there_is_told() -> None:
    with pytest.raises(ValueError, match="there is no op 'dleta'; there are add_norm, attention, delta"):
        select.implementations("dleta")


def test_a_fused_file_is_taken_up_where_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own limits, told by itself."""

    class Fused:
        @staticmethod
        def why_not(*, device: Any, dtype: torch.dtype, differentiable: bool, sizes: Any) -> str | None:
            return "takes keys up to 128 wide" if sizes.get("key_width", 0) > 128 else None

    monkeypatch.setitem(select._FOUND, "delta", ("fused", "chunked", "recurrent"))
    monkeypatch.setattr(select, "_module", lambda op, name: Fused)
    cuda: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    assert select.choose("delta", **cuda) == "fused"
    assert select.choose("delta", **cuda, sizes={"time": 1, "key_width": 64}) == "fused"
    assert select.choose("delta", **cuda, sizes={"key_width": 256}) == "chunked"
    assert select.choose("delta", **CPU) == "chunked"
    with pytest.raises(ValueError, match="implementation 'fused' takes keys up to 128 wide; use 'chunked' or 'auto'"):
        select.choose("delta", **cuda, wanted="fused", sizes={"key_width": 256})


def test_choices_are_recorded_for_whoever_asks() -> None:
    q = torch.randn(1, 4, 1, 2)
    with select.record_choices() as outer:
        with select.record_choices() as inner:
            kernels.delta(q, q, q, implementation="recurrent")
        kernels.attention(q, q, q)
    kernels.gated_linear(q, q, q)
    assert inner == {"delta": "recurrent"}
    assert outer == {"delta": "recurrent", "attention": "chunked"}


def test_of_an_op_that_several_implementations_served_all_are_recorded_in_order() -> None:
    q = torch.randn(1, 4, 1, 2)
    with select.record_choices() as chosen:
        for implementation in ("chunked", "recurrent", "chunked"):
            kernels.delta(q, q, q, implementation=implementation)
    assert chosen == {"delta": "chunked, recurrent"}
