"""ElasticBERT reads the authors' checkpoints, equals BERT with the same weights, and its first k layers are a model."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
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
    BertTokenizer,
)

from hashee.families.elasticbert import (
    ElasticBertConfig,
    ElasticBertForMaskedLM,
    ElasticBertForMultipleChoice,
    ElasticBertForQuestionAnswering,
    ElasticBertForSequenceClassification,
    ElasticBertForTokenClassification,
    ElasticBertModel,
    register,
)

DEPTH, WIDTH, INNER, VOCABULARY, POSITIONS = 4, 16, 24, 40, 20
SIZES = {
    "num_hidden_layers": DEPTH,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": 2,
}
IDS = torch.tensor([[2, 7, 9, 3, 11, 3], [2, 8, 3, 12, 0, 0]])
BATCH = {
    "input_ids": IDS,
    "attention_mask": (IDS != 0).long(),
    "token_type_ids": torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0]]),
}
CHOICES = {name: torch.stack([value, value.flip(0)], dim=1) for name, value in BATCH.items()}
HEADS = [
    (ElasticBertForSequenceClassification, BertForSequenceClassification, AutoModelForSequenceClassification),
    (ElasticBertForTokenClassification, BertForTokenClassification, AutoModelForTokenClassification),
    (ElasticBertForQuestionAnswering, BertForQuestionAnswering, AutoModelForQuestionAnswering),
    (ElasticBertForMaskedLM, BertForMaskedLM, AutoModelForMaskedLM),
    (ElasticBertForMultipleChoice, BertForMultipleChoice, AutoModelForMultipleChoice),
]
GOLD = {
    ElasticBertForSequenceClassification: {"labels": torch.tensor([2, 0])},
    ElasticBertForTokenClassification: {"labels": IDS % 3},
    ElasticBertForQuestionAnswering: {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 2])},
    ElasticBertForMaskedLM: {"labels": IDS},
    ElasticBertForMultipleChoice: {"labels": torch.tensor([1, 0])},
}


def linear(name: str, outputs: int, inputs: int) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.randn(outputs, inputs) * 0.3, f"{name}.bias": torch.randn(outputs) * 0.3}


def norm(name: str) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.rand(WIDTH) + 0.5, f"{name}.bias": torch.randn(WIDTH) * 0.3}


def authors_weights(poolers: tuple[int, ...] = tuple(range(DEPTH))) -> dict[str, Tensor]:
    """Return a checkpoint with the names that the authors' ElasticBertModel saves."""
    weights = {
        "elasticbert.embeddings.position_ids": torch.arange(POSITIONS)[None],
        "elasticbert.embeddings.word_embeddings.weight": torch.randn(VOCABULARY, WIDTH),
        "elasticbert.embeddings.position_embeddings.weight": torch.randn(POSITIONS, WIDTH),
        "elasticbert.embeddings.token_type_embeddings.weight": torch.randn(2, WIDTH),
        **norm("elasticbert.embeddings.LayerNorm"),
    }
    for number in range(DEPTH):
        layer = f"elasticbert.encoder.layer.{number}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            weights |= linear(f"{layer}.{name}", WIDTH, WIDTH)
        weights |= linear(f"{layer}.intermediate.dense", INNER, WIDTH) | linear(f"{layer}.output.dense", WIDTH, INNER)
        weights |= norm(f"{layer}.attention.output.LayerNorm") | norm(f"{layer}.output.LayerNorm")
    for number in poolers:
        weights |= linear(f"elasticbert.encoder.pooler.{number}.dense", WIDTH, WIDTH)
    return weights


def write(folder: Path, weights: dict[str, Tensor], **fields: object) -> Path:
    config = {
        "model_type": "elasticbert",
        **SIZES,
        "max_output_layers": DEPTH,
        "num_output_layers": DEPTH,
        "gradient_checkpointing": False,
        "position_embedding_type": "absolute",
        "transformers_version": "4.6.1",
    }
    (folder / "config.json").write_text(json.dumps(config | fields))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, authors_weights())


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def as_bert(weights: dict[str, Tensor], prefix: str = "bert.") -> dict[str, Tensor]:
    """Rename ElasticBERT weights to BERT's names; the last pooler is the one BERT has."""
    last = f"encoder.pooler.{DEPTH - 1}."
    renamed = {key.replace("elasticbert.", prefix).replace(last, "pooler."): value for key, value in weights.items()}
    return {key: value for key, value in renamed.items() if "encoder.pooler" not in key and "position_ids" not in key}


def assert_equal(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, atol=1e-6, rtol=0)


def test_the_authors_checkpoint_arrives_whole(tmp_path: Path) -> None:
    weights = authors_weights()
    model, report = ElasticBertModel.from_pretrained(write(tmp_path, weights), output_loading_info=True)
    assert not any(report.values())
    state = model.state_dict()
    stored = {key.removeprefix("elasticbert."): value for key, value in weights.items()}
    stored.pop("embeddings.position_ids")
    assert state.keys() == stored.keys()
    assert all(torch.equal(state[key], stored[key]) for key in stored)


