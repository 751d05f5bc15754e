"""Whatever a client sends gets an answer or one line with a 4xx status, and the server goes on."""

import json
import re
import socket
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import TEXTS, Server

PATHS = ("/embed", "/v1/embeddings", "/predict", "/rerank", "/tokenize", "/explain", "/")
BAD: list[tuple[str, Any, int, str]] = [
    ("/embed", {"inputs": 3}, 422, "inputs"),
    ("/embed", {"inputs": [1, 2]}, 422, "inputs"),
    ("/embed", {"inputs": []}, 422, "no text"),
    ("/embed", {}, 422, "inputs"),
    ("/embed", {"inputs": "a", "truncate": "yes"}, 422, "truncate"),
    ("/embed", {"inputs": ["a"] * 257}, 413, "at most 256"),
    ("/embed", {"inputs": "cat " * 300}, 413, 'more than 40 tokens.*"truncate": true'),
    ("/embed", {"inputs": "a", "dimensions": 25}, 422, "have 24"),
    ("/embed", {"inputs": "a", "model": "classifier"}, 424, "does not embed"),
    ("/embed", {"inputs": "a", "model": "../embedder"}, 404, "there is no model"),
    ("/predict", {"inputs": ["a", "b", "c"]}, 422, "neither a text nor a pair"),
    ("/predict", {"inputs": "a", "model": "embedder"}, 424, "does not classify"),
    ("/rerank", {"query": "a", "texts": []}, 422, "no text"),
    ("/rerank", {"query": "a", "texts": ["b"], "model": "classifier"}, 424, "does not rerank"),
    ("/explain", {"inputs": "cat " * 300}, 422, "takes 40"),
    ("/v1/embeddings", {"input": "a"}, 422, "model"),
    ("/", {"inputs": {"a": 1}}, 422, "inputs"),
]


@pytest.mark.parametrize(("path", "body", "status", "reason"), BAD)
def test_what_is_wrong_is_said_in_one_line(server: Server, path: str, body: Any, status: int, reason: str) -> None:
    answer = server.post(path, body)
    said = answer.json()["error"]
    said = said["message"] if isinstance(said, dict) else said
    assert (answer.status_code, "\n" in said) == (status, False), said
    assert re.search(reason, said), said


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b'{"inputs": "\xff"}', b'{"inputs": "\\ud800"}', b"null", b'{"inputs": NaN}']
)
@pytest.mark.parametrize("path", PATHS)
def test_what_is_no_json_or_no_text_is_refused(server: Server, path: str, body: bytes) -> None:
    headers = server.headers | {"Content-Type": "application/json"}
    answer = httpx.post(server.url + path, content=body, headers=headers, timeout=300)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]


def test_halves_of_characters_are_no_text_even_in_names(server: Server) -> None:
    headers = server.headers | {"Content-Type": "application/json"}
    for body in (b'{"inputs": "a \\ud800 b"}', b'{"inputs": "a", "model": "\\ud800"}'):
        answer = httpx.post(f"{server.url}/embed", content=body, headers=headers, timeout=300)
        assert answer.status_code in (404, 422), answer.text


def test_large_bodies_are_refused_whether_announced_or_not(server: Server) -> None:
    body = json.dumps({"inputs": "a" * 3_000_000}).encode()
    headers = server.headers | {"Content-Type": "application/json"}
    assert httpx.post(f"{server.url}/embed", content=body, headers=headers, timeout=300).status_code == 413
    parts = (body[start : start + 100_000] for start in range(0, len(body), 100_000))
    try:
        status = httpx.post(f"{server.url}/embed", content=parts, headers=headers, timeout=300).status_code
    except httpx.WriteError:  # it may hang up before all of it is sent
        status = 413
    assert status == 413


def test_long_texts_are_cut_if_that_is_wanted(server: Server) -> None:
    cut = server.post("/embed", {"inputs": "cat " * 300, "truncate": True})
    assert cut.json() == server.post("/embed", {"inputs": "cat " * 38}).json()
    assert cut.headers["x-compute-tokens"] == "40"


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "correct horse"}])
def test_the_token_is_needed(server: Server, header: dict[str, str]) -> None:
    for path in PATHS:
        answer = server.post(path, {"inputs": "a"}, headers=header)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    for path in ("/metrics", "/info", "/status", "/openapi.json"):
        assert server.get(path, headers=header).status_code == 401
    for path in ("/health", "/ready", "/"):
        assert server.get(path, headers=header).status_code == 200


def test_broken_http_does_not_stop_the_server(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    for nonsense in (b"\x00\xff" * 100, b"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"):
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(nonsense)
    assert server.get("/health").status_code == 200


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "inputs",
    "input",
    "model",
    "query",
    "texts",
    "truncate",
    "normalize",
    "dimensions",
    "parameters",
    "text_pair",
)
BODIES = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5) | VALUES


@settings(max_examples=150)
@given(path=st.sampled_from(PATHS), body=BODIES)
def test_no_body_makes_the_server_fail(server: Server, path: str, body: Any) -> None:
    content = json.dumps(body).encode()
    headers = server.headers | {"Content-Type": "application/json"}
    answer = CLIENT.post(server.url + path, content=content, headers=headers)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        said = answer.json()["error"]
        said = said["message"] if isinstance(said, dict) else said
        assert said and "\n" not in said and len(said) <= 600


CLIENT = httpx.Client(timeout=300)


def test_the_openapi_document_names_every_endpoint(server: Server) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    assert {*PATHS, "/info", "/health", "/ready", "/metrics", "/status", "/v1/models"} <= set(paths)
