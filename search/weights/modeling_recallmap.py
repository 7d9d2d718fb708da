"""A model of recallmap for transformers: `AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)`.

`recallmap export --hf` copies this file beside the weights. It needs the package recallmap, which has the architecture's code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

import recallmap as rm


class RecallmapConfig(PretrainedConfig):
    """What config.json says.

    arch            the architecture, as in a document of recallmap
    uses            modules that define kinds of it, which are imported
    seed            of the initial weights
    implementation  of ops
    """

    model_type = "recallmap"

    def __init__(
        self,
        arch: dict[str, Any] | None = None,
        uses: tuple[str, ...] = (),
        vocab_size: int = 2,
        seed: int = 0,
        implementation: str = "auto",
        **rest: Any,
    ) -> None:
        self.arch, self.uses, self.vocab_size = arch, list(uses), vocab_size
        self.seed, self.implementation = seed, implementation
        super().__init__(**rest)


@dataclass
class Carried:
    """The state after the token ids `read` [B, T]. It belongs to no other sequences."""

    read: Tensor
    state: Any


@dataclass
class RecallmapOutput(ModelOutput):
    """Logits [B, T, V]; the mean loss where labels are given; what the next step continues from where it is asked for."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    carried: Carried | None = None


class RecallmapForCausalLM(PreTrainedModel, GenerationMixin):
    """Token ids [B, T] to logits [B, T, V]. `generate` reads each token once and carries the mixers' states."""

    config_class = RecallmapConfig
    _is_stateful = True  # a state cannot be cut back: no assisted decoding

    def __init__(self, config: RecallmapConfig) -> None:
        super().__init__(config)
        if config.uses:
            rm.use(*config.uses)
        # On the CPU whatever the device of the moment is: tables that are no weights are computed here.
        with torch.device("cpu"):
            model = rm.read_arch(config.arch or {}).build(vocab=config.vocab_size, seed=config.seed)
        self.backbone = model.use(config.implementation)
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """All weights come from the file, or from the architecture's own initialisation."""

    @classmethod
    def _supports_default_dynamic_cache(cls, *given: Any) -> bool:
        return False

    def get_input_embeddings(self) -> Any:
        return self.backbone.embedding

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        carried: Carried | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **ignored: Any,
    ) -> Any:
        """Logits of the tokens after those that `carried` has read. With labels [B, T] also the mean loss of predicting each
        next one; -100 is left out. Raises ValueError where a mask hides a token."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError(
                "attention_mask hides tokens, expected all ones: give sequences of one length, without padding"
            )
        state = None if carried is None else carried.state
        if use_cache:
            logits, state = self.backbone(input_ids, state, return_state=True)
            read = input_ids if carried is None else torch.cat([carried.read, input_ids], dim=1)
            carried = Carried(read, state)
        else:
            logits, carried = self.backbone(input_ids, state), None
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten().to(logits.device)
            )
        found = RecallmapOutput(loss=loss, logits=logits, carried=carried)
        return found if return_dict is not False else found.to_tuple()

    def prepare_inputs_for_generation(self, input_ids: Tensor, **known: Any) -> dict[str, Any]:
        """The tokens that were not read yet, and the state after the others. Where other sequences were read, as after a step
        of a beam search, all are read again."""
        carried = known.get("carried")
        if carried is not None:
            count = carried.read.shape[1]
            if count >= input_ids.shape[1] or not torch.equal(carried.read, input_ids[:, :count]):
                carried = None
        new = input_ids if carried is None else input_ids[:, carried.read.shape[1] :]
        kept = {name: known.get(name) for name in ("attention_mask", "use_cache")}
        return {"input_ids": new, "carried": carried, **kept}

    def _update_model_kwargs_for_generation(self, outputs: Any, model_kwargs: dict[str, Any], **more: Any) -> Any:
        known = super()._update_model_kwargs_for_generation(outputs, model_kwargs, **more)
        return {**known, "carried": outputs.get("carried")}
