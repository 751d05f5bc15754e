"""What the server knows of a model without its weights: head, tokenizer, labels, and the cost of any text."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.cost.macs import EncoderShape, executed_by_layer, paper_by_layer
from hashee.data.output_types import pooling_told
from hashee.data.texts import Text
from hashee.data.tokenizing import TextTokenizer
from hashee.errors import FATAL, HasheeError, InputError, UnsupportedModel, first_line
from hashee.families.adapters import adapter_for
from hashee.hf.decoding import Decode, decoder_for
from hashee.hf.explain import Explanation, explain
from hashee.hf.flops import lengths_and_active
from hashee.hf.opening import open_config, open_tokenizer, read_table
from hashee.serving.choosing import Cost
from hashee.serving.failures import RequestError, TooLarge
from hashee.serving.settings import POOLINGS, ModelSettings
from hashee.serving.worker import Opened
from hashee.tables.table import ExitTable


class Head(StrEnum):
    """What a model gives for a text, in the words of text-embeddings-inference."""

    EMBEDDING = "embedding"
    CLASSIFIER = "classifier"
    RERANKER = "reranker"


@dataclass(frozen=True)
class TokenizedText:
    """A text that is ready to run."""

    columns: dict[str, NDArray[np.int64]]
    """`input_ids`, and `token_type_ids` where the model has them: (tokens,)."""
    cost: Cost
    exits: NDArray[np.int64]
    """Tokens that exit at each layer, from 0: (layers + 1,)."""


@dataclass(frozen=True)
class ServedModel:
    """A model as requests see it."""

    settings: ModelSettings
    config: Any
    tokenizer: Any
    table: ExitTable
    head: Head
    opened: Opened | None = None
    """What its process said once it was open."""

    @property
    def name(self) -> str:
        """What requests call it."""
        return self.settings.name

    @cached_property
    def decode(self) -> Decode:
        """From logits to labels with probabilities, or a score."""
        return decoder_for((self.config.architectures or [""])[0], self.config, self.tokenizer)

    @property
    def labels(self) -> list[str]:
        """Names of the logits."""
        return [str(self.config.id2label[number]) for number in range(self.config.num_labels)]

    @property
    def max_length(self) -> int:
        """Tokens of a text at most."""
        return int(min(self._open.max_length, self.tokenizer.model_max_length))

    @property
    def _open(self) -> Opened:
        assert self.opened is not None, "the model's process comes first"
        return self.opened

    def with_process(self, opened: Opened) -> "ServedModel":
        """Return the model with what its process said."""
        return replace(self, opened=opened)

    def tokenize(self, texts: Sequence[Text], truncate: bool, first: int = 0) -> list[TokenizedText]:
        """Tokenize texts or pairs and count what each costs; too long ones are cut if that is wanted.

        first: the number of the first text, for messages.
        """
        tokenize = TextTokenizer.within(self.tokenizer, self._open.max_length, self._open.token_types)
        with _as_request_error():
            columns = tokenize(texts, first)
            if not truncate:
                self._check_lengths(tokenize.truncated(texts, columns["input_ids"]), first)
        return self.costed(columns)

    @cached_property
    def _shape(self) -> EncoderShape:
        return adapter_for(self.config).shape(self.config)

    def costed(self, columns: dict[str, list[Any]]) -> list[TokenizedText]:
        """Return tokenized texts with their cost. columns: ids, and token types where the model has them."""
        rows = columns["input_ids"]
        lengths, active = lengths_and_active(self.table, rows)
        # What transformers runs is the plain form at full depth.
        by_layer = (
            paper_by_layer(self._shape, lengths, active)
            if self.settings.dense
            else executed_by_layer(self._shape, lengths, active, self._open.reads_first_row)
        )
        exits = active - np.pad(active[:, 1:], ((0, 0), (0, 1)))
        names = [name for name in ("input_ids", "token_type_ids") if name in columns]
        return [
            TokenizedText({name: np.asarray(columns[name][number], np.int64) for name in names}, cost, exits[number])
            for number, cost in enumerate(map(Cost, by_layer.sum(axis=1).tolist(), lengths.tolist()))
        ]

    def tokens(self, texts: Sequence[str], special_tokens: bool) -> list[list[dict[str, Any]]]:
        """Return every token of every text with its id and where it stands, as text-embeddings-inference does."""
        with _as_request_error():
            if not self.tokenizer.is_fast:
                raise InputError(f"the tokenizer of {self.name} does not know where its tokens stand; use a fast one")
            columns = TextTokenizer(self.tokenizer, offsets=True, special_tokens=special_tokens)(texts)
        special = set(self.tokenizer.all_special_ids)
        found = []
        for text, ids, offsets in zip(texts, columns["input_ids"], columns["offset_mapping"], strict=True):
            names = self.tokenizer.convert_ids_to_tokens(ids)
            found.append(
                [
                    _token(token_id, name, text, span, token_id in special)
                    for token_id, name, span in zip(ids, names, offsets, strict=True)
                ]
            )
        return found

    def explain(self, text: str, text_pair: str | None) -> Explanation:
        """Return every token of a text with its exit layer, and what the text costs."""
        with _as_request_error():
            return explain(
                self.config,
                self.table,
                self.tokenizer,
                text,
                text_pair,
                reads_first_row=self._open.reads_first_row,
            )

    def _check_lengths(self, truncated: Sequence[bool], first: int) -> None:
        if any(truncated):
            number = first + list(truncated).index(True)
            raise TooLarge(
                f'text {number} has more than {self.max_length} tokens; shorten it, or send "truncate": true'
            )


@contextmanager
def _as_request_error() -> Iterator[None]:
    """Turn whatever a tokenizer raises into the error of a request."""
    try:
        yield
    except RequestError:
        raise
    except BaseException as error:
        if isinstance(error, FATAL):
            raise
        raise RequestError(str(error) if isinstance(error, HasheeError) else first_line(error)) from error


def open_served(settings: ModelSettings) -> ServedModel:
    """Read everything but the weights of a model."""
    config = open_config(str(settings.folder))
    tokenizer = open_tokenizer(settings.folder)
    model_class = (config.architectures or [""])[0]
    if settings.dense:
        if getattr(config, "hashee", None) is not None:
            raise UnsupportedModel(f"{settings.folder} holds a model with exits; name a dense one to compare it with")
        table = ExitTable.never(config.vocab_size, adapter_for(config).shape(config).layers)
    else:
        table = read_table(settings.folder, tokenizer)
    return ServedModel(settings, config, tokenizer, table, head_of(model_class, config, settings.folder))


def head_of(model_class: str, config: Any, folder: Path) -> Head:
    """Return what a model gives for a text; those of other heads are not served."""
    if model_class.endswith(("ForSequenceClassification", "ForNextSentencePrediction")):
        return Head.RERANKER if config.num_labels == 1 else Head.CLASSIFIER
    if model_class.endswith("Model"):
        return Head.EMBEDDING
    raise UnsupportedModel(
        f"{folder} holds {model_class or 'a model of no known class'}, which gives neither embeddings, labels nor "
        "scores of texts; run it with hashee predict or hashee generate"
    )


def pooling_of(settings: ModelSettings) -> str:
    """Return how states become an embedding: as asked for, as sentence-transformers' folder says, else the mean."""
    if settings.pooling is not None:
        return settings.pooling
    path = settings.folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "mean"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({first_line(error)}); copy it again, or say --pooling") from None
    if isinstance(said, dict) and (pooling := pooling_told(said)) is not None:
        return str(pooling)
    raise UnsupportedModel(f"{path} asks for a pooling that is not covered; say --pooling {' or '.join(POOLINGS)}")


def _token(token_id: int, name: str, text: str, span: tuple[int, int], special: bool) -> dict[str, Any]:
    start, stop = span
    if special:
        return {"id": token_id, "text": name, "special": True, "start": None, "stop": None}
    return {"id": token_id, "text": text[start:stop], "special": False, "start": start, "stop": stop}
