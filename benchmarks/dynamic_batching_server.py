"""A server as it is usually built, to compare with: FastAPI, sentence-transformers, dynamic batches by tokens.

Batches are formed as text-embeddings-inference documents it: requests in order of arrival, as many as fit into
`--max-batch-tokens`, and at most `--max-concurrent-requests` in the server, beyond which it answers 429. Only what the
comparison needs is here: `POST /v1/embeddings` with base64, on loopback.
"""

import argparse
import asyncio
import base64
import socket
import sys
import threading
from dataclasses import dataclass
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer
from starlette.responses import JSONResponse


class Body(BaseModel):
    """Texts to embed."""

    model: str
    input: list[str]
    encoding_format: str = "base64"


@dataclass(eq=False)
class Waiting:
    """The texts of a request."""

    ids: list[list[int]]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop

    @property
    def tokens(self) -> int:
        """Tokens of all of them."""
        return sum(map(len, self.ids))


class Batches:
    """Runs waiting requests on a thread, in order of arrival, as many as fit into a number of tokens."""

    def __init__(self, model: SentenceTransformer, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._waiting: list[Waiting] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, waiting: Waiting) -> None:
        """Queue a request."""
        with self._changed:
            self._waiting.append(waiting)
            self._changed.notify()

    def _take(self) -> list[Waiting]:
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            count = tokens = 0
            for waiting in self._waiting:
                tokens += waiting.tokens
                if count and tokens > self._max_tokens:
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            return taken

    def _run(self) -> None:
        while True:
            taken = self._take()
            rows = [row for waiting in taken for row in waiting.ids]
            features = self._model.tokenizer.pad({"input_ids": rows}, return_tensors="pt")
            with torch.inference_mode():
                found = self._model(dict(features))["sentence_embedding"]
                found = torch.nn.functional.normalize(found, dim=-1).numpy()
            start = 0
            for waiting in taken:
                some = found[start : start + len(waiting.ids)]
                start += len(waiting.ids)
                waiting.loop.call_soon_threadsafe(waiting.future.set_result, some)


def make_app(model: SentenceTransformer, options: argparse.Namespace) -> FastAPI:
    """Return the application."""
    app, batches, running = FastAPI(), Batches(model, options.max_batch_tokens), [0]

    @app.post("/v1/embeddings")
    async def embeddings(body: Body) -> Any:
        if running[0] >= options.max_concurrent_requests:
            return JSONResponse({"error": {"message": "overloaded"}}, 429, {"Retry-After": "1"})
        running[0] += 1
        try:
            loop = asyncio.get_running_loop()
            ids = model.tokenizer(body.input, truncation=True, return_attention_mask=False)["input_ids"]
            waiting = Waiting(ids, loop.create_future(), loop)
            batches.add(waiting)
            rows = await waiting.future
        finally:
            running[0] -= 1
        data = [
            {"object": "embedding", "index": number, "embedding": base64.b64encode(row.tobytes()).decode()}
            for number, row in enumerate(rows)
        ]
        return JSONResponse({"object": "list", "data": data, "model": body.model})

    return app


def main() -> None:
    """Serve until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-batch-tokens", type=int, default=16384)
    parser.add_argument("--max-concurrent-requests", type=int, default=512)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = SentenceTransformer(options.model, device="cpu").eval()
    model.encode(["a text to warm it up"])
    listening = socket.create_server(("127.0.0.1", options.port))
    config = uvicorn.Config(make_app(model, options), log_level="warning", access_log=False, lifespan="off")
    print(f"serving on http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
