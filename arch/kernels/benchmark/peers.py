"""Other people's kernels for our ops, for the bench to time beside ours: flash-linear-attention's and mlstm_kernels' where they
are installed (pip install flash-linear-attention mlstm_kernels), and torch's own attention. They get our inputs, [B, T, H, D].
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
    """The name of the peer for this kind of inputs and how to call it; None where there is none, or its package is missing."""
    if (op, variant) not in _PEERS:
        return None
    name, call = _PEERS[op, variant]
    return (name, call) if find_spec(name.partition(" ")[0]) else None


def _fla(module: str, function: str) -> Callable[..., tuple[Tensor, ...]]:
    return _from(f"fla.ops.{module}", function)


def _from(module: str, function: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found


def _attention(x: Inputs) -> Tensor:
    q, k, v = (x[name].transpose(1, 2) for name in ("q", "k", "v"))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def _linear(x: Inputs) -> Tensor:
    return _fla("simple_gla", "chunk_simple_gla")(x["q"], x["k"], x["v"], scale=1.0)[0]


def _past_its_guard(module: str) -> None:
    """Backward of gated rules refuses Triton 3.4 to 3.7.0 on Hopper, where it saw wrong results. Here it may try, because the
    bench compares its gradients before it times it."""
    import_module(module).TRITON_ABOVE_3_7_1 = True  # type: ignore[attr-defined]


def _scalar(x: Inputs) -> Tensor:
    _past_its_guard("fla.ops.common.chunk_o")
    written = x["v"] * x["beta"][..., None].to(x["v"].dtype)
    return _fla("simple_gla", "chunk_simple_gla")(x["q"], x["k"], written, g=x["log_decay"], scale=1.0)[0]


def _vector(x: Inputs) -> Tensor:
    return _fla("gla", "chunk_gla")(x["q"], x["k"], x["v"], g=x["log_decay"])[0]


def _delta(x: Inputs) -> Tensor:
    return _fla("delta_rule", "chunk_delta_rule")(x["q"], x["k"], x["v"], beta=x["beta"].to(x["v"].dtype), scale=1.0)[0]


def _gated_delta(x: Inputs) -> Tensor:
    _past_its_guard("fla.ops.common.chunk_o")
    call = _fla("gated_delta_rule", "chunk_gated_delta_rule")
    return call(x["q"], x["k"], x["v"], g=x["log_decay"], beta=x["beta"], scale=1.0)[0]


def _kda(x: Inputs) -> Tensor:
    return _fla("kda", "chunk_kda")(x["q"], x["k"], x["v"], g=x["log_decay"], beta=x["beta"], scale=1.0)[0]


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


def _fox(x: Inputs) -> Tensor:
    o: Tensor = _from("fla.ops.forgetting_attn", "parallel_forgetting_attn")(x["q"], x["k"], x["v"], x["log_decay"])
    return o


def _path(x: Inputs) -> Tensor:
    call = _fla("path_attn", "parallel_path_attn")
    return call(x["q"], x["k"], x["v"], x["w"].float(), x["beta"].float())[0]  # it refuses others


def _slots(x: Inputs) -> Tensor:
    call = _fla("gsa", "chunk_gsa")
    return call(x["q"], x["k"], x["v"], x["write"].to(x["v"].dtype), x["log_decay"], scale=1.0)[0]


def _mlstm(x: Inputs) -> Tensor:
    call = _from("mlstm_kernels.torch.chunkwise.triton_xl_chunk", "mlstm_chunkwise__xl_chunk")
    heads_first = (x[name].transpose(1, 2).contiguous() for name in ("q", "k", "v", "i", "f"))
    o: Tensor = call(*heads_first, autocast_kernel_dtype=x["v"].dtype)
    return o.transpose(1, 2)


def _short_conv(x: Inputs) -> Tensor:
    """A convolution and, after it, the norm of each head. Taps stand the other way around there: the token's is last."""
    weight = x["weight"].flatten(0, 1).flip(-1).to(x["x"].dtype)
    o = _from("fla.modules.causal_conv1d", "causal_conv1d")(x["x"].flatten(2), weight, activation=x["activation"])[0]
    normed: Tensor = _from("fla.modules.norm.l2norm", "l2norm")(o.unflatten(-1, x["x"].shape[2:]))
    return normed


_PEERS: dict[tuple[str, str], tuple[str, Peer]] = {
    ("attention", "full"): ("torch scaled_dot_product_attention", _attention),
    ("attention", "fading"): ("fla parallel_forgetting_attn", _fox),
    ("gated_linear", "plain"): ("fla chunk_simple_gla, no gate", _linear),
    ("gated_linear", "head"): ("fla chunk_simple_gla, past its guard", _scalar),
    ("gated_linear", "channel"): ("fla chunk_gla", _vector),
    ("delta", "plain"): ("fla chunk_delta_rule", _delta),
    ("delta", "head"): ("fla chunk_gated_delta_rule, past its guard", _gated_delta),
    ("delta", "channel"): ("fla chunk_kda", _kda),
    ("delta", "pair_channel"): ("fla chunk_rwkv7", _rwkv7),
    ("mesa", "head"): ("fla chunk_mesa_net", _mesa),
    ("mlstm", "head"): ("mlstm_kernels mlstm_chunkwise__xl_chunk", _mlstm),
    ("slots", "gated"): ("fla chunk_gsa", _slots),
    ("path", "plain"): ("fla parallel_path_attn", _path),
    ("short_conv", "unit"): ("fla causal_conv1d, l2norm", _short_conv),
    ("linear_scan", "scan"): ("fla fused_recurrent_hgrn", _scan),
}
