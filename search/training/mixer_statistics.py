"""Statistics that mixers report beyond their outputs, such as the steps of a solver, on the sequences of a split."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from recallmap.arch.backbone import Backbone
from recallmap.arch.mixers.mixer import MixerModule


@torch.no_grad()
def gauges(base: Backbone, weights: Mapping[str, Tensor], inputs_ST: Tensor, at_once: int) -> dict[str, float]:
    """The mean of every statistic over sequences, tokens, heads and blocks ("cg_steps"), and that of each head
    ("cg_steps/block=0/head=1"); empty where no mixer has one. `base` lends its form, not its parameters."""
    total: dict[str, Tensor] = {}

    def listen(block: int, share: float) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hear(module: nn.Module, given: tuple[Any, ...]) -> None:
            assert isinstance(module, MixerModule)
            for name, value_H in module.gauge(given[0]).items():
                place = f"{name}/block={block}"
                total[place] = total.get(place, torch.zeros_like(value_H)) + share * value_H

        return hear

    having = [
        (number, mixer)
        for number, block in enumerate(base.blocks)
        for mixer in block.modules()
        if isinstance(mixer, MixerModule) and type(mixer).gauge is not MixerModule.gauge
    ]
    for part_BT in inputs_ST.split(max(1, at_once)) if having else ():
        share = len(part_BT) / len(inputs_ST)
        hooks = [mixer.register_forward_pre_hook(listen(number, share)) for number, mixer in having]
        try:
            functional_call(base, dict(weights), (part_BT,))
        finally:
            for hook in hooks:
                hook.remove()
    figures: dict[str, list[float]] = defaultdict(list)
    for place, value_H in total.items():
        for head, value in enumerate(value_H.tolist()):
            figures[place.partition("/")[0]].append(value)
            figures[f"{place}/head={head}"].append(value)
    return {name: sum(values) / len(values) for name, values in figures.items()}
