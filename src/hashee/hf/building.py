"""Building a model that writes text from a pretrained encoder: `hashee.build_seq2seq`."""

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from hashee.embedded import minilm_folder
from hashee.errors import InputError, UnsupportedModel
from hashee.families.adapters import adapter_for
from hashee.families.encoder_bart import EncoderBartConfig, EncoderBartForConditionalGeneration
from hashee.hf.model import HashedModel
from hashee.hf.opening import open_dense
from hashee.hf.pretrained import quiet_transformers, read_tokenizer
from hashee.hf.weights import check_finite

EMBEDDED = "minilm"
"""The name of the embedded default encoder."""


def build_seq2seq(encoder: Any, decoder_layers: int = 2, tokenizer: Any = None) -> Any:
    """Return a model with a pretrained encoder and a new BART decoder, in the shape of CPT, to be trained.

    encoder: "minilm" for the embedded default, a folder, a Hub id, or a loaded model of any supported family; a model
    with a head gives its encoder. The decoder is as wide as the encoder and shares its word embeddings if those are
    as wide; its other weights are drawn anew, so set torch's seed before. Decoding starts with the end-of-text token,
    as in BART and CPT, and the ids of special tokens are the tokenizer's: by default that of the encoder.

    The class is BART's with another encoder (`hashee.families.encoder_bart`), so `generate`, caches, labels,
    `Seq2SeqTrainer`, `save_pretrained` and `AutoModelForSeq2SeqLM.from_pretrained` (after `import hashee`) work as they
    do for BART, and `hashee.convert` adds exits.
    """
    if isinstance(decoder_layers, bool) or not isinstance(decoder_layers, int) or decoder_layers < 1:
        raise InputError(f"decoder_layers must be a whole number of at least 1, not {decoder_layers!r}")
    model = _opened(encoder)
    adapter = adapter_for(model.config)
    found = adapter.encoder_in(model)
    if found is None:
        raise UnsupportedModel(f"{type(model).__name__} holds no {adapter.encoder_class.__name__} to build on")
    source: Any = found[1]
    special = _special_ids(source, tokenizer, encoder)
    shape, words = adapter.shape(source.config), source.get_input_embeddings()
    config = EncoderBartConfig(
        vocab_size=words.num_embeddings,
        d_model=shape.width,
        encoder_layers=shape.layers,
        encoder_attention_heads=shape.heads,
        encoder_ffn_dim=shape.inner,
        decoder_layers=decoder_layers,
        decoder_attention_heads=shape.heads,
        # Four times the width, as in BART, also where the encoder has a gated and therefore narrower one.
        decoder_ffn_dim=4 * shape.width,
        max_position_embeddings=adapter.max_length(source.config),
        pretrained_encoder=_fields(source.config),
        **special,
    )
    built: Any = EncoderBartForConditionalGeneration(config).to(source.dtype)
    _take_over(built, source)
    built.generation_config = GenerationConfig(**special)
    check_finite(built, "the encoder")
    return built.eval()


def _opened(encoder: Any) -> Any:
    """Return the model that is to give its encoder."""
    if isinstance(encoder, HashedModel):
        raise UnsupportedModel(f"{type(encoder).__name__} has exits already; build on the model it was made from")
    if isinstance(encoder, PreTrainedModel):
        return encoder
    if not isinstance(encoder, str | Path):
        raise InputError(
            f'the encoder must be "{EMBEDDED}", a folder, a Hub id or a model, not a {type(encoder).__name__}'
        )
    source = str(minilm_folder() if encoder == EMBEDDED else encoder)
    with quiet_transformers():
        return open_dense(source, new_head=True)


def _special_ids(source: Any, tokenizer: Any, encoder: Any) -> dict[str, Any]:
    """Return the ids that decoding begins, ends and pads with."""
    if tokenizer is None:
        folder = str(minilm_folder()) if encoder == EMBEDDED else source.config.name_or_path
        if not folder:
            raise InputError("an encoder that was not loaded from a folder tells no tokenizer; pass tokenizer=")
        tokenizer = read_tokenizer(folder)
    rows = source.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} tokens but the encoder embeds {rows}; give the encoder's own"
        )
    ends = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    begins = tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if ends is None or tokenizer.pad_token_id is None:
        lacking = "end of text" if ends is None else "padding"
        raise InputError(f"the tokenizer has no token for {lacking}, which a model that writes text needs; add one")
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": ends, "forced_eos_token_id": ends}
    return ids | {"decoder_start_token_id": ends, "bos_token_id": ends if begins is None else begins}


def _fields(config: Any) -> dict[str, Any]:
    """Return an encoder's config as a dictionary, without what was said of the model that it comes from."""
    left_out = ("architectures", "_name_or_path", "transformers_version", "id2label", "label2id", "dtype")
    return {name: value for name, value in config.to_dict().items() if name not in left_out}


def _take_over(built: Any, source: Any) -> None:
    """Copy the weights of a pretrained encoder into a built model."""
    encoder = built.model.encoder
    weights = source.state_dict()
    with torch.no_grad():
        lacking, _ = encoder.load_state_dict(weights, strict=False)
        if encoder.get_input_embeddings().embedding_dim == built.config.d_model:
            # Also where the encoder keeps its own, scaled ones: what words mean is a better start than chance.
            built.model.shared.weight.copy_(source.get_input_embeddings().weight)
    if lacking:
        raise UnsupportedModel(f"{type(source).__name__} lacks the weight {lacking[0]}; build it anew from its config")
    built.tie_weights()
