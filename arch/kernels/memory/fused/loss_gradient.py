"""The gradient of the loss by what a memory answers, through a LayerNorm or not, and the bends of hidden units.

S tokens that a chunk sees, V value width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.memory.fused.tiles import load, load_vector, store


@triton.jit
def gelu(x):
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_slope(x):
    """The derivative of the exact GELU."""
    return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def gelu_bend(x):
    """The derivative of that."""
    return (2 - x * x) * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def standardised(y, there, eps, V: tl.constexpr):
    """y with mean 0 and deviation 1 over its columns, and the factor that made it so."""
    centred = tl.where(there, y - tl.sum(y, 1)[:, None] / V, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / V + eps)
    return centred * scale[:, None], scale[:, None]


@triton.jit
def standardised_backward(d, standard, scale, there, V: tl.constexpr):
    d = d - tl.sum(d, 1)[:, None] / V - standard * (tl.sum(d * standard, 1)[:, None] / V)
    return tl.where(there, scale * d, 0.0)


@triton.jit
def signal_of(y, target, weight, bias, there, eps, V: tl.constexpr, NORM: tl.constexpr, DOT: tl.constexpr):
    """The loss' derivative by y."""
    error = -target
    if NORM:
        standard, scale = standardised(y, there, eps, V)
        if not DOT:
            error += standard * weight[None, :] + bias[None, :]
        error = standardised_backward(error * weight[None, :], standard, scale, there, V)
    elif not DOT:
        error += y
    return error


@triton.jit
def signal_backward(
    d, y, target, weight, bias, there, eps, V: tl.constexpr, NORM: tl.constexpr, DOT: tl.constexpr
):  # fmt: skip
    """From the derivative by the signal those by y, target, weight and bias."""
    d_y, d_error = d, d
    d_weight, d_bias = tl.zeros_like(weight), tl.zeros_like(weight)
    if NORM:
        standard, scale = standardised(y, there, eps, V)
        error = -target
        if not DOT:
            error += standard * weight[None, :] + bias[None, :]
        by_weight = error * weight[None, :]
        signal = standardised_backward(by_weight, standard, scale, there, V)
        # The signal is made from the error by a symmetric map, so the same map leads back.
        d_by_weight = standardised_backward(d, standard, scale, there, V)
        along, d_along = tl.sum(by_weight * standard, 1)[:, None] / V, tl.sum(d * standard, 1)[:, None] / V
        d_standard = -scale * (d * along + by_weight * d_along)
        d_error = d_by_weight * weight[None, :]
        d_weight = tl.sum(d_by_weight * error, 0)
        if not DOT:
            d_standard += d_error * weight[None, :]
            d_weight += tl.sum(d_error * standard, 0)
            d_bias = tl.sum(d_error, 0)
        d_y = standardised_backward(d_standard, standard, scale, there, V)
        d_y -= scale * standard * (tl.sum(d * signal, 1)[:, None] / V)
    return d_y, -d_error, d_weight, d_bias


@triton.jit
def load_norm(norm_weight, norm_bias, place, c, V: tl.constexpr):
    """Weight and bias [V] of a head's LayerNorm; zero where there is none."""
    weight, bias = tl.zeros((c.shape[0],), tl.float32), tl.zeros((c.shape[0],), tl.float32)
    if norm_weight is not None:
        weight = load_vector(norm_weight + place * V, c, V)
        bias = load_vector(norm_bias + place * V, c, V)
    return weight, bias


@triton.jit
def store_outputs(
    read, o, answer, q_skip, weight, bias, there, tokens, t, c, H, count, eps, V: tl.constexpr, NORM: tl.constexpr
):  # fmt: skip
    """Store what tokens read [C, V], through the norm and with the queries that a residual adds; `answer` is ahead of it."""
    if NORM:
        store(answer + tokens * V, read, t, c, H * V, 1, count, V, False)
        standard, _ = standardised(read, there, eps, V)
        read = standard * weight[None, :] + bias[None, :]
    if q_skip is not None:
        read += load(q_skip + tokens * V, t, c, H * V, 1, count, V)
    store(o + tokens * V, read, t, c, H * V, 1, count, V, False)


@triton.jit
def outputs_backward(
    d_o, answer, d_weight, d_bias, weight, there, tokens, t, c, H, count, eps, V: tl.constexpr, NORM: tl.constexpr
):  # fmt: skip
    """From the derivative by outputs that by what tokens read [C, V], and those by weight and bias, added to what there is."""
    d_read = load(d_o + tokens * V, t, c, H * V, 1, count, V)
    if NORM:
        read = load(answer + tokens * V, t, c, H * V, 1, count, V)
        standard, scale = standardised(read, there, eps, V)
        d_weight += tl.sum(d_read * standard, 0)
        d_bias += tl.sum(d_read, 0)
        d_read = standardised_backward(d_read * weight[None, :], standard, scale, there, V)
    return d_read, d_weight, d_bias


@triton.jit
def store_norm_gradients(d_weight, d_bias, by_weight, by_bias, sequence, c, V: tl.constexpr):
    """Store a sequence's derivatives by weight and bias of the norm."""
    tl.store(d_weight + sequence * V + c, by_weight, mask=c < V)
    tl.store(d_bias + sequence * V + c, by_bias, mask=c < V)