def test_equals_bert_with_the_same_weights(folder: Path) -> None:
    model = ElasticBertModel.from_pretrained(folder)
    bert = BertModel(BertConfig(**SIZES)).eval()
    bert.load_state_dict(as_bert(model.state_dict(), prefix=""))
    ours, theirs = model(**BATCH, output_hidden_states=True), bert(**BATCH, output_hidden_states=True)
    assert_equal(ours.last_hidden_state, theirs.last_hidden_state)
    assert_equal(ours.pooler_output, theirs.pooler_output)
    assert len(ours.hidden_states) == DEPTH + 1
    for left, right in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        assert_equal(left, right)


@pytest.mark.parametrize("depth", range(1, DEPTH + 1))
def test_the_first_layers_are_a_model_with_their_own_pooler(folder: Path, depth: int) -> None:
    full = ElasticBertModel.from_pretrained(folder)
    model, report = ElasticBertModel.from_pretrained(folder, num_hidden_layers=depth, output_loading_info=True)
    assert not any(report.values())
    assert list(model.encoder.pooler) == [str(number) for number in range(depth)]
    state = full(**BATCH, output_hidden_states=True).hidden_states[depth]
    outputs = model(**BATCH)
    assert_equal(outputs.last_hidden_state, state)
    assert_equal(outputs.pooler_output, full.encoder.pooler[str(depth - 1)](state))


def test_a_strange_weight_of_a_kept_layer_is_still_reported(tmp_path: Path) -> None:
    strange = "elasticbert.encoder.layer.1.attention.self.distance_embedding.weight"
    write(tmp_path, authors_weights() | {strange: torch.randn(3, 8)})
    _, report = ElasticBertModel.from_pretrained(tmp_path, num_hidden_layers=2, output_loading_info=True)
    assert report["unexpected_keys"] == {strange}


def test_a_finetuned_checkpoint_has_one_pooler(tmp_path: Path) -> None:
    write(tmp_path, authors_weights(poolers=(DEPTH - 1,)), num_output_layers=1)
    model, report = ElasticBertModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert list(model.encoder.pooler) == [str(DEPTH - 1)]
    assert model(**BATCH).pooler_output.shape == (2, WIDTH)


@pytest.mark.parametrize(("elastic_class", "bert_class", "auto_class"), HEADS)
def test_heads_equal_those_of_bert(elastic_class: type, bert_class: type, auto_class: type, tmp_path: Path) -> None:
    batch = CHOICES if bert_class is BertForMultipleChoice else BATCH
    labels = {} if bert_class is BertForQuestionAnswering else {"num_labels": 3}
    model = randomised(elastic_class(ElasticBertConfig(**SIZES, **labels)))
    bert = bert_class(BertConfig(**SIZES, **labels)).eval()
    bert.load_state_dict(as_bert(model.state_dict()))
    ours, theirs = model(**batch, **GOLD[elastic_class]), bert(**batch, **GOLD[elastic_class])
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert_equal(ours[name], theirs[name])
    assert_equal(model(**batch, return_dict=False)[0], ours[1])

    model.save_pretrained(tmp_path)
    again, report = auto_class.from_pretrained(tmp_path, output_loading_info=True)
    assert type(again) is elastic_class
    assert not any(report.values())
    assert_equal(again(**batch)[0], ours[1])


def test_heads_load_from_the_pretrained_checkpoint(folder: Path) -> None:
    base = ElasticBertModel.from_pretrained(folder, num_hidden_layers=2)
    model, report = ElasticBertForSequenceClassification.from_pretrained(
        folder, num_hidden_layers=2, output_loading_info=True
    )
    assert report["missing_keys"] == {"classifier.weight", "classifier.bias"}
    assert not report["unexpected_keys"]
    assert_equal(model.elasticbert(**BATCH).pooler_output, base(**BATCH).pooler_output)
    tagger, report = ElasticBertForTokenClassification.from_pretrained(folder, output_loading_info=True)
    assert tagger.elasticbert.pooler is None
    assert not report["unexpected_keys"]


def test_masked_lm_ties_its_output_to_the_words(folder: Path) -> None:
    model = ElasticBertForMaskedLM.from_pretrained(folder)
    assert model.get_output_embeddings().weight is model.elasticbert.embeddings.word_embeddings.weight


def test_auto_classes_find_model_and_tokenizer(folder: Path) -> None:
    register()  # a second time is no error
    assert type(AutoModel.from_pretrained(folder)) is ElasticBertModel
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "table", "##s"]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer, BertTokenizer)
    assert tokenizer("tables").input_ids == [2, 5, 6, 3]


def test_gradient_checkpointing_changes_no_gradient() -> None:
    config = ElasticBertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = randomised(ElasticBertForSequenceClassification(config)).train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(**BATCH, labels=torch.tensor([0, 1])).loss.backward()
        gradients.append(model.elasticbert.encoder.layer[0].attention.self.query.weight.grad.clone())
    assert gradients[0].abs().sum() > 0
    assert_equal(*gradients)


def test_a_copy_uses_its_own_pooler(folder: Path) -> None:
    model = ElasticBertModel.from_pretrained(folder)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.encoder.pooler[str(DEPTH - 1)].dense.weight.zero_()
    assert twin.pooler is twin.encoder.pooler[str(DEPTH - 1)]
    assert not torch.equal(twin(**BATCH).pooler_output, model(**BATCH).pooler_output)
