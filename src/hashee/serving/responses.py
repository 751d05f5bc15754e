"""JSON that is sent: answers, and errors in the words that a client of each kind expects."""

import json
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from hashee.serving.failures import Overloaded, RequestError
from hashee.serving.scheduler import Answers


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as a response; halves of surrogate pairs, which messages may quote, stay escaped."""
    try:
        # Arrays of numbers are written some twenty times faster, in as few digits as tell them apart.
        text: str | bytes = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(text, status, dict(headers or {}), media_type="application/json")


def error_response(path: str, error: RequestError) -> Response:
    """Return an error as OpenAI's clients read it below /v1, elsewhere as those of text-embeddings-inference do."""
    message = str(error)
    if path.startswith("/v1/"):
        value: Any = {"error": {"message": message, "type": error.type, "param": None, "code": error.status}}
    else:
        value = {"error": message, "error_type": error.type}
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, Overloaded) else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(value, error.status, headers)


def timings(answers: Answers) -> dict[str, str]:
    """Return what a request took as headers: those of text-embeddings-inference, in milliseconds, and the cost."""
    total = answers.queue_seconds + answers.run_seconds
    return {
        "x-compute-macs": str(answers.macs),
        "x-compute-tokens": str(answers.tokens),
        "x-queue-time": f"{1000 * answers.queue_seconds:.3f}",
        "x-inference-time": f"{1000 * answers.run_seconds:.3f}",
        "x-total-time": f"{1000 * total:.3f}",
    }
