"""The whole model: embed, stack, norm, head.

B batch, T time, D model width, V vocabulary (or channels out), P positions read out
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from recallmap.arch.block import BlockModule, Chain
from recallmap.arch.kernels.embedding import embedding, embedding_norm
from recallmap.arch.mixers.mixer import MixerModule, State
from recallmap.arch.parts.norm import Norm, RMSNorm, build_norm, count_norm, norm_of_sum, read_in
from recallmap.arch.seeded import seeded
from recallmap.arch.stack import MOST_BLOCKS, Layered, count, firsts, flatten

Init = Literal["fan_in", "normal", "torch", "mesanet"]

MESANET_CAP = 30.0  # of logits

MOST_CHANNELS = 2**20  # of a model's width
MOST_PARAMETERS = 10**12  # 4 TB without gradients and moments, 20 TB with them


@dataclass(frozen=True, kw_only=True)
class BackboneSpec:
    """A whole architecture, without the vocabulary that a task brings.

    tied           the head's weights are the embedding's
    soft_cap       logits are cap * tanh(logits / cap) (MesaNet: 30); None: no cap
    init           linear maps and embeddings: "fan_in" N(0, 1/fan in), embedding rows of norm 1;
                   "normal" N(0, 0.02), out-projections N(0, 0.02 / sqrt(2 blocks)) (Zoology, GPT-2);
                   "torch" torch's own for linear maps, embedding N(0, 0.02) (mad-lab);
                   "mesanet" maps as "fan_in", embeddings N(0, 1), and with them a tied head and a soft_cap of 30 unless
                   another is given (von Oswald et al. 2025, appendices E.1 and G.2)
    embedding_std  of the initial embeddings of tokens; None: that of init

    What "mesanet" has together can be had one by one: tied, soft_cap, `init: fan_in`, and embedding_std 1.
    """

    name: str
    width: int = 128
    stack: tuple[Layered, ...]
    norm: Norm = "rms"
    tied: bool = False
    soft_cap: float | None = None
    init: Init = "fan_in"
    embedding_std: float | None = field(default=None, metadata={"later": True})

    def __post_init__(self) -> None:
        if self.init == "mesanet":
            object.__setattr__(self, "tied", True)
            if self.soft_cap is None:
                object.__setattr__(self, "soft_cap", MESANET_CAP)
        if not self.name:
            raise ValueError("name must not be empty")
        if not self.name.isprintable():
            raise ValueError(f"name must be one line of characters that can be seen, got {self.name!r}")
        if not 1 <= self.width <= MOST_CHANNELS:
            raise ValueError(f"width must be at least 1 and at most {MOST_CHANNELS:,}, got {self.width:,}")
        if not self.stack:
            raise ValueError("stack must hold at least one block, got none")
        if (blocks := count(self.stack)) > MOST_BLOCKS:
            raise ValueError(
                f"stack must hold at most {MOST_BLOCKS:,} blocks, got {blocks:,}: lower times of its repeats"
            )
        if self.soft_cap is not None and self.soft_cap <= 0:
            raise ValueError(f"soft_cap must be positive or null, got {self.soft_cap}")
        if self.embedding_std is not None and not 0 < self.embedding_std < math.inf:
            raise ValueError(f"embedding_std must be positive or null, got {self.embedding_std}")
        lent: set[str] = set()
        for block, number in firsts(self.stack).items():
            try:
                block.check(self.width)
                if lacking := block.mixer.borrows() - lent:
                    raise ValueError(
                        f"it borrows {', '.join(sorted(lacking))}, and no earlier block lends that; put a block before it "
                        "whose mixer does"
                    )
                lent |= block.mixer.lends()
                _check_learnable(block.parameters(self.width, self.norm))
            except ValueError as error:
                raise ValueError(f"block {number} ({block.mixer.kind}): {error}") from error
        _check_learnable(self.parameters(1))

    def parameters(self, vocab: int) -> int:
        """The number of learned parameters, by arithmetic: as many as `build` makes for tokens that are read at each
        position."""
        ends = (1 if self.tied else 2) * vocab * self.width + count_norm(self.norm, self.width)
        return ends + sum(block.parameters(self.width, self.norm) for block in flatten(self.stack))

    def build(
        self,
        *,
        vocab: int,
        seed: int = 0,
        signal: Literal["tokens", "vectors"] = "tokens",
        readout: Literal["each", "last"] = "each",
        length: int | None = None,
    ) -> Backbone:
        """The model with initial weights, on the CPU in float32; the same seed gives the same weights.

        vocab    token ids; channels in and out where `signal` is "vectors"
        readout  "each": an output at every position from that position's vector; "last": the outputs of all `length`
                 positions from the last vector alone (the autoencoder of the compression task)
        """
        if vocab < 1:
            raise ValueError(f"vocab must be at least 1, got {vocab}")
        if readout == "last" and not length:
            raise ValueError("readout 'last' needs the length of the sequences: give length")
        if signal == "vectors" and self.tied:
            raise ValueError("a tied head needs tokens: with signal 'vectors' set tied to false")
        with seeded(seed):
            return Backbone(self, vocab=vocab, signal=signal, readout=readout, length=length)


def _check_learnable(parameters: int) -> None:
    if parameters > MOST_PARAMETERS:
        raise ValueError(
            f"{float(min(parameters, 10**300)):.2g} parameters are more than can be trained, expected at most "
            f"{MOST_PARAMETERS:.0e}: lower width, or what makes so many"
        )


class Backbone(nn.Module):
    """A model: int64 [B, T] (or float [B, T, V]) -> logits [B, T, V]."""

    def __init__(self, spec: BackboneSpec, *, vocab: int, signal: str, readout: str, length: int | None) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(vocab, spec.width) if signal == "tokens" else nn.Linear(vocab, spec.width)
        self.blocks = Chain(block.build(spec.width, spec.norm) for block in flatten(spec.stack))
        self.decoder = Decoder(spec.width, spec.norm, length) if readout == "last" and length else None
        self.norm = build_norm(spec.norm, spec.width)
        self.head = None if spec.tied else nn.Linear(spec.width, vocab, bias=False)
        initialise(self)

    def forward(
        self, inputs: Tensor, state: State = None, *, return_state: bool = False, at: Tensor | None = None
    ) -> Tensor | tuple[Tensor, State]:
        """Logits [B, T, V], or [B, P, V] at the positions `at` (int64 [B, P]). With `return_state` also the state after the
        last token, from which a later call continues."""
        if return_state and self.decoder is not None:
            raise ValueError("readout 'last' answers once for a whole sequence and carries no state")
        x_BTD, normed_BTD = self.embed(inputs)
        x_BTD, added_BTD, states = self.blocks.unsummed(x_BTD, state, normed_BTD=normed_BTD, return_state=return_state)
        if added_BTD is not None and (self.decoder is not None or at is not None):
            x_BTD, added_BTD = x_BTD + added_BTD, None
        if self.decoder is not None:
            x_BTD = self.decoder(x_BTD)
        if at is not None:
            x_BTD = x_BTD.gather(1, at[..., None].expand(-1, -1, x_BTD.shape[-1]))
        _, normed_BTD = norm_of_sum(self.norm, x_BTD, added_BTD)
        logits_BTV = self.logits(normed_BTD)
        return (logits_BTV, states) if return_state else logits_BTV

    def embed(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The vectors [B, T, D] of tokens, or of what is read in their place; and what the first block's norm makes of them,
        where one kernel gives both."""
        if not isinstance(self.embedding, nn.Embedding):
            return self.embedding(inputs), None
        weight, first = self.embedding.weight, self.blocks[0]
        if isinstance(first, BlockModule) and isinstance(norm := first.mixer_norm, RMSNorm):
            both = embedding_norm(inputs, weight, norm.weight, eps=norm.eps, output=read_in(weight))
            if both is not None:
                return both
        vectors_BTD = embedding(inputs, weight)
        return self.embedding(inputs) if vectors_BTD is None else vectors_BTD, None

    def logits(self, x_BTD: Tensor) -> Tensor:
        logits_BTV = x_BTD @ self.embedding.weight.mT if self.head is None else self.head(x_BTD)
        cap = self.spec.soft_cap
        return logits_BTV if cap is None else cap * torch.tanh(logits_BTV / cap)

    def vocabulary_axes(self) -> dict[str, int]:
        """The axis of token ids of every parameter that has one, by name; none where the signal is vectors."""
        if not isinstance(self.embedding, nn.Embedding):
            return {}
        return {"embedding.weight": 0} | ({} if self.head is None else {"head.weight": 0})

    def step(self, token: Tensor, state: State = None) -> tuple[Tensor, State]:
        """Decode: one token [B] (or vector [B, V]) -> logits [B, V] and the state to give to the next step."""
        logits_B1V, state = self(token[:, None], state, return_state=True)
        return logits_B1V[:, 0], state

    def use(self, implementation: str) -> Backbone:
        """Set the implementation of ops in every mixer ("auto", "recurrent", "chunked", "fused")."""
        for module in self.modules():
            if isinstance(module, MixerModule):
                module.implementation = implementation
        return self


