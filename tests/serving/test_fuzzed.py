"""Requests drawn from the OpenAPI document and odd bodies: a documented answer to each; in short, here.

`benchmarks/serve_fuzz.py` is the long version.
"""

import asyncio
import time

import httpx
import pytest
from odd_bodies import OddBodies
from running import Server
from serve_fuzz import fuzz_bodies, fuzz_schema, objection, summary
from serving_client import Reply


def restarts(server: Server) -> list[int]:
    """Return how often the process of each model was started anew."""
    return [model["restarts"] for model in server.get("/status").json()["models"]]


def test_odd_bodies_get_a_documented_answer_in_one_line(server: Server) -> None:
    headers = [f"{name}: {value}" for name, value in server.headers.items()]
    before = restarts(server)  # other tests kill workers of the same server
    fuzzed = asyncio.run(fuzz_bodies(server.url, OddBodies(["embedder"], seed=7), 400, 60, headers))
    assert fuzzed.failures == []
    assert fuzzed.requests >= 100
    assert {200, 400, 415, 422} <= set(fuzzed.statuses), summary(fuzzed)
    assert restarts(server) == before


def test_what_the_openapi_document_allows_and_forbids_is_answered_as_it_says(server: Server) -> None:
    pytest.importorskip("schemathesis")
    found = fuzz_schema(server.url, 60, 15, 0, [f"{name}: {value}" for name, value in server.headers.items()])
    assert (found["failures"], found["errors"]) == ([], []), found["said"]
    # A busy machine sends few within that time.
    assert found["requests"] >= 20


@pytest.mark.parametrize(
    ("reply", "wrong"),
    [
        (Reply(500, {}, b'{"error": "x"}'), "status 500"),
        (Reply(418, {}, b'{"error": "x"}'), "status 418"),
        (Reply(422, {}, b"oops"), "no JSON"),
        (Reply(422, {}, b'{"error": "two\\nlines"}'), "one line"),
        (Reply(422, {}, b'{"detail": []}'), "one line"),
        (Reply(429, {}, b'{"error": "full"}'), "Retry-After"),
        (Reply(422, {}, b'{"error": "inputs: wrong"}'), None),
    ],
)
def test_a_wrong_answer_is_found(reply: Reply, wrong: str | None) -> None:
    found = objection(reply, {200, 422, 429})
    assert found is None if wrong is None else wrong in str(found)


def test_a_pair_of_huge_texts_neither_fills_the_memory_nor_holds_others_up(server: Server) -> None:
    # Tokenizers keep what they cut off, of pairs each part with each: this took 17 GB.
    text = "我" * 160_000
    answer = server.post("/rerank", {"query": text, "texts": [text, "dull"], "truncate": True})
    assert answer.status_code == 200, answer.text
    assert server.post("/rerank", {"query": text, "texts": [text, "dull"]}).status_code == 413
    for path in ("/tokenize", "/explain"):
        assert server.post(path, {"inputs": text}).status_code == 413
    start = time.monotonic()
    assert server.post("/embed", {"inputs": "a cat"}).status_code == 200
    assert time.monotonic() - start < 30


def test_media_and_methods_that_are_wrong_are_named(server: Server) -> None:
    plain = httpx.post(f"{server.url}/embed", content=b'{"inputs": "a"}', headers=server.headers, timeout=300)
    assert plain.status_code == 415 and "application/json" in plain.json()["error"]
    headers = server.headers | {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    packed = httpx.post(f"{server.url}/embed", content=b"\x1f\x8b", headers=headers, timeout=300)
    assert packed.status_code == 415 and "gzip" in packed.json()["error"]
    for path, allowed in (("/", "GET, POST"), ("/embed", "POST"), ("/health", "GET")):
        answer = httpx.request("DELETE", server.url + path, headers=server.headers, timeout=300)
        assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
