"""Other people's kernels for our ops, for the bench to time beside ours: flash-linear-attention's where it is installed
(pip install flash-linear-attention), and torch's own attention. They get our inputs in our layout, [B, T, H, D].
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch.nn.functional as F
from torch import Tensor

Inputs = dict[str, Any]
Peer = Callable[[Inputs], Tensor]


def peer(op: str, variant: str) -> tuple[str, Peer] | None:
    """The name of the peer for this kind of inputs and how to call it; None where there is none."""
    if (op, variant) not in _PEERS:
        return None
    name, call = _PEERS[op, variant]
    return None if name.startswith("fla") and find_spec("fla") is None else (name, call)


def _fla(module: str, function: str) -> Callable[..., tuple[Tensor, ...]]:
    found: Callable[..., tuple[Tensor, ...]] = getattr(import_module(f"fla.ops.{module}"), function)
    return found


def _attention(x: Inputs) -> Tensor:
    q, k, v = (x[name].transpose(1, 2) for name in ("q", "k", "v"))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _linear(x: Inputs) -> Tensor:
    return _fla("simple_gla", "chunk_simple_gla")(x["q"], x["k"], x["v"], scale=1.0)[0]


def _scalar(x: Inputs) -> Tensor:
    written = x["v"] * x["beta"][..., None].to(x["v"].dtype)
    return _fla("simple_gla", "chunk_simple_gla")(x["q"], x["k"], written, g=x["log_decay"], scale=1.0)[0]


def _vector(x: Inputs) -> Tensor:
    return _fla("gla", "chunk_gla")(x["q"], x["k"], x["v"], g=x["log_decay"])[0]


def _delta(x: Inputs) -> Tensor:
    return _fla("delta_rule", "chunk_delta_rule")(x["q"], x["k"], x["v"], beta=x["beta"].to(x["v"].dtype), scale=1.0)[0]


def _gated_delta(x: Inputs) -> Tensor:
    call = _fla("gated_delta_rule", "chunk_gated_delta_rule")
    return call(x["q"], x["k"], x["v"], g=x["log_decay"], beta=x["beta"], scale=1.0)[0]


def _rwkv7(x: Inputs) -> Tensor:
    call = _fla("rwkv7", "chunk_rwkv7")
    return call(x["q"], x["log_decay"], x["k"], x["v"], -x["a"], x["b"], scale=1.0)[0]


def _mesa(x: Inputs) -> Tensor:
    call = _fla("mesa_net", "chunk_mesa_net")
    gates = {"g": x["log_decay"], "beta": x["beta"], "lamb": x["lam"]}
    return call(x["q"], x["k"], x["v"], **gates, max_CG_iteration=x.get("steps", 30))[0]


def _scan(x: Inputs) -> Tensor:
    o = _fla("hgrn", "fused_recurrent_hgrn")(x["x"].flatten(2), x["log_a"].flatten(2))[0]
    return o.unflatten(-1, x["x"].shape[2:])


_PEERS: dict[tuple[str, str], tuple[str, Peer]] = {
    ("attention", "full"): ("torch scaled_dot_product_attention", _attention),
    ("gated_linear", "plain"): ("fla chunk_simple_gla, no gate", _linear),
    ("gated_linear", "head"): ("fla chunk_simple_gla", _scalar),
    ("gated_linear", "channel"): ("fla chunk_gla", _vector),
    ("delta", "plain"): ("fla chunk_delta_rule", _delta),
    ("delta", "head"): ("fla chunk_gated_delta_rule", _gated_delta),
    ("delta", "pair_channel"): ("fla chunk_rwkv7", _rwkv7),
    ("mesa", "head"): ("fla chunk_mesa_net", _mesa),
    ("linear_scan", "scan"): ("fla fused_recurrent_hgrn", _scan),
}
