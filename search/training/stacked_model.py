"""N models of one architecture as one function: every parameter has a leading member axis.

N members, P parameters of one member, B batch, T time, Q positions read out, V vocabulary
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from recallmap.arch.backbone import Backbone

# Operations of a member's step (a spec's effort) from which a single member is faster on more than one core. On two cores at
# widths 32 to 512 (measured by hand), a step below 2e8 takes as long on both as on one, or longer; above 6e8 up to 1.8 times
# less.
LARGE = 4e8


class Stacked:
    """N models of one architecture as one function of one matrix: row n of `flat` [N, P] holds member n's parameters.

    On a GPU all members are one call under vmap. On a CPU a small model already fills a core, and stacked tensors leave its
    cache. So members are shared out among threads of one core each, `at_once` of them in a call. A single member stays on one
    core, too, and gives the same bits as in a cohort, unless its step is large by `effort` (operations).
    """

    def __init__(
        self,
        models: Sequence[Backbone],
        device: torch.device,
        at_once: int | None = None,
        effort: float = 0.0,
    ) -> None:
        flat_NP = torch.stack([torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in models])
        self.flat, self.base = flat_NP.to(device), models[0].to(device)
        self.names = [name for name, _ in self.base.named_parameters()]
        self.shapes = [p.shape for p in self.base.parameters()]
        self.sizes = [p.numel() for p in self.base.parameters()]
        self.at_once = at_once or (1 if device.type == "cpu" else len(models))
        shared_out = device.type == "cpu" and (len(models) > 1 or effort < LARGE)
        self.crew = Crew(self.base, len(models)) if shared_out else None

    def parameters(self, flat_NP: Tensor) -> dict[str, Tensor]:
        """Views of `flat_NP` by parameter name, [N, ...] each."""
        pieces = flat_NP.split(self.sizes, dim=1)
        return {
            name: piece.view(-1, *shape) for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }

    def logits(self, base: Backbone, flat_NP: Tensor, inputs_NBT: Tensor, at_NBQ: Tensor | None) -> Tensor:
        """[N, B, Q, V]: every member's answers to its own inputs. `base` lends its form, not its parameters."""
        parameters = self.parameters(flat_NP)
        if len(flat_NP) == 1:  # the same numbers without the cost of vmap
            alone = {name: value[0] for name, value in parameters.items()}
            at_BQ = None if at_NBQ is None else at_NBQ[0]
            return functional_call(base, alone, (inputs_NBT[0],), {"at": at_BQ})[None]

        def member(own: dict[str, Tensor], inputs_BT: Tensor, at_BQ: Tensor | None) -> Tensor:
            return functional_call(base, own, (inputs_BT,), {"at": at_BQ})

        return vmap(member, in_dims=(0, 0, None if at_NBQ is None else 0))(parameters, inputs_NBT, at_NBQ)

    def over_members(self, work: Callable[..., tuple[Tensor, ...]], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """`work(base, *tensors)` for `at_once` members at a time, its results put together again along N."""
        count = next(len(t) for t in tensors if t is not None)
        parts = [
            [None if t is None else t[start : start + self.at_once] for t in tensors]
            for start in range(0, count, self.at_once)
        ]
        if len(parts) == 1 or self.crew is None:
            results = [work(self.base, *part) for part in parts]
        else:
            results = self.crew.map(work, parts)
        return results[0] if len(results) == 1 else tuple(torch.cat(column) for column in zip(*results, strict=True))


class Crew:
    """Threads of one core each, with a model each (functional_call swaps parameters in place)."""

    def __init__(self, base: Backbone, members: int) -> None:
        self.cores = torch.get_num_threads()
        threads = min(self.cores, members)
        self.spare = SimpleQueue[Backbone]()
        for _ in range(threads):
            self.spare.put(copy.deepcopy(base))
        # The caller's own work (the optimizer) is small: on several cores it would only wait for the slower one.
        torch.set_num_threads(1)
        self.threads = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def dismiss(self) -> None:
        """End the threads, and give the caller its cores back."""
        self.threads.shutdown(cancel_futures=True)
        torch.set_num_threads(self.cores)

    def map(self, work: Callable[..., tuple[Tensor, ...]], parts: Sequence[Sequence[Tensor | None]]) -> list[Any]:
        """`work(base, *part)` for every part, in order."""
        grad = torch.is_grad_enabled()

        def one(part: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
            base = self.spare.get()
            try:
                with torch.set_grad_enabled(grad):  # a thread does not inherit the mode
                    return work(base, *part)
            finally:
                self.spare.put(base)

        return list(self.threads.map(one, parts))
