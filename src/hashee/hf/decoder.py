"""The mixin that turns a Hugging Face decoder into one in which tokens exit."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutputWithPast, BaseModelOutputWithPastAndCrossAttentions

from hashee.engine.decoder import Decide, DecoderBatch, decode
from hashee.engine.decoder_adapter import DecoderAdapter
from hashee.engine.plan import exit_layer_of_each
from hashee.errors import InputError, UnsupportedOption
from hashee.hf.model import UNSET, HashedModel, refuse

REFUSED = {
    "output_attentions": "frozen tokens have no attention of their own; inspect the unconverted model",
    "cu_seq_lens_q": "pass padded ids with a (batch, length) attention_mask",
    "cu_seq_lens_k": "pass padded ids with a (batch, length) attention_mask",
    "head_mask": "all heads run; prune heads before converting",
}
"""Options that cannot be honoured, with what to do instead."""


class HashedDecoder(HashedModel):
    """The decoder itself: its `forward` updates each position up to the exit layer of its input token."""

    decoder_adapter: ClassVar[DecoderAdapter]
    decoder_exit_layers: Tensor
    decide: Decide | None = None
    """Lets positions exit by what their states are, beside the table; None: by the table alone."""

    def add_exits(self, settings: dict[str, Any]) -> None:
        """Make room for the exit table, so that checkpoints and devices carry it like weights."""
        self.register_buffer("decoder_exit_layers", torch.full((self.embed_tokens.num_embeddings,), UNSET))

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        *,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> Any:
        """Decode new positions as the Hugging Face decoder does, with its cache; all arguments are its own.

        The states of positions that the mask leaves out are those of their embeddings.
        """
        refuse(REFUSED, self.config, options)
        if input_ids is None:
            raise UnsupportedOption("the decoder needs token ids, which decide where tokens exit; pass them too")
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if self.training and self.is_gradient_checkpointing:
            use_cache, past_key_values = False, None
        if use_cache and past_key_values is None:
            past_key_values = self._new_cache(encoder_hidden_states is not None)
        cache = past_key_values
        past = 0 if cache is None else int(cache.get_seq_length())
        length = input_ids.shape[1]
        visible = None if attention_mask is None or attention_mask.ndim != 4 else _visible(attention_mask)
        mask = _real(attention_mask if visible is None else None, "attention_mask")
        if position_ids is None:
            position_ids = torch.arange(past, past + length, device=input_ids.device)[None]
        self._check_positions(position_ids)
        # Padding has nothing to attend to and nobody attends to it, so it is not updated.
        real = torch.ones_like(input_ids, dtype=torch.bool)
        if mask is not None:
            real = mask[:, past : past + length]
        elif visible is not None:
            real = visible.any(dim=2).expand_as(input_ids)
        if real.shape != input_ids.shape:
            given = tuple(attention_mask.shape)  # type: ignore[union-attr]
            raise InputError(f"attention_mask is {given}, but there are {past + length} positions")
        exits = exit_layer_of_each(self.decoder_exit_layers, input_ids, real, len(self.layers))
        batch = DecoderBatch(
            input_ids=input_ids,
            exits=exits.masked_fill(~real, 0),
            positions=position_ids,
            mask=None if mask is None or bool(mask.all()) else mask,
            visible=visible,
            inputs_embeds=inputs_embeds,
            source=encoder_hidden_states,
            source_mask=_source_mask(encoder_attention_mask),
            cache=cache,
        )
        return self._output(batch, options)

    def _output(self, batch: DecoderBatch, options: dict[str, Any]) -> Any:
        wanted, hidden = self._option(options, "output_hidden_states"), None
        states: list[Any] = []
        for hidden in decode(self.decoder_adapter, self, batch, self.decide):
            states.append(hidden if wanted else None)
        output_class = BaseModelOutputWithPast if batch.source is None else BaseModelOutputWithPastAndCrossAttentions
        output = output_class(
            last_hidden_state=hidden, past_key_values=batch.cache, hidden_states=tuple(states) if wanted else None
        )
        return_dict = self._option(options, "return_dict", default=True)
        return output if return_dict else output.to_tuple()

    def _option(self, options: dict[str, Any], name: str, default: bool = False) -> Any:
        value = options.get(name)
        return getattr(self.config, name, default) if value is None else value

    def _new_cache(self, attends_to_source: bool) -> Any:
        if attends_to_source or self.config.is_encoder_decoder:
            return EncoderDecoderCache(DynamicCache(), DynamicCache())
        return DynamicCache()

    def _check_positions(self, positions: Tensor) -> None:
        limit = self.decoder_adapter.max_position(self)
        if positions.numel() and int(positions.max()) >= limit:
            raise InputError(
                f"the text that is written reaches position {int(positions.max())}, but the decoder has {limit} "
                "positions; ask for fewer new tokens"
            )


def _visible(mask: Tensor) -> Tensor:
    """Return who may attend to whom, (batch, length, keys), from the mask that `generate` makes for some caches.

    mask: (batch, 1, length, keys) booleans, or numbers that are added to the scores.
    """
    allowed = mask[:, 0]
    return allowed if allowed.dtype == torch.bool else allowed == 0


def _real(mask: Tensor | None, name: str) -> Tensor | None:
    """Return a caller's mask as booleans, (batch, length)."""
    if mask is None:
        return None
    if mask.ndim != 2:
        raise UnsupportedOption(
            f"{name} with {mask.ndim} dimensions: exits are computed for one mask per sequence; pass a (batch, length) "
            "mask of zeros and ones"
        )
    return mask != 0


def _source_mask(mask: Tensor | None) -> Tensor | None:
    """Return which tokens of the source can be attended to, (batch, tokens); None: all."""
    real = _real(mask, "encoder_attention_mask")
    if real is None or bool(real.all()):
        return None
    # A source without any token still gives softmax something to sum over, as in transformers.
    return real | ~real.any(dim=1, keepdim=True)
