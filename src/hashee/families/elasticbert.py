"""ElasticBERT: a BERT encoder pre-trained with a pooler on every layer, so that its first k layers form a model too.

Read from the authors' checkpoints (fnlp/elasticbert-base, -large) as they are: BERT's names under the prefix
`elasticbert.`, and the pooler of layer N (counted from 0) at `encoder.pooler.N.dense`.
"""

# The constructors of transformers carry no annotations.
# mypy: allow-untyped-calls

import re
from typing import Any

from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertPreTrainedModel,
    BertTokenizer,
)
from transformers.models.bert.modeling_bert import BertEmbeddings, BertEncoder, BertOnlyMLMHead, BertPooler

from hashee.families.bert import BertAdapter

__all__ = [
    "ElasticBertAdapter",
    "ElasticBertConfig",
    "ElasticBertForMaskedLM",
    "ElasticBertForMultipleChoice",
    "ElasticBertForQuestionAnswering",
    "ElasticBertForSequenceClassification",
    "ElasticBertForTokenClassification",
    "ElasticBertModel",
    "register",
]


class ElasticBertConfig(BertConfig):
    """BERT's configuration and the authors' two fields.

    num_output_layers: how many of the last layers keep a pooler (at most all; the last one is what the heads read).
    max_output_layers: how many poolers the pre-trained checkpoint has; kept for the authors' code, not read here.
    """

    model_type = "elasticbert"

    max_output_layers: int = 12
    num_output_layers: int = 12


def layers_above(prefix: str, depth: int) -> str:
    """Return a pattern for the weights of `prefix.N.` with N >= depth, which a shallower model leaves in the file."""
    kept = "|".join(str(index) for index in range(depth))
    return rf"(^|\.){re.escape(prefix)}\.(?!({kept})\.)\d+\."


class ElasticBertPreTrainedModel(BertPreTrainedModel):
    """What the model and its heads share: the configuration and the prefix of the authors' weight names."""

    config: ElasticBertConfig
    base_model_prefix = "elasticbert"


class ElasticBertEncoder(BertEncoder):
    """BERT's layers and, as in the checkpoint, the poolers beside them."""

    def __init__(self, config: ElasticBertConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        depth = config.num_hidden_layers
        first = max(depth - config.num_output_layers, 0)
        pooled = range(first, depth) if add_pooling_layer else ()
        # A dictionary keeps the authors' numbers when the lower layers have no pooler.
        self.pooler = nn.ModuleDict({str(layer): BertPooler(config) for layer in pooled})


class ElasticBertModel(ElasticBertPreTrainedModel, BertModel):
    """BertModel whose pooled output comes from the pooler of its own last layer.

    input_ids: (batch, tokens). Returns last_hidden_state (batch, tokens, width), pooler_output (batch, width).
    """

    def __init__(self, config: ElasticBertConfig, add_pooling_layer: bool = True) -> None:
        # BertModel's constructor would build, and initialise, a single pooler under another name.
        BertPreTrainedModel.__init__(self, config)
        self.gradient_checkpointing = False
        self.embeddings = BertEmbeddings(config)
        self.encoder: ElasticBertEncoder = ElasticBertEncoder(config, add_pooling_layer)
        # ElasticBERT is meant to be truncated, so weights of layers above are expected in a checkpoint.
        ignored = [layers_above("encoder.layer", config.num_hidden_layers), r"encoder\.pooler\."]
        self._keys_to_ignore_on_load_unexpected = ignored
        self.post_init()

    @property
    def pooler(self) -> nn.Module | None:  # type: ignore[override]  # BertModel stores what this looks up
        """Return the pooler of the last layer, or None where the model was built without poolers."""
        poolers = list(self.encoder.pooler.values())
        return poolers[-1] if poolers else None


class ElasticBertHead(ElasticBertPreTrainedModel):
    """A task head: BERT's forward, which reads `self.bert`, over a model stored as `elasticbert`."""

    def __init__(self, config: ElasticBertConfig, add_pooling_layer: bool = True) -> None:
        # Not the constructor of BERT's head, which would build a second, unused encoder.
        BertPreTrainedModel.__init__(self, config)
        self.num_labels: int = config.num_labels  # type: ignore[assignment]  # filled in by the configuration
        self.elasticbert = ElasticBertModel(config, add_pooling_layer)

    @property
    def bert(self) -> ElasticBertModel:
        """Return the encoder under the name that BERT's heads use."""
        return self.elasticbert

    def _head_dropout(self) -> nn.Dropout:
        """Return the dropout before a classifier, whose rate defaults to that of the hidden states."""
        rate = self.config.classifier_dropout
        return nn.Dropout(self.config.hidden_dropout_prob if rate is None else rate)


class ElasticBertForSequenceClassification(ElasticBertHead, BertForSequenceClassification):  # type: ignore[misc]
    """One label or score per sequence. input_ids: (batch, tokens); logits: (batch, labels)."""

    def __init__(self, config: ElasticBertConfig) -> None:
        super().__init__(config)
        self.dropout = self._head_dropout()
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()


class ElasticBertForMultipleChoice(ElasticBertHead, BertForMultipleChoice):  # type: ignore[misc]
    """The best of several continuations. input_ids: (batch, choices, tokens); logits: (batch, choices)."""

    def __init__(self, config: ElasticBertConfig) -> None:
        super().__init__(config)
        self.dropout = self._head_dropout()
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()


class ElasticBertForTokenClassification(ElasticBertHead, BertForTokenClassification):  # type: ignore[misc]
    """One label per token. input_ids: (batch, tokens); logits: (batch, tokens, labels)."""

    def __init__(self, config: ElasticBertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.dropout = self._head_dropout()
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()


class ElasticBertForQuestionAnswering(ElasticBertHead, BertForQuestionAnswering):  # type: ignore[misc]
    """Start and end of an answer span. input_ids: (batch, tokens); start_logits, end_logits: (batch, tokens)."""

    def __init__(self, config: ElasticBertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()


class ElasticBertForMaskedLM(ElasticBertHead, BertForMaskedLM):  # type: ignore[misc]
    """The word at each mask. input_ids: (batch, tokens); logits: (batch, tokens, vocabulary)."""

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "elasticbert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: ElasticBertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        self.post_init()


def register() -> None:
    """Let the Auto classes of transformers find ElasticBERT by its model type."""
    AutoTokenizer.register(ElasticBertConfig, BertTokenizer, exist_ok=True)
    models: list[tuple[Any, type[ElasticBertPreTrainedModel]]] = [
        (AutoModel, ElasticBertModel),
        (AutoModelForMaskedLM, ElasticBertForMaskedLM),
        (AutoModelForMultipleChoice, ElasticBertForMultipleChoice),
        (AutoModelForQuestionAnswering, ElasticBertForQuestionAnswering),
        (AutoModelForSequenceClassification, ElasticBertForSequenceClassification),
        (AutoModelForTokenClassification, ElasticBertForTokenClassification),
    ]
    for auto, model in models:
        auto.register(ElasticBertConfig, model, exist_ok=True)
    # Last, because another thread that reads a config must find its model registered.
    AutoConfig.register(ElasticBertConfig.model_type, ElasticBertConfig, exist_ok=True)


register()


class ElasticBertAdapter(BertAdapter):
    model_type = "elasticbert"
    config_class = ElasticBertConfig
    encoder_class = ElasticBertModel
