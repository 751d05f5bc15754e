"""Classes of one's own keep their forward pass; what exits could not honour is refused."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification, BertModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.bert.modeling_bert import BertLayer, BertSelfAttention
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

import hashee
from architectures import VOCABULARY, converted, make_config, make_exits, make_ids, make_mask, make_model, randomise
from hashee.engine.reference import run_reference
from hashee.hf.classes import hashed_class

EXITS = make_exits("random exits")
TOLERANCE = 1e-5
InTransformers = BertForSequenceClassification


class ScaledBert(InTransformers):
    """A head of one's own on top of transformers' answer."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = 100 * output.logits + 7
        return output


class MeanPoolingForSequenceClassification(InTransformers):
    """The name ends like transformers' heads, but all rows are read."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        states = self.bert(input_ids, attention_mask).last_hidden_state
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return SequenceClassifierOutput(logits=self.classifier(mean))


class OwnLayer(BertLayer):
    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().forward(hidden_states, *args, **kwargs)


class OwnAttention(BertSelfAttention):
    pass


class OwnEncoder(BertModel):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)


class QuietEncoder(BertModel):
    """Adds a method, and leaves the forward pass alone."""

    def width(self) -> int:
        return self.config.hidden_size


def make(model_class: Any, **changes: Any) -> Any:
    torch.manual_seed(0)
    return randomise(model_class(make_config("bert", **changes)).eval())


def agrees(model: Any, dense: Any) -> bool:
    ids, mask = make_ids(), make_mask("mixed lengths")
    with torch.no_grad():
        theirs = run_reference(dense, EXITS, input_ids=ids, attention_mask=mask)[0]
        ours = model(input_ids=ids, attention_mask=mask)[0]
        if ours.ndim == 3:
            ours, theirs = ours[mask.bool()], theirs[mask.bool()]
        return bool((ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max())


@pytest.mark.parametrize("model_class", [ScaledBert, MeanPoolingForSequenceClassification])
def test_a_subclass_keeps_its_forward_pass(model_class: Any) -> None:
    dense = make(model_class)
    model = converted(dense, EXITS)
    assert isinstance(model, model_class)
    assert agrees(model, dense)


def test_a_subclass_of_the_same_name_is_another_class() -> None:
    def defined(factor: float) -> Any:
        class BertForSequenceClassification(InTransformers):
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                output = super().forward(*args, **kwargs)
                output.logits = factor * output.logits
                return output

        return BertForSequenceClassification

    for model_class in (defined(2.0), defined(3.0), InTransformers):  # as a notebook cell that is run again
        dense = make(model_class)
        assert agrees(converted(dense, EXITS), dense)


def test_rows_that_only_heads_of_transformers_leave_unread_are_computed_for_others() -> None:
    model = converted(make(MeanPoolingForSequenceClassification), EXITS)
    assert not model.hashed_encoder.reads_first_row
    assert converted(make(InTransformers), EXITS).hashed_encoder.reads_first_row
    with torch.no_grad():
        assert model.bert(make_ids()).last_hidden_state.isfinite().all()


def test_an_encoder_without_a_forward_pass_of_its_own_is_converted() -> None:
    dense = make(QuietEncoder)
    model = converted(dense, EXITS)
    assert model.width() == 24
    assert agrees(model, dense)


def with_layer(model: Any) -> Any:
    model.bert.encoder.layer[1] = OwnLayer(model.config)
    return model


def with_attention(model: Any) -> Any:
    model.bert.encoder.layer[1].attention.self = OwnAttention(model.config)
    return model


def with_encoder(model: Any) -> Any:
    model.bert = OwnEncoder(model.config)
    return model


def with_wrapped_product(model: Any) -> Any:
    model.bert.encoder.layer[0].output.dense = nn.Sequential(model.bert.encoder.layer[0].output.dense, nn.Tanh())
    return model


def with_one_more_part(model: Any) -> Any:
    model.bert.encoder.layer[0].extra = nn.Linear(24, 24)
    return model


def with_patched_forward(model: Any) -> Any:
    layer = model.bert.encoder.layer[0]
    layer.forward = lambda *args, **kwargs: args[0]
    return model


def without_pooler(model: Any) -> Any:
    del model.bert.pooler.dense
    return model


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (with_layer, "bert.encoder.layer.1 is a .*OwnLayer"),
        (with_attention, "OwnAttention"),
        (with_encoder, "OwnEncoder"),
        (with_wrapped_product, "bert.encoder.layer.0.output.dense is a .*Sequential"),
        (with_one_more_part, "bert.encoder.layer.0.extra"),
        (with_patched_forward, "forward pass of bert.encoder.layer.0 was replaced"),
        (without_pooler, "bert.pooler"),
    ],
)
def test_parts_that_exits_would_leave_out_are_refused(change: Any, named: str) -> None:
    with pytest.raises(hashee.UnsupportedModel, match=named):
        converted(change(make(InTransformers)), EXITS)


def test_an_encoder_with_a_forward_pass_of_its_own_is_refused() -> None:
    with pytest.raises(hashee.UnsupportedModel, match="forward pass of its own"):
        converted(make(OwnEncoder), EXITS)


def test_a_head_that_was_swapped_is_refused() -> None:
    class MeanHead(RobertaClassificationHead):
        def forward(self, features: Tensor, **kwargs: Any) -> Any:
            return super().forward(features.mean(1, keepdim=True))

    model = make_model("roberta", AutoModelForSequenceClassification)
    model.classifier = MeanHead(model.config)
    with pytest.raises(hashee.UnsupportedModel, match=r"classifier is a .*MeanHead"):
        converted(model, EXITS)


def test_a_constructor_that_needs_more_than_a_config_is_refused_clearly() -> None:
    class Demanding(InTransformers):
        def __init__(self, config: Any, factor: float) -> None:
            super().__init__(config)
            self.factor = factor

    with pytest.raises(hashee.UnsupportedModel, match="cannot be made from its config alone"):
        converted(Demanding(make_config("bert"), 2.0), EXITS)


def test_settings_that_were_changed_after_building_stay() -> None:
    class Factor(InTransformers):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.factor = 1

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * self.factor
            return output

    dense = make(Factor)
    dense.factor = 5
    dense.bert.embeddings.dropout.p = 0.0
    model = converted(dense, EXITS)
    assert agrees(model, dense)
    assert model.bert.embeddings.dropout.p == 0.0
    dense = make_model("bart")
    dense.encoder.layers[0].dropout = 0.75
    assert converted(dense, EXITS).encoder.layers[0].dropout == 0.75


def test_a_config_of_another_library_under_the_same_type_is_refused() -> None:
    from transformers import PreTrainedConfig, PreTrainedModel

    class ForeignConfig(PreTrainedConfig):
        model_type = "bert"

    class Foreign(PreTrainedModel):
        config_class = ForeignConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.embeddings = nn.Embedding(VOCABULARY, 8)
            self.post_init()

    with pytest.raises(hashee.UnsupportedModel, match="ForeignConfig"):
        converted(Foreign(ForeignConfig()), EXITS)


def test_own_classes_are_saved_loaded_copied_and_pickled(tmp_path: Path) -> None:
    dense = make(ScaledBert)
    model = converted(dense, EXITS)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert agrees(other, dense)
    model.save_pretrained(tmp_path)
    for loaded in (type(model).from_pretrained(tmp_path), hashed_class(ScaledBert).from_pretrained(tmp_path)):
        assert agrees(loaded, dense)
    # Opened as transformers' class it would answer 100 times too little.
    with pytest.raises(hashee.CheckpointError, match="ScaledBert"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)
    with pytest.raises(hashee.CheckpointError, match="ScaledBert"):
        hashee.load(tmp_path)
