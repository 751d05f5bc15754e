"""A queue that is bounded in multiply-accumulates, deadlines, and the end of a server."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from running import QUEUE, TEXTS, Server, offline, unit


def flood(server: Server, bodies: list[Any], path: str = "/embed") -> list[httpx.Response]:
    """Send all bodies at once."""
    with httpx.Client(timeout=300, headers=server.headers, limits=httpx.Limits(max_connections=None)) as client:
        client.get(f"{server.url}/health")
        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(lambda body: client.post(server.url + path, json=body), bodies))


def test_past_the_bound_clients_are_told_when_to_come_back(server: Server, folders: dict[str, Path]) -> None:
    texts = [f"{text} {'cat ' * count}" for count in range(16) for text in TEXTS]
    expected = [unit(states.mean(axis=0)) for states in offline(folders["embedder"], texts)]
    # Together far more than the queue takes; each has its texts in an order of its own.
    orders = [np.random.default_rng(number).permutation(len(texts)) for number in range(24)]
    answers = flood(server, [{"inputs": [texts[index] for index in order]} for order in orders])
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 429}
    for answer, order in zip(answers, orders, strict=True):
        if answer.status_code == 200:
            assert np.abs(np.array(answer.json()) - [expected[index] for index in order]).max() <= 1e-5
        else:
            assert int(answer.headers["Retry-After"]) >= 1
            assert f"exceed {QUEUE:,}" in answer.json()["error"]
    # Alone, the same request finds room.
    assert server.post("/embed", {"inputs": texts}).status_code == 200
    assert server.get("/status").json()["models"][0]["queue_macs"] == 0


def test_metrics_count_what_was_run(server: Server) -> None:
    def value(name: str) -> float:
        lines = server.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    names = ['hashee_texts_total{model="reranker"', 'hashee_tokens_total{model="reranker"', "hashee_exits_total{"]
    before = [value(name) for name in names]
    macs = value('hashee_macs_total{model="reranker"')
    answer = server.post("/rerank", {"query": "a cat", "texts": TEXTS})
    tokens = int(answer.headers["x-compute-tokens"])
    after = [value(name) for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [len(TEXTS), tokens, tokens]
    assert value('hashee_macs_total{model="reranker"') - macs == int(answer.headers["x-compute-macs"])
    assert value('hashee_requests_total{endpoint="/rerank",status="200"}') >= 1
    assert value("hashee_queue_macs") == 0


def test_a_worker_that_is_killed_comes_back_and_its_requests_are_answered(
    server: Server, folders: dict[str, Path]
) -> None:
    expected = [unit(states.mean(axis=0)) for states in offline(folders["embedder"], TEXTS)]
    embedder, *others = server.workers()
    # A stopped worker has these requests in its hands when it is killed.
    os.kill(embedder, signal.SIGSTOP)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(server.post, "/embed", {"inputs": TEXTS}) for _ in range(4)]
        time.sleep(0.3)
        os.kill(embedder, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while server.get("/ready").status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.get("/ready").status_code == 503
        assert server.get("/health").status_code == 200
        for answer in answers:
            found = answer.result()
            assert found.status_code == 200, found.text
            assert np.abs(np.array(found.json()) - expected).max() <= 1e-5
    assert server.get("/ready").status_code == 200
    assert embedder not in server.workers() and set(others) < set(server.workers())
    assert [model["restarts"] for model in server.get("/status").json()["models"]] == [1, 0, 0, 0]
    again = server.post("/embed", {"inputs": TEXTS})
    assert np.abs(np.array(again.json()) - expected).max() <= 1e-5


def queued(server: Server) -> int:
    """Return the work that waits or runs."""
    return int(server.get("/status").json()["models"][0]["queue_macs"])


def test_sigterm_answers_what_was_accepted_and_a_late_answer_is_an_error(folders: dict[str, Path]) -> None:
    with Server(folders["classifier"], "--deadline-ms", 4000) as server:
        (worker,) = server.workers()
        os.kill(worker, signal.SIGSTOP)
        late = server.post("/predict", {"inputs": "a good film"})
        assert (late.status_code, late.json()["error_type"]) == (504, "Overloaded")
        answers: list[httpx.Response] = []
        before = queued(server)
        asking = threading.Thread(target=lambda: answers.append(server.post("/predict", {"inputs": "a good film"})))
        asking.start()
        deadline = time.monotonic() + 30
        while queued(server) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        os.kill(worker, signal.SIGCONT)
        asking.join()
        assert [answer.status_code for answer in answers] == [200], answers[0].text
        assert server.process.wait(30) == 143
        assert not Path(f"/proc/{worker}").exists()
