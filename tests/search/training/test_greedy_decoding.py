"""A needle's exact match, told from one forward pass, is that of decoding token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recallmap.search import codec
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Needle

MIXERS: list[dict[str, Any]] = [{"kind": "gated_deltanet", "heads": 2}, {"kind": "attention", "heads": 2}]


@torch.no_grad()
def decoded(model: Any, prompt: Tensor, count: int) -> Tensor:
    """What the model says after the prompt, each token read back."""
    logits, state = model(prompt, return_state=True)
    said = [logits[:, -1].argmax(-1)]
    while len(said) < count:
        logits, state = model.step(said[-1], state)
        said.append(logits.reshape(len(prompt), -1).argmax(-1))
    return torch.stack(said, dim=1)


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: mixer["kind"])
@pytest.mark.parametrize("level", [1, 3])
def test_one_forward_pass_finds_right_what_decoding_says(mixer: dict[str, Any], level: Any) -> None:
    task = Needle(level=level, length=127)
    batch = task.sample(np.random.default_rng(0), 8, "test")
    block = {"kind": "block", "mixer": mixer, "mlp": {"kind": "swiglu", "expand": 2}}
    model = (
        codec.read_arch({"name": "small", "width": 16, "stack": [block, block]})
        .build(vocab=task.vocab, seed=0)
        .double()
    )
    scored = batch.targets != IGNORE
    size = int(scored[0].sum())
    start = task.length - 1 - size

    # Values that the model decodes itself are exact matches; with one symbol of them changed they are not.
    inputs = torch.from_numpy(batch.inputs.copy())
    inputs[:, start:-1] = decoded(model, inputs[:, :start], size)
    wrong = np.arange(8) % 2 == 1
    inputs[wrong, start + size // 2] = (inputs[wrong, start + size // 2] + 1) % task.vocab
    asked = Batch(inputs=inputs.numpy(), targets=batch.targets.copy(), aux=batch.aux)
    asked.targets[scored] = asked.inputs[:, start:-1].ravel()
    with torch.no_grad():
        predictions = model(inputs).argmax(-1).numpy()
    right = [task.score(asked.rows(np.array([row])), predictions[[row]])["exact_match"] for row in range(8)]
    assert right == (1.0 - wrong).tolist()
    assert task.score(asked, predictions)["exact_match"] == 0.5
