"""Listeners that follow runs, by the names that `--log NAME:TARGET` has: one file each."""

from __future__ import annotations

from collections.abc import Mapping

from recallmap.search.engines.listeners.listener import Listener as Listener
from recallmap.search.engines.listeners.mlflow import MLflow
from recallmap.search.engines.listeners.tensorboard import TensorBoard
from recallmap.search.engines.listeners.wandb import WandB

# name -> what the word behind it is, and the listener that takes it
LISTENERS: Mapping[str, tuple[str, type[MLflow | TensorBoard | WandB]]] = {
    "tensorboard": ("DIR", TensorBoard),
    "wandb": ("PROJECT", WandB),
    "mlflow": ("URI", MLflow),
}
