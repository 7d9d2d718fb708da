"""Measure mad-lab and Zoology beside recallmap: optimizer steps a second on one GPU, one code after the other.

    python docs/measure_peers.py TABLE MAD_LAB ZOOLOGY [EPOCHS]

MAD_LAB and ZOOLOGY are clones of github.com/athms/mad-lab and github.com/HazyResearch/zoology. They need pytorch_lightning,
torchmetrics, einops and torchvision beside what recallmap needs. Each trains in a process of its own as its own training
loop does, evaluation included, so many epochs (3); the first is not counted. recallmap trains the same setting as
`recallmap run`, each cell of hyper-parameters that the study has, and evaluates as often. Its time is that of the whole
command, compiling included.

* in-context recall of MAD: its first setting, two layers of attention and SwiGLU, width 128, batches of 32, no early stop.
* MQAR as Zoology's study of recall and state has it: five lengths and numbers of pairs, a short convolution and attention,
  width 64, batches of 256.

mad-lab asks flash_attn for attention. Where that is missing, attention of the same sizes over PyTorch's stands in for it, and
the row says so. What no step needs (mad-lab's other layers, Weights & Biases) is not imported. Rows are added to the table, a
CSV.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

from recallmap.results.ledger import Ledger

BATCH = {"mad-lab": 32, "zoology": 256}
MAD_EPOCHS, ZOOLOGY_EPOCHS = 200, 32  # of one trial, as published
OWN_ZOOLOGY_EPOCHS = 8  # of the study that recallmap runs

# What `recallmap run` is told, for the setting of each peer.
OWN = {
    "mad-lab": [
        *("mad", "--set", "only.task.kind=in_context_recall", "--set", "only.arch.name=[attention]"),
        *("--set", f"space.axes.trial.training.epochs=[{MAD_EPOCHS}]", "--set", "trial.training.stop_at=null"),
        *("--set", f"trial.training.evaluations={MAD_EPOCHS}"),
    ],
    "zoology": [
        *("mqar_zoology", "--set", "only.arch.name=[conv_attention]", "--set", "only.arch.width=[64]"),
        *("--set", "trial.training.stop_at=null"),
    ],
}


class Attention(nn.Module):
    """The attention of flash_attn's MHA by PyTorch's: x [B, T, D], rotary positions on the first `rotary_emb_dim` channels."""

    def __init__(self, embed_dim: int, num_heads: int, rotary_emb_dim: int = 0, **_: Any) -> None:
        super().__init__()
        self.heads, self.rotary = num_heads, rotary_emb_dim
        self.inward, self.outward = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def turned(self, x: Tensor) -> Tensor:
        """x [B, H, T, D / H] with rotary positions."""
        half = self.rotary // 2
        if not half:
            return x
        rates = 10000 ** (-torch.arange(half, device=x.device) / half)
        angles = torch.arange(x.shape[2], device=x.device)[:, None] * rates
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half : 2 * half]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.inward(x).chunk(3, -1))
        read = nn.functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        return self.outward(read.transpose(1, 2).flatten(2))


class Epochs:
    """The times at which epochs end, in seconds."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def end(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def seconds(self) -> float:
        """Seconds of an epoch, the first left out."""
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)


def mad_lab(epochs: int) -> dict[str, Any]:
    """In-context recall by mad-lab's `train`, in its folder."""
    for name in ("rwkv", "mamba", "attention_linear", "attention_gated_linear", "hyena"):
        sys.modules[f"mad.model.layers.{name}"] = MagicMock()
    stands_in = find_spec("flash_attn") is None
    if stands_in:
        for name in ("flash_attn", "flash_attn.modules", "flash_attn.modules.mha"):
            sys.modules[name] = ModuleType(name)
        sys.modules["flash_attn.modules.mha"].MHA = Attention  # type: ignore[attr-defined]
    from mad.configs import MADConfig, MADModelConfig
    from mad.model import PLModelWrap
    from train import train

    told = Epochs()
    PLModelWrap.on_train_epoch_end = lambda self: told.end()  # after its evaluation
    words = {"epochs": epochs, "batch_size": BATCH["mad-lab"], "early_stop": False, "data_path": "data"}
    config, model = MADConfig(), MADModelConfig()
    config.update_from_kwargs(words)
    model.update_from_kwargs({"layers": ["mh-attention", "swiglu"] * 2, "vocab_size": 16})
    train(model.build_model_from_registry(), config, "log")
    steps = config.num_train_examples // config.batch_size
    attention = "torch's in place of flash_attn's" if stands_in else "flash_attn's"
    return {"steps": steps, "seconds": told.seconds(), "note": f"attention is {attention}"}


