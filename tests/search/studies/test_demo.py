"""The demo shows what is known of six kinds of memory. Minutes long: run with -m slow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recallmap.results.ledger import Ledger
from recallmap.search import codec
from recallmap.search.engines import inline
from recallmap.synth.tasks import Mqar

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mqar(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    path: Path = tmp_path_factory.mktemp("demo") / "demo.sqlite"
    inline.run(codec.read_study("demo"), path)
    records = Ledger.open(path).records()
    assert set(records.status) == {"done"}
    return records[records.task == "mqar"]


def accuracy(records: pd.DataFrame, arch: str) -> pd.Series:
    """By setting and state, ascending."""
    return records[records.arch == arch].sort_values(["setting", "state_bytes"]).accuracy


def test_attention_behind_a_short_convolution_recalls_everything(mqar: pd.DataFrame) -> None:
    assert accuracy(mqar, "attention").min() >= 0.98


@pytest.mark.parametrize("arch", ["gated_deltanet", "mesa"])
def test_error_correcting_memories_beat_linear_attention_at_equal_state(mqar: pd.DataFrame, arch: str) -> None:
    ours, theirs = accuracy(mqar, arch).to_numpy(), accuracy(mqar, "linear_attention").to_numpy()
    assert np.all(ours > theirs)
    sizes = [
        mqar[mqar.arch == a].sort_values(["setting", "state_bytes"]).state_bytes for a in (arch, "linear_attention")
    ]
    assert np.all(sizes[0].to_numpy() <= sizes[1].to_numpy())


def test_a_window_of_eight_tokens_recalls_what_lies_within(mqar: pd.DataFrame) -> None:
    task = Mqar(vocab=256, length=64, pairs=4)
    batch = task.sample(np.random.default_rng(0), 4096, "test")
    scored = batch.targets >= 0
    reach = (np.nonzero(scored)[1] - task.sources(batch)[scored] < 8).mean()
    windows = mqar[(mqar.arch == "sliding_window") & (mqar.setting == "vocab=256")]
    assert reach == pytest.approx(0.33, abs=0.01)
    assert windows.accuracy.min() == pytest.approx(reach, abs=0.02)


@pytest.mark.parametrize("arch", ["sliding_window", "linear_attention", "mamba2", "gated_deltanet", "mesa"])
def test_recall_rises_with_state(mqar: pd.DataFrame, arch: str) -> None:
    for _, group in mqar[mqar.arch == arch].groupby("setting"):
        assert group.sort_values("state_bytes").accuracy.is_monotonic_increasing