class Decoder(nn.Module):
    """A decoder of all positions from the last one's vector: add a fixed sine table, then two position-wise maps (Poli et
    al. 2024)."""

    position: Tensor

    def __init__(self, width: int, norm: Norm, length: int) -> None:
        super().__init__()
        half = (width + 1) // 2
        frequency_H = torch.exp(-torch.arange(half) * math.log(10_000) / max(half - 1, 1))
        angle_TH = torch.arange(length)[:, None] * frequency_H
        position_TD = torch.cat([angle_TH.sin(), angle_TH.cos()], dim=-1)[:, :width]
        self.register_buffer("position", position_TD, persistent=False)
        self.first_norm, self.second_norm = build_norm(norm, width), build_norm(norm, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD[:, -1:] + self.position.to(x_BTD.dtype)
        x_BTD = nn.functional.gelu(self.first(self.first_norm(x_BTD)))
        return nn.functional.gelu(self.second(self.second_norm(x_BTD)))


def initialise(model: Backbone) -> None:
    """Draw the weights of linear maps and embeddings anew, in module order; other parameters of mixers stay."""
    blocks = max(1, sum(isinstance(module, BlockModule) for module in model.modules()))
    init, given = model.spec.init, model.spec.embedding_std
    own = {"fan_in": model.spec.width**-0.5, "mesanet": 1.0}.get(init, 0.02)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=own if given is None else given)
        elif isinstance(module, nn.Linear) and init in ("fan_in", "mesanet"):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, nn.Linear) and init == "normal":
            nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * blocks) if name.endswith(".out") else 0.02)
