"""A Ray Serve deployment: models with exits behind HTTP on a Ray cluster, with as many replicas as the load asks for.

    HASHEE_MODEL=/shared/model serve run examples.ray_serve:app
    curl -s localhost:8000 -d '{"texts": ["a quiet film", "dull"]}'

Each replica opens the model once, on one thread of one core. Texts of requests that arrive together are scored
together, in batches by cost; a request that is wrong fails alone.
"""

import json
import os
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from hashee.bulk.parts import json_line
from hashee.bulk.scoring import open_scoring_model
from hashee.bulk.settings import ModelOptions
from hashee.errors import HasheeError

MOST_TEXTS = 1024
BATCH_TOKENS = 2048


@serve.deployment(
    ray_actor_options={"num_cpus": 1},
    autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 4},
)
class Scores:
    """Labels with scores, tags, embeddings or states of texts, as `hashee predict` writes them."""

    def __init__(self, folder: str) -> None:
        """Open a model: any folder that `hashee predict` takes, or minilm."""
        self.model = open_scoring_model(ModelOptions(folder), threads=1)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
    async def score(self, requests: list[list[Any]]) -> list[list[dict[str, Any]] | HasheeError]:
        """Score the texts of several requests at once; if that fails, each request on its own."""
        try:
            found = iter(self.model.score([text for texts in requests for text in texts], BATCH_TOKENS))
            return [[next(found) for _ in texts] for texts in requests]
        except HasheeError:
            return [self._alone(texts) for texts in requests]

    def _alone(self, texts: list[Any]) -> list[dict[str, Any]] | HasheeError:
        try:
            return self.model.score(texts, BATCH_TOKENS)
        except HasheeError as error:
            return error

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer `{"texts": [text or [text, text], ...]}` with a list in the same order."""
        try:
            body = await request.json()
            texts = [tuple(text) if isinstance(text, list) else text for text in body["texts"]]
        except (ValueError, TypeError, KeyError):
            return JSONResponse({"error": 'send {"texts": ["...", ...]}'}, status_code=400)
        if not 0 < len(texts) <= MOST_TEXTS:
            return JSONResponse({"error": f"send 1 to {MOST_TEXTS} texts"}, status_code=413)
        found = await self.score(texts)
        if isinstance(found, HasheeError):
            return JSONResponse({"error": str(found)}, status_code=422)
        return JSONResponse([json.loads(json_line(each)) for each in found])


app = Scores.bind(os.environ.get("HASHEE_MODEL", "minilm"))  # type: ignore[attr-defined]
