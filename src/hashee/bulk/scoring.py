"""A model as a bulk job runs it: texts in, JSON values out, the same for every kind of folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hashee.bulk.settings import ModelOptions
from hashee.data.batching import Batching
from hashee.data.output_types import OutputType, PlainPooling
from hashee.data.texts import Text
from hashee.errors import HasheeError, UnsupportedModel, UnsupportedOption
from hashee.export.loading import load
from hashee.hf.decoding import Decode, decode_embedding, decode_reranker, decoder_for
from hashee.hf.opening import open_config
from hashee.hf.predict import Scorer, predict_batch
from hashee.hf.pretrained import quiet_transformers
from hashee.hf.sentence_models import is_sentence_model
from hashee.hf.text_models import EMBEDDED, TextModel, open_text_model, sentence_class, with_prompts

_WINDOW = 1024
"""Texts that are sorted by cost together."""
_ENCODER, _CLASSIFIER = "Model", "ForSequenceClassification"


@dataclass(frozen=True)
class ScoringModel:
    """An opened model, how its outputs are read, and what is put before texts."""

    scorer: Scorer
    tokenizer: Any
    decode: Decode
    prompt: str = ""
    encoder: Any = None
    """Of a converted model on torch, whose cache of first projections is filled by what was scored before."""

    def batching(self, tokens: int) -> Batching:
        """Return how texts are grouped; the groups of a part depend on its texts alone."""
        return Batching(tokens=tokens, window=_WINDOW)

    def score(self, texts: Sequence[Text], batch_tokens: int) -> list[dict[str, Any]]:
        """Return JSON values for each text or pair in order; an error names the text by its number from 0."""
        if self.encoder is not None:
            # The last bit of a cached row depends on those that it was computed with, but a part must have the same
            # bytes whatever its process has scored before.
            self.encoder.first_layer_cache.clear()
        outputs = predict_batch(self.scorer, self.prompted(texts), self.tokenizer, self.batching(batch_tokens))
        found = []
        for number, (text, output) in enumerate(zip(texts, outputs, strict=True)):
            try:
                found.append(self.decode(text, output))
            except HasheeError as error:
                raise RowFailure(number, str(error)) from error
        return found

    def prompted(self, texts: Sequence[Text]) -> Sequence[Text]:
        """Return texts with the prompt before them."""
        return with_prompts(texts, [self.prompt]) if self.prompt else texts


class RowFailure(HasheeError):
    """The model cannot score a row."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        """Of the text among those that were given, from 0."""


def open_scoring_model(options: ModelOptions, threads: int | None = None) -> ScoringModel:
    """Open a folder: converted, exported, of sentence-transformers, or dense.

    threads: None for those of the runtime.
    """
    if threads is not None and options.backend == "torch":
        torch.set_num_threads(threads)
    with quiet_transformers():
        if options.backend == "torch" and _is_text_model(options):
            return _open_text_model(options)
        if options.prompt is not None or options.pooling is not None:
            raise UnsupportedOption("--prompt and --pooling are for embedders on torch; leave them out")
        chosen = None if options.backend == "torch" else threads
        model = load(options.folder, options.backend, threads=chosen, quantize=options.quantize)
        decode = decoder_for(*_head(model, options.folder), model.tokenizer)
        return ScoringModel(model.scorer(), model.tokenizer, decode, encoder=getattr(model, "hashed_encoder", None))


def _is_text_model(options: ModelOptions) -> bool:
    """Tell whether a folder is an embedder, a reranker or a dense model, not one that `hashee.convert` wrote."""
    if options.folder == EMBEDDED or options.pooling is not None:
        return True
    if sentence_class(options.folder) is not None:
        return True
    return (
        Path(options.folder, "config.json").is_file() and getattr(open_config(options.folder), "hashee", None) is None
    )


def _open_text_model(options: ModelOptions) -> ScoringModel:
    if options.folder != EMBEDDED and sentence_class(options.folder) is None:
        _refuse_other_heads(options.folder)
        model = open_text_model(options.folder, options.pooling or PlainPooling.NONE)
    else:
        model = open_text_model(options.folder, options.pooling)
    if options.quantize is not None:
        if not model.has_exits:
            raise UnsupportedOption(f"--quantize {options.quantize} is for converted models; leave it out")
        model = model.quantized()
    prompt = model.prompt_called(options.prompt) if model.output is OutputType.EMBEDDING else ""
    encoder = model.transformer.hashed_encoder if model.has_exits else None
    return ScoringModel(model.scorer(), model.tokenizer, _decoder_of(model), prompt, encoder)


def _refuse_other_heads(folder: str) -> None:
    architecture = (open_config(folder).architectures or [""])[0]
    if not architecture.endswith((_ENCODER, _CLASSIFIER)):
        raise UnsupportedModel(
            f"{folder} holds a dense {architecture or 'model of no known class'}; encoders and classifiers are scored "
            "dense, others once they are converted"
        )


def _decoder_of(model: TextModel) -> Decode:
    """Return how the outputs of an embedder, reranker or dense model are read."""
    if model.output is OutputType.EMBEDDING:
        return decode_embedding
    if is_sentence_model(model.whole):
        return decode_reranker
    return decoder_for(type(model.whole).__name__, model.config, model.tokenizer)


def _head(model: Any, folder: str) -> tuple[str, Any]:
    """Return the name of a model's class and its config."""
    config = getattr(model, "config", None)
    if config is not None:
        return type(model).__name__, config
    config = open_config(folder)
    return (config.architectures or ["a model of no known class"])[0], config
