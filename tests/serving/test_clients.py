"""Real clients of OpenAI and Hugging Face get the answers that the library gives offline."""

import base64
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from running import PAIRS, TEXTS, Server, offline, unit

import hashee

openai = pytest.importorskip("openai")

TOLERANCE = 1e-5


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Hugging Face's client reach loopback; everything else in these tests is offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> list[Any]:
    """Offline embeddings: the mean of the states, at length 1."""
    return [unit(states.mean(axis=0)) for states in offline(folders["embedder"], TEXTS)]


def test_openai_embeds(server: Server, expected: list[Any]) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token, max_retries=0)
    answer = client.embeddings.create(model="embedder", input=TEXTS)  # the client asks for base64 and decodes it
    assert [each.index for each in answer.data] == list(range(len(TEXTS)))
    assert np.abs(np.array([each.embedding for each in answer.data]) - expected).max() <= TOLERANCE
    as_floats = client.embeddings.create(model="embedder", input=TEXTS[0], encoding_format="float")
    assert np.abs(np.array(as_floats.data[0].embedding) - expected[0]).max() <= TOLERANCE
    assert answer.usage.prompt_tokens > as_floats.usage.prompt_tokens > 0
    assert [model.id for model in client.models.list()] == ["embedder", "reranker", "classifier", "classifier-early"]


def test_openai_is_told_what_is_wrong(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token, max_retries=0)
    with pytest.raises(openai.NotFoundError, match=r"there is no model 'ada'.*choose from embedder"):
        client.embeddings.create(model="ada", input="x")
    with pytest.raises(openai.AuthenticationError, match="needs its token"):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong").embeddings.create(model="embedder", input="x")


def test_hugging_face_embeds(online: None, server: Server, expected: list[Any]) -> None:
    client = InferenceClient(f"{server.url}/embed", token=server.token)
    assert np.abs(client.feature_extraction(TEXTS[0])[0] - expected[0]).max() <= TOLERANCE
    # An address without a path, as for a dedicated endpoint.
    bare = InferenceClient(server.url, token=server.token)
    assert np.abs(bare.feature_extraction(TEXTS[2], normalize=True)[0] - expected[2]).max() <= TOLERANCE
    endpoint = InferenceClient(server.url, provider="hf-inference", token=server.token)
    assert endpoint.health_check()
    assert endpoint.get_endpoint_info()["model_id"] == "embedder"


def test_hugging_face_classifies(online: None, server: Server, folders: dict[str, Path]) -> None:
    client = InferenceClient(f"{server.url}/predict", token=server.token)
    # The client takes the first of what it gets, and text-embeddings-inference sends the labels of one text as a list.
    best = client.text_classification(TEXTS[0])
    decoded = hashee.load(folders["classifier"])
    scores = np.exp(offline(folders["classifier"], TEXTS[:1])[0])
    assert best.label == decoded.config.id2label[int(scores.argmax())]
    assert best.score == pytest.approx(float(scores.max() / scores.sum()), abs=TOLERANCE)


def test_embeddings_may_be_raw_or_shorter(server: Server, folders: dict[str, Path]) -> None:
    states = offline(folders["embedder"], TEXTS)
    raw = server.post("/embed", {"inputs": TEXTS, "normalize": False}).json()
    assert np.abs(np.array(raw) - [each.mean(axis=0) for each in states]).max() <= TOLERANCE
    short = server.post("/embed", {"inputs": TEXTS, "dimensions": 7}).json()
    assert np.abs(np.array(short) - [unit(each.mean(axis=0)[:7]) for each in states]).max() <= TOLERANCE
    encoded = server.post("/v1/embeddings", {"model": "embedder", "input": "x", "encoding_format": "base64"}).json()
    assert len(np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), "<f4")) == 24


def test_texts_and_pairs_are_classified_as_offline(server: Server, folders: dict[str, Path]) -> None:
    names = ["bad", "good", "so-so"]
    batches = ((TEXTS, [[text] for text in TEXTS]), (PAIRS, [list(pair) for pair in PAIRS]))
    for texts, inputs in batches:
        logits = offline(folders["classifier"], texts)
        answers = server.post("/predict", {"inputs": inputs, "raw_scores": True}).json()
        for answer, row in zip(answers, logits, strict=True):
            assert [each["label"] for each in answer] == [names[index] for index in np.argsort(-row)]
            assert {each["label"]: each["score"] for each in answer} == pytest.approx(
                dict(zip(names, row.tolist(), strict=True)), abs=TOLERANCE
            )
    single = server.post("/predict", {"inputs": list(PAIRS[0]), "model": "classifier"}).json()
    assert sum(each["score"] for each in single) == pytest.approx(1, abs=TOLERANCE)


def test_texts_are_ranked_by_their_offline_scores(server: Server, folders: dict[str, Path]) -> None:
    logits = np.concatenate(offline(folders["reranker"], PAIRS))
    body = {"query": PAIRS[0][0], "texts": TEXTS, "return_text": True}
    answer = server.post("/rerank", body).json()
    assert [each["index"] for each in answer] == np.argsort(-logits).tolist()
    assert [each["text"] for each in answer] == [TEXTS[index] for index in np.argsort(-logits)]
    expected = 1 / (1 + np.exp(-np.sort(logits)[::-1]))
    assert [each["score"] for each in answer] == pytest.approx(expected.tolist(), abs=TOLERANCE)
    raw = server.post("/rerank", body | {"raw_scores": True}).json()
    assert raw[0]["score"] == pytest.approx(float(logits.max()), abs=TOLERANCE)
    score = server.post("/predict", {"inputs": list(PAIRS[0]), "model": "reranker"}).json()
    assert score[0]["score"] == pytest.approx(float(logits[0]), abs=TOLERANCE)


def test_tokens_stand_where_the_text_says(server: Server, tokenizer: Any) -> None:
    (tokens,) = server.post("/tokenize", {"inputs": TEXTS[0]}).json()
    assert [token["id"] for token in tokens] == tokenizer(TEXTS[0])["input_ids"]
    assert [token["special"] for token in tokens] == [True, *[False] * (len(tokens) - 2), True]
    for token in tokens[1:-1]:
        assert TEXTS[0][token["start"] : token["stop"]] == token["text"]
    (bare,) = server.post("/tokenize", {"inputs": TEXTS[0], "add_special_tokens": False}).json()
    assert bare == tokens[1:-1]


def test_explanations_are_those_of_the_library_and_price_the_request(server: Server, folders: dict[str, Path]) -> None:
    explanation = server.post("/explain", {"inputs": TEXTS[0], "model": "classifier"}).json()
    expected = hashee.load(folders["classifier"]).explain(TEXTS[0])
    assert tuple(explanation["exit_layers"]) == expected.exit_layers
    assert tuple(explanation["tokens"]) == expected.tokens
    assert explanation["cost"]["paper_macs"] == expected.cost.paper_macs
    # What a request is charged is what the engine runs.
    charged = server.post("/predict", {"inputs": TEXTS[0], "model": "classifier"}).headers["x-compute-macs"]
    model = hashee.load(folders["classifier"])
    counted = hashee.count_flops(model, [TEXTS[0]], tokenizer=model.tokenizer)
    assert int(charged) == counted.executed_macs == explanation["cost"]["executed_macs"]
