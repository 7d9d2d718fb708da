"""The capacity of a mixer's memory, measured without training: write pairs of vectors through its op, read each back.

B rows of a call (a number of pairs and a draw each), T time, H heads, N pairs, K key width, V value width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.mixers.mixer import Memory, MixerSpec
from recallmap.arch.seeded import seeded
from recallmap.arch.stack import flatten

Keys = Literal["gaussian", "orthonormal", "correlated", "quantised"]

MOST_PAIRS = 512  # tried by default

LEAST = 32  # pairs: fewer are cheap, and apart they would be many calls

CORRELATION = 0.5  # cosine of any two correlated keys, on average


def probe(
    spec: BackboneSpec,
    *,
    pairs: Sequence[int] | None = None,
    keys: Keys = "gaussian",
    passes: int = 1,
    draws: int = 2,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[dict[str, Any]]:
    """A row for every mixer of `spec` and every number of `pairs` (None: around the mixer's own bounds).

    keys    directions of keys, all of length 1: "gaussian" any, "orthonormal" (beyond K one basis after another),
            "correlated" cosine 0.5 with each other, "quantised" corners of a cube
    passes  times that the pairs are written: a delta rule solves by repetition a system that one pass cannot

    A row has arch, mixer, keys, passes, pairs; error |o - v| / |v| and recall (the share of reads whose nearest value, by
    angle, is the right one), each over heads and draws; chance; key_dim, value_dim; state_floats of the mixer without
    convolutions, load (pairs in all heads over state_floats), bounds. All is in float64. Raises ValueError where no mixer
    has a memory of key-value pairs.
    """
    if passes < 1 or draws < 1 or any(n < 1 for n in pairs or ()):
        raise ValueError(f"pairs, passes and draws must be at least 1, got {pairs}, {passes} and {draws}")
    if keys not in get_args(Keys):
        raise ValueError(f"keys must be one of {', '.join(get_args(Keys))}, got {keys!r}")
    rows: list[dict[str, Any]] = []
    for mixer in dict.fromkeys(block.mixer for block in flatten(spec.stack)):
        with seeded(seed):
            memory = mixer.memory(spec.width)
        if memory is None:
            continue
        counts = sorted(set(pairs)) if pairs else around(memory)
        error, recall = measure(memory, counts, keys=keys, passes=passes, draws=draws, seed=seed, device=device)
        for number, count in enumerate(counts):
            floats = _alone(mixer).state_size(spec.width, count).total
            rows.append(
                {"arch": spec.name, "mixer": mixer.kind, "keys": keys, "passes": passes, "pairs": count}
                | {"error": float(error[number]), "recall": float(recall[number]), "chance": 1 / count}
                | {"key_dim": memory.key_dim, "value_dim": memory.value_dim}
                | {"state_floats": floats, "load": count * memory.heads / floats, "bounds": dict(memory.bounds)}
            )
    if not rows:
        kinds = ", ".join(dict.fromkeys(block.mixer.kind for block in flatten(spec.stack)))
        raise ValueError(f"{spec.name} has only {kinds}, expected a mixer with a memory of key-value pairs")
    return rows


def around(memory: Memory) -> list[int]:
    """Numbers of pairs from a quarter of the smallest bound to four times the largest, some in each octave."""
    near = [bound for bound in memory.bounds.values() if bound < MOST_PAIRS] or [memory.key_dim]
    least, most = max(1, min(near) // 4), min(MOST_PAIRS, 4 * max(near))
    steps = {round(least * 2 ** (i / 2)) for i in range(2 * (most // least).bit_length())}
    return sorted(n for n in steps | set(near) | {memory.key_dim} if least <= n <= most)


@torch.no_grad()
def measure(
    memory: Memory,
    pairs: Sequence[int],
    *,
    keys: Keys = "gaussian",
    passes: int = 1,
    draws: int = 2,
    seed: int = 0,
    unit: bool = True,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """The relative error, and the share of nearest values that are right, for every number of pairs. Numbers of one octave
    are one call, and so are those up to LEAST, because a row takes as long as the longest of its call.

    `unit` False leaves Gaussian keys their lengths: on the sphere polynomials of a degree have fewer dimensions.
    """
    rng = torch.Generator().manual_seed(seed)
    heads, most = memory.heads, max(pairs)
    count_B = torch.tensor(pairs).repeat_interleave(draws)
    rows = len(count_B)
    k_BNHK = draw_keys(keys, rows, most, heads, memory.key_dim, rng, unit=unit)
    v_BNHV = torch.randn(rows, most, heads, memory.value_dim, dtype=torch.float64, generator=rng)
    octaves: dict[int, list[int]] = {}
    for row, count in enumerate(count_B.tolist()):
        octaves.setdefault((max(LEAST, count) - 1).bit_length(), []).append(row)
    scores = torch.empty(rows, 2, dtype=torch.float64)
    for own in octaves.values():
        longest = int(count_B[own].max())
        scores[own] = _answered(
            memory, count_B[own], k_BNHK[own, :longest], v_BNHV[own, :longest], passes=passes, device=device
        )
    error, recall = scores.view(len(pairs), draws, 2).mean(1).unbind(-1)
    return error, recall


def _answered(
    memory: Memory, count_B: Tensor, k_BNHK: Tensor, v_BNHV: Tensor, *, passes: int, device: torch.device | str
) -> Tensor:
    """The two scores of rows that the memory reads in one call, float64 [B, 2], each with its own number of pairs."""
    rows, most, heads = k_BNHK.shape[:3]
    # A row is its pairs `passes` times, then each key alone, then nothing: later tokens never reach earlier ones.
    time_T, count_B1 = torch.arange((passes + 1) * most), count_B[:, None]
    which_BT, reads_BT = time_T % count_B1, time_T >= passes * count_B1
    reads_BT &= time_T < (passes + 1) * count_B1
    write_BT = (time_T < passes * count_B1).double()

    def laid(x: Tensor, where_BT: Tensor) -> Tensor:
        index = which_BT[..., None, None].expand(-1, -1, *x.shape[2:])
        return (x.gather(1, index) * where_BT[..., None, None]).to(device)

    write_BTH = write_BT[..., None].expand(-1, -1, heads).to(device)
    o_BTHV = memory.answer(laid(k_BNHK, reads_BT), laid(k_BNHK, write_BT), laid(v_BNHV, write_BT), write_BTH).cpu()
    scores = [_scores(o_BTHV[b][reads_BT[b]], v_BNHV[b, : int(count_B[b])]) for b in range(rows)]
    return torch.tensor(scores, dtype=torch.float64)


def draw_keys(
    keys: Keys, rows: int, count: int, heads: int, key_dim: int, rng: torch.Generator, *, unit: bool = True
) -> Tensor:
    """Keys, float64 [B, N, H, K]."""

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=rng)

    match keys:
        case "gaussian":
            k = gaussian(rows, count, heads, key_dim)
        case "correlated":
            common = gaussian(rows, 1, heads, key_dim)
            k = (1 - CORRELATION) ** 0.5 * gaussian(rows, count, heads, key_dim) + CORRELATION**0.5 * common
        case "quantised":
            k = gaussian(rows, count, heads, key_dim).sign()
        case "orthonormal":
            bases = -(-count // key_dim)
            q = torch.linalg.qr(gaussian(rows, heads, bases, key_dim, key_dim)).Q
            k = q.flatten(2, 3)[:, :, :count].transpose(1, 2)
    return k / k.norm(dim=-1, keepdim=True) if unit else k * key_dim**-0.5


def _scores(o_NHV: Tensor, v_NHV: Tensor) -> tuple[float, float]:
    error_H = (o_NHV - v_NHV).square().sum((0, 2)).sqrt() / v_NHV.square().sum((0, 2)).sqrt()
    direction_NHV = v_NHV / v_NHV.norm(dim=-1, keepdim=True)  # an output norm would hide the length of o
    nearest_HN = torch.einsum("nhv,mhv->hnm", o_NHV, direction_NHV).argmax(-1)
    right = nearest_HN == torch.arange(len(v_NHV))
    return error_H.mean().item(), right.double().mean().item()


def _alone(mixer: MixerSpec) -> MixerSpec:
    """The mixer without convolution, whose cache is not part of the memory."""
    names = {f.name for f in fields(mixer)}
    return replace(mixer, short_conv=0) if "short_conv" in names else mixer  # type: ignore[call-arg]
