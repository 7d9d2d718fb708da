"""State expansion (StateX): the same model with a larger state in some of its blocks, and its initial weights.

heads   all heads of a mixer become one with as many channels: no new parameters, H times the state
factor  keys of a state-space mixer become that many times wider: E times the state
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Literal

from torch import Tensor

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers.mixer import Channels, MixerSpec
from recallmap.arch.stack import flatten

Start = Literal["reinitialise", "inherit", "zero"]


def expand(
    spec: BackboneSpec,
    *,
    heads: Literal["merge"] | None = None,
    factor: int | None = None,
    layers: Literal["uniform"] = "uniform",
    count: int | Literal["all"] = 4,
) -> BackboneSpec:
    """The spec with `count` of its L expandable blocks expanded, at i * floor(L / count); its stack is written out.

    Raises ValueError unless one of heads and factor is given, and where `count` blocks cannot be expanded so. (StateX)
    """
    if (heads is None) == (factor is None):
        raise ValueError(f"heads 'merge' or a factor, one of them; got heads={heads} and factor={factor}")
    blocks = list(flatten(spec.stack))
    larger = {number: new for number, block in enumerate(blocks) if (new := _larger(block, spec.width, factor))}
    if not larger:
        what = "heads to merge" if factor is None else "keys to widen"
        kinds = ", ".join(dict.fromkeys(block.mixer.kind for block in blocks))
        raise ValueError(f"{spec.name} has no block with {what}, its mixers are {kinds}")
    chosen = list(larger)
    if count != "all":
        if not 1 <= count <= len(larger):
            raise ValueError(f"count must lie in 1..{len(larger)}, the blocks that can be expanded, got {count}")
        chosen = [chosen[i * (len(larger) // count)] for i in range(count)]
    stack = tuple(larger[number] if number in chosen else block for number, block in enumerate(blocks))
    how = "merged" if factor is None else f"wide{factor}"
    return replace(spec, name=f"{spec.name}_{how}_{len(chosen)}of{len(larger)}", stack=stack)


def expand_weights(
    old: BackboneSpec, new: BackboneSpec, weights: Mapping[str, Tensor], *, mode: Start = "reinitialise", seed: int = 0
) -> dict[str, Tensor]:
    """The initial weights of a model of `new` = expand(old, ...), by parameter name, from the `weights` of a model of `old`.

    reinitialise  as StateX: merged heads start anew with all of their mixer and its norm; in a widened mixer keys, queries,
                  decay rates and the bias of the step size start anew. All else is inherited
    inherit       all that fits is inherited; parameters that heads share are repeated, those of each head averaged, and new
                  channels start anew
    zero          as inherit, with new keys of zero: the model computes the same as before. Only widened mixers

    Raises ValueError where `new` is no expansion of `old`, or where `mode` is impossible.
    """
    pairs = list(zip(flatten(old.stack), flatten(new.stack), strict=True))
    fresh = dict(new.build(vocab=1, seed=seed).named_parameters())
    result = dict(weights)
    for number, (before, after) in enumerate(pairs):
        if before == after:
            continue
        place = f"blocks.{number}.mixer"
        names = [name for name in fresh if name.startswith((f"{place}.", f"{place}_norm."))]
        wide = (before.mixer.key_channels(old.width), after.mixer.key_channels(new.width))
        merged = wide[0] is None or wide[1] is None
        if merged and mode == "zero":
            raise ValueError(
                "merged heads meet each other's values, whatever their weights: take mode inherit, not zero"
            )
        for name in names:
            own, start = weights[name], fresh[name].detach().to(weights[name])
            if merged:
                result[name] = start if mode == "reinitialise" else _fold(name, own, start)
            else:
                result[name] = _widen(name.removeprefix(f"{place}."), own, start, wide, mode)
    return result


def _larger(block: object, width: int, factor: int | None) -> Block | None:
    if not isinstance(block, Block):
        return None
    mixer: MixerSpec | None = block.mixer.merged(width) if factor is None else block.mixer.widened(width, factor)
    return None if mixer is None else replace(block, mixer=mixer)  # type: ignore[arg-type]  # a sibling of the union


def _fold(name: str, own: Tensor, start: Tensor) -> Tensor:
    """A parameter of many heads as one of a single head."""
    if own.numel() == start.numel():
        return own.reshape(start.shape)
    if start.numel() % own.numel() == 0 and own.dim() == start.dim() == 1:
        return own.repeat(start.numel() // own.numel())
    if own.shape[0] % start.shape[0] == 0 and own.shape[1:] == start.shape[1:]:
        return own.unflatten(0, (-1, start.shape[0])).mean(0)
    raise ValueError(f"{name} {tuple(own.shape)} has no counterpart in one head: take mode reinitialise")


def _widen(name: str, own: Tensor, start: Tensor, wide: tuple[Channels | None, Channels | None], mode: Start) -> Tensor:
    """A parameter with more key and query channels among its rows."""
    before, after = wide
    assert before is not None
    assert after is not None
    if name not in before.keys:
        return start if mode == "reinitialise" and name in before.anew else own
    result = start.clone()
    kept = list(_rows(len(start), after.keys[name], after.queries[name]))
    result[kept] = own[list(_rows(len(own), before.keys[name], before.queries[name]))]
    if mode == "zero" and name in before.muting:
        result[list(after.keys[name])] = 0
    if mode != "reinitialise" or name not in before.anew:
        for rows, larger in ((before.keys[name], after.keys[name]), (before.queries[name], after.queries[name])):
            result[list(larger)[: len(rows)]] = own[list(rows)]
    return result


def _rows(count: int, *but: range) -> Iterator[int]:
    """All rows that are in none of `but`."""
    left_out = set(chain(*but))
    return (row for row in range(count) if row not in left_out)
