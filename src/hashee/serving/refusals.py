"""Whatever goes wrong with a request becomes a status and one line."""

import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from hashee.errors import shortened
from hashee.serving.failures import MalformedBody, RequestError, UnsupportedMedia
from hashee.serving.responses import error_response

_JSON = re.compile(r"application/([\w.+-]*\+)?json\s*(;|$)", re.IGNORECASE)


def add_refusals(app: FastAPI) -> None:
    """Make every error of an application one line."""

    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return error_response(request.url.path, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return error_response(request.url.path, _media_error(request) or _body_error(error))

    @app.exception_handler(ValidationError)
    async def invalid_for_head(request: Request, error: ValidationError) -> Response:
        return error_response(request.url.path, RequestError(_reason(error.errors()[0])))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        failure: RequestError | None = None
        if error.status_code == MalformedBody.status:
            # What Python's JSON cannot parse for other reasons: numbers of thousands of digits, deep nesting.
            failure = _media_error(request)
        if failure is None:
            failure = MalformedBody(f"{request.method} {shortened(request.url.path)}: {error.detail}")
            failure.status = error.status_code
        response = error_response(request.url.path, failure)
        if error.status_code == 405:
            # Starlette names the methods of the first route only; a path may have several.
            response.headers["Allow"] = ", ".join(sorted(_methods(app, request.url.path)))
        return response

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        # The traceback is written by uvicorn, to which the error goes on.
        failure = RequestError("the server made an error, which it has written to its standard error")
        failure.status, failure.type = 500, "Backend"
        return error_response(request.url.path, failure)


def _methods(app: FastAPI, path: str) -> set[str]:
    """Return what may be done with a path."""
    found = (getattr(route, "methods", None) or () for route in app.routes if getattr(route, "path", None) == path)
    return {method for methods in found for method in methods}


def _media_error(request: Request) -> RequestError | None:
    """Return what is wrong with the headers that describe a body: the reason why it could not be read."""
    if request.method not in ("POST", "PUT", "PATCH"):
        return None
    encoding, media = (request.headers.get(name, "") for name in ("content-encoding", "content-type"))
    if encoding.lower() not in ("", "identity"):
        return UnsupportedMedia(f"bodies are not taken in Content-Encoding {shortened(encoding)}; send plain JSON")
    if not _JSON.match(media):
        said = shortened(media) or "no type"
        return UnsupportedMedia(f"the body has Content-Type {said}; send JSON with Content-Type: application/json")
    return None


def _body_error(error: RequestValidationError) -> RequestError:
    first: Any = error.errors()[0]
    if first["type"] == "json_invalid":
        return MalformedBody("the body is no JSON; send a JSON object")
    return RequestError(_reason(first))


def _reason(found: Any) -> str:
    """Return what is wrong with a body and where."""
    place = ".".join(str(step) for step in found["loc"] if step != "body")
    return f"{shortened(place) or 'the body'}: {found['msg']}; see /openapi.json"
