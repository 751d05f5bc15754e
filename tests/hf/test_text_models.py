"""Embedders, rerankers and plain encoders give here what they give their users, and are written back alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer, LlamaConfig

import hashee
from architectures import make_config, make_writer
from hashee.data.output_types import OutputType
from hashee.hf.text_models import TextModel, as_text_model, open_text_model, with_prompts
from small_tokenizer import make_tokenizer
from tiny_text_models import make_folder, make_pairs, make_texts

st = pytest.importorskip("sentence_transformers")
TEXTS = make_texts(12)
PAIRS = make_pairs(3, 4)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("scorer"), scores=True)


def outputs(model: TextModel, texts: Any) -> np.ndarray:
    return np.stack(list(model.outputs(texts)))


def never(model: TextModel) -> hashee.ExitTable:
    return hashee.ExitTable.never(model.tokenizer, num_layers=3)


def half(model: TextModel) -> hashee.ExitTable:
    return hashee.ExitTable.at_random(model.tokenizer, num_layers=3, seed=0)


def test_plain_encoders_are_pooled_as_sentence_transformers_does(encoder: Path) -> None:
    client = st.SentenceTransformer(str(encoder), device="cpu")
    found = outputs(open_text_model(encoder), TEXTS)
    assert np.abs(found - client.encode(TEXTS)).max() <= 1e-5
    first = outputs(open_text_model(encoder, "cls"), TEXTS)
    states = list(open_text_model(encoder, "none").outputs(TEXTS))
    assert np.abs(first - np.stack([each[0] for each in states])).max() <= 1e-5
    assert np.abs(found - np.stack([each.mean(axis=0) for each in states])).max() <= 1e-5
    assert open_text_model(encoder, "none").output is OutputType.STATES


@pytest.mark.parametrize("kind", ["plain", "sentence", "scores", "cross"])
def test_what_is_written_is_opened_by_the_same_clients(kind: str, encoder: Path, scorer: Path, tmp_path: Path) -> None:
    texts: list[Any] = list(PAIRS) if kind in ("scores", "cross") else TEXTS
    source: Any = scorer if kind in ("scores", "cross") else encoder
    if kind == "sentence":
        source = st.SentenceTransformer(str(encoder), device="cpu")
    if kind == "cross":
        source = st.CrossEncoder(str(scorer), device="cpu")
    model = open_text_model(source) if isinstance(source, Path) else as_text_model(source)
    dense = outputs(model, texts)
    assert np.abs(outputs(model.copied().converted(never(model)), texts) - dense).max() <= 1e-5
    fast = model.copied().converted(half(model))
    assert fast.has_exits and not model.has_exits and np.abs(outputs(fast, texts) - dense).max() > 1e-3
    fast.save_pretrained(tmp_path)
    expected = outputs(fast, texts)
    assert np.array_equal(outputs(open_text_model(tmp_path), texts), expected)
    client: Any = (st.CrossEncoder if kind in ("scores", "cross") else st.SentenceTransformer)(
        str(tmp_path), device="cpu"
    )
    if kind in ("scores", "cross"):
        found = client.predict(PAIRS, activation_fn=torch.nn.Identity())[:, None]
        ranked = client.rank(PAIRS[0][0], [pair[1] for pair in PAIRS[:4]])
        assert [row["corpus_id"] for row in ranked] == np.argsort(-expected[:4, 0]).tolist()
    else:
        found = client.encode(TEXTS)
        assert client.encode(TEXTS, truncate_dim=5).shape == (len(TEXTS), 5)
    assert np.abs(found - expected).max() <= 1e-5
    if kind == "plain":
        assert not (tmp_path / "modules.json").exists()
        assert type(AutoModel.from_pretrained(tmp_path)).__name__ == "HasheeBertModel"


def test_prompts_lengths_and_normalisation_are_read_and_kept(encoder: Path, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer import modules

    client = st.SentenceTransformer(str(encoder), device="cpu", prompts={"query": "the film ", "document": "a "})
    client = st.SentenceTransformer(
        modules=[*client.children(), modules.Normalize()],
        prompts={"query": "the film ", "document": "a "},
        default_prompt_name="document",
        similarity_fn_name="dot",
        device="cpu",
    )
    client.max_seq_length = 7
    model = as_text_model(client)
    assert model.prompts == ("a ", "the film ") and model.prompt() == model.prompt("document") == "a "
    assert model.prompt("query") == "the film " and model.max_length == 7 and model.is_normalized
    assert with_prompts(["x", "y", "z"], model.prompts) == ["a x", "the film y", "a z"]
    assert np.abs(outputs(model, with_prompts(TEXTS, [model.prompt()])) - client.encode(TEXTS)).max() <= 1e-5
    model.copied().converted(half(model)).save_pretrained(tmp_path)
    again = st.SentenceTransformer(str(tmp_path), device="cpu")
    assert (again.max_seq_length, again.prompts, again.default_prompt_name) == (7, client.prompts, "document")
    assert again.similarity_fn_name == "dot"
    fast = open_text_model(tmp_path)
    assert (fast.max_length, fast.prompts) == (7, model.prompts) and fast.is_normalized
    assert np.abs(outputs(fast, with_prompts(TEXTS, [fast.prompt("query")])) - again.encode_query(TEXTS)).max() <= 1e-5


def test_the_length_of_embeddings_matters_where_they_are_multiplied(encoder: Path) -> None:
    assert as_text_model(st.SentenceTransformer(str(encoder), device="cpu")).is_normalized
    multiplied = st.SentenceTransformer(str(encoder), device="cpu", similarity_fn_name="dot")
    assert not as_text_model(multiplied).is_normalized


def test_half_precision_is_read_in_single_and_missing_poolers_are_drawn_alike(encoder: Path, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(encoder)
    model.pooler = None
    model.half().save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(tmp_path)
    one, other = open_text_model(tmp_path), open_text_model(tmp_path)
    assert all(weight.dtype == torch.float32 for weight in one.parameters())
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)


def test_what_is_no_encoder_is_refused_in_one_line(tmp_path: Path, encoder: Path) -> None:
    writer = make_writer("bart")
    writer.save_pretrained(tmp_path / "bart")
    make_tokenizer().save_pretrained(tmp_path / "bart")
    with pytest.raises(hashee.UnsupportedModel, match="writes text"):
        open_text_model(tmp_path / "bart")
    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "llama")
    with pytest.raises(hashee.UnsupportedModel, match=r"LlamaForCausalLM .* writes text"):
        open_text_model(tmp_path / "llama")
    AutoConfig.for_model("vit").save_pretrained(tmp_path / "vit")
    with pytest.raises(hashee.UnsupportedModel, match="no adapter covers model type 'vit'"):
        open_text_model(tmp_path / "vit")
    with pytest.raises(hashee.UnsupportedModel, match="Linear is no model of"):
        as_text_model(torch.nn.Linear(2, 2))
    with pytest.raises(hashee.InputError, match="unknown pooling 'max'"):
        open_text_model(encoder, "max")
    with pytest.raises(hashee.HasheeError, match="no such file or folder"):
        open_text_model("./nowhere")


def test_sparse_encoders_are_refused(tmp_path: Path) -> None:
    config = make_config("bert", vocab_size=len(make_tokenizer()), num_hidden_layers=2)
    AutoModelForMaskedLM.from_config(config).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    sparse = st.SparseEncoder(str(tmp_path), device="cpu")
    with pytest.raises(hashee.UnsupportedModel, match="SparseEncoder is not covered"):
        as_text_model(sparse)
    sparse.save_pretrained(str(tmp_path / "saved"))
    with pytest.raises(hashee.UnsupportedModel, match="holds a SparseEncoder, which is not covered"):
        open_text_model(tmp_path / "saved")
