"""Layers of flash-linear-attention are mixers as they come: `uses: [fla.layers]`. On a GPU, where the library is."""

from __future__ import annotations

from pathlib import Path

import pytest

import recallmap as rm

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def layers() -> str:
    pytest.importorskip("fla.layers")
    rm.use("fla.layers")
    return "fla.layers"


def test_a_layer_learns_recall(layers: str, tmp_path: Path) -> None:
    """Its DeltaNet: some of its other layers refuse certain versions of Triton."""
    block = {"kind": "block", "mixer": {"kind": "module", "of": f"{layers}:DeltaNet", "options": {"num_heads": 2}}}
    arch = {"name": "fla_deltanet", "width": 64, "stack": [block, block]}
    task = {"kind": "mqar", "vocab": 64, "length": 64, "pairs": 4}
    trials = [
        rm.trial(task, arch, seed=seed, steps=600, batch=64, lr=3e-3, evaluations=2, dtype="bfloat16")
        for seed in (0, 1)
    ]
    records = rm.run(trials, ledger=tmp_path / "fla.sqlite", device="cuda")
    assert [record.error for record in records] == [None, None]
    assert min(record.scores["accuracy"] for record in records) > 0.9
