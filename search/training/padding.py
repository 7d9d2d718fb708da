"""Padding of vocabularies: models of one architecture whose vocabularies differ, as rows of one width.

A member's own parameters come from its own model. What the widest has beyond them is 0 and stays 0: such token ids are never
read, and their logits are minus infinity. So they get no gradient, AdamW does not move them, and they add nothing to a norm.

N members, P parameters of the widest, V its token ids, B batch, Q positions read out
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from recallmap.arch.backbone import Backbone


class Layout:
    """Places of parameters in rows [N, P] of members with these vocabularies, as wide as `width` token ids; None: as the
    widest of them."""

    def __init__(
        self, base: Backbone, vocabs: Sequence[int], device: torch.device, *, width: int | None = None
    ) -> None:
        self.base, self.vocabs, self.device = base, list(vocabs), device
        self.width = width or max(vocabs)
        self.axes = base.vocabulary_axes()
        self.forms = [
            (name, tuple(parameter.shape)) for name, parameter in base.named_parameters()
        ]  # of some vocabulary
        self.shapes = self._shapes(self.width)
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.counts = torch.tensor(self.vocabs, device=device)  # [N]: token ids that each member has
        self.beyond: Tensor | None = None  # [N, 1, 1, V]: token ids that a member does not have; None: all have all
        if any(vocab < self.width for vocab in vocabs):
            ids_V = torch.arange(self.width, device=device)
            self.beyond = (ids_V >= self.counts[:, None])[:, None, None]

    def of(self, positions: Sequence[int]) -> Layout:
        """The layout of these members alone, as wide as this one."""
        return Layout(self.base, [self.vocabs[position] for position in positions], self.device, width=self.width)

    def parameters(self, flat_NP: Tensor) -> dict[str, Tensor]:
        """Views of `flat_NP` by parameter name, [N, ...] each."""
        pieces = flat_NP.split(self.sizes, dim=1)
        return {
            name: piece.view(-1, *shape)
            for (name, _), shape, piece in zip(self.forms, self.shapes, pieces, strict=True)
        }

    def of_one(self, flat_P: Tensor) -> dict[str, Tensor]:
        """Views of one row by parameter name: those of `parameters` without its first axis."""
        pieces = flat_P.split(self.sizes)
        return {
            name: piece.view(shape) for (name, _), shape, piece in zip(self.forms, self.shapes, pieces, strict=True)
        }

    def padded(self, rows: Sequence[Tensor]) -> Tensor:
        """[N, P] from each member's own parameters in a row."""
        if self.beyond is None:
            return torch.stack([row.to(self.device) for row in rows])
        flat_NP = torch.zeros(len(rows), sum(self.sizes), dtype=rows[0].dtype, device=self.device)
        for flat_P, row, vocab in zip(flat_NP, rows, self.vocabs, strict=True):
            shapes = self._shapes(vocab)
            pieces = row.to(self.device).split([math.prod(shape) for shape in shapes])
            for place, piece, shape in zip(self._own(flat_P, vocab), pieces, shapes, strict=True):
                place.copy_(piece.view(shape))
        return flat_NP

    def own(self, flat_P: Tensor, position: int) -> Tensor:
        """A member's own parameters in a row: what its model has alone, in its order. A view where nothing is padded."""
        vocab = self.vocabs[position]
        if vocab == self.width:
            return flat_P
        return torch.cat([place.reshape(-1) for place in self._own(flat_P, vocab)])

    def _own(self, flat_P: Tensor, vocab: int) -> list[Tensor]:
        """Views of one row: a member's own parameters."""
        return [
            value.narrow(self.axes[name], 0, vocab) if name in self.axes else value
            for name, value in self.of_one(flat_P).items()
        ]

    def _shapes(self, vocab: int) -> list[tuple[int, ...]]:
        """Shapes of the parameters of a model with this vocabulary."""
        return [
            tuple(vocab if axis == self.axes.get(name) else size for axis, size in enumerate(shape))
            for name, shape in self.forms
        ]


def row_of(model: Backbone) -> Tensor:
    """The parameters of a model in a row."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def together(rows: Sequence[Tensor]) -> Tensor:
    """Rows of any widths as one tensor, narrow ones with zeros behind them."""
    if len({row.shape for row in rows}) == 1:
        return torch.stack(list(rows))
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