def zoology(epochs: int) -> dict[str, Any]:
    """MQAR by Zoology's `train`."""
    if find_spec("wandb") is None:
        sys.modules["wandb"] = MagicMock()
    from zoology import train as loop
    from zoology.config import DataConfig, ModelConfig, ModuleConfig, TrainConfig
    from zoology.data.multiquery_ar import MQARConfig
    from zoology.model import LanguageModel

    # At d88d6f5 its model gives embeddings where its loop asks for logits.
    LanguageModel.forward.__defaults__ = (None, None, False)

    def segments(of: list[tuple[int, int, int]]) -> list[Any]:
        return [MQARConfig(vocab_size=8192, input_seq_len=t, num_kv_pairs=n, num_examples=many) for t, n, many in of]

    train = [(64, 4, 100_000), (128, 8, 20_000), (256, 16, 20_000), (256, 32, 20_000), (256, 64, 20_000)]
    test = [(64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256)]
    convolution = {
        "name": "zoology.mixers.base_conv.BaseConv",
        "kwargs": {"l_max": 1024, "kernel_size": 3, "implicit_long_conv": True},
    }
    attention = {"name": "zoology.mixers.attention.MHA", "kwargs": {"dropout": 0.1, "num_heads": 1}}
    mixer = {"name": "zoology.mixers.hybrid.Hybrid", "kwargs": {"configs": [convolution, attention]}}
    config = TrainConfig(
        data=DataConfig(
            train_configs=segments(train),
            test_configs=segments([(t, n, 1000) for t, n in test]),
            batch_size=(BATCH["zoology"], BATCH["zoology"] // 8),
        ),
        model=ModelConfig(
            d_model=64,
            n_layers=2,
            vocab_size=8192,
            max_position_embeddings=0,
            sequence_mixer=ModuleConfig(**mixer),
            state_mixer=ModuleConfig(name="torch.nn.Identity"),
        ),
        max_epochs=epochs,
        early_stopping_threshold=2.0,  # never
    )
    told = Epochs()
    evaluate = loop.Trainer.test

    def tested(self: Any, epoch: int) -> Any:
        found = evaluate(self, epoch)
        told.end()
        return found

    loop.Trainer.test = tested
    loop.train(config)
    return {"steps": sum(-(-many // BATCH["zoology"]) for *_, many in train), "seconds": told.seconds(), "note": ""}


PEERS: dict[str, Callable[[int], dict[str, Any]]] = {"mad-lab": mad_lab, "zoology": zoology}


def peer(name: str, folder: Path, epochs: int) -> dict[str, Any]:
    """The row of a peer, which trains in a process of its own."""
    commit = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    with tempfile.TemporaryDirectory() as work:
        if (folder / "configs").exists():
            (Path(work) / "configs").symlink_to((folder / "configs").resolve())
        told = Path(work) / "told.json"
        paths = os.pathsep.join([str(folder.resolve()), os.environ.get("PYTHONPATH", "")])
        subprocess.run(
            [sys.executable, Path(__file__).resolve(), "--of", name, str(epochs), told],
            cwd=work,
            env=os.environ
            | {"PYTHONPATH": paths, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},  # its checkpoints are pickles
            check=True,
        )
        found = json.loads(told.read_text())
    speed = found["steps"] / found["seconds"]
    steps = found["steps"] * {"mad-lab": MAD_EPOCHS, "zoology": ZOOLOGY_EPOCHS}[name]
    return {
        **{"code": name, "commit": commit.stdout.strip()[:7], "trials": 1, "seconds": round(found["seconds"], 2)},
        **{
            "steps": found["steps"],
            "steps a second": round(speed, 1),
            "trials an hour": round(speed / steps * 3600, 2),
        },
        "note": found["note"],
    }


def own(name: str) -> dict[str, Any]:
    """The row of recallmap on the same setting: all cells of the study, from the command's begin to its end."""
    with tempfile.TemporaryDirectory() as work:
        ledger = Path(work) / "own.sqlite"
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "recallmap", "run", *OWN[name], "--ledger", ledger, "-q"], cwd=work, check=True
        )
        seconds = time.perf_counter() - began
        records = Ledger(ledger).all()
    failed = [record.error for record in records if record.status != "done"]
    if failed:
        raise RuntimeError(f"recallmap's trials failed: {failed[0]}")
    steps = sum(record.steps for record in records)
    speed = steps / seconds
    whole = records[0].steps * (1 if name == "mad-lab" else ZOOLOGY_EPOCHS / OWN_ZOOLOGY_EPOCHS)
    return {
        **{"code": "recallmap", "commit": (records[0].commit or "")[:7], "trials": len(records)},
        **{"seconds": round(seconds, 2), "steps": steps, "steps a second": round(speed, 1)},
        **{"trials an hour": round(speed / whole * 3600, 2), "note": "all cells, compiling included"},
    }


def main(table: Path, folders: dict[str, Path], epochs: int) -> None:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    for name, folder in folders.items():
        for row in (peer(name, folder, epochs), own(name)):
            row = {"setting": {"mad-lab": "in-context recall", "zoology": "MQAR"}[name], "device": device, **row}
            new = not table.exists()
            with table.open("a", newline="") as file:
                rows = csv.DictWriter(file, row)
                if new:
                    rows.writeheader()
                rows.writerow(row)
            print(row, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--of", name, epochs, told]:
            Path(told).write_text(json.dumps(PEERS[name](int(epochs))))
        case [table, of_mad, of_zoology, *more] if len(more) < 2:
            main(Path(table), {"mad-lab": Path(of_mad), "zoology": Path(of_zoology)}, int(*more or ["3"]))
        case _:
            sys.exit(__doc__)
