"""What every request passes before it reaches an endpoint: token, size, deadline; and what becomes of errors."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from hashee.serving.failures import DeadlinePassed, RequestError, SlowBody, TooLarge, WrongToken
from hashee.serving.metrics import Metrics
from hashee.serving.responses import error_response
from hashee.serving.settings import ServeSettings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OPEN_PATHS = ("/", "/health", "/ready")
"""They need no token: the page without its data, and what says whether the server lives."""
_BODY_SECONDS = 10.0
"""A body that takes longer to arrive is refused, so that slow clients hold nothing."""


class Gate:
    """Middleware around the endpoints."""

    def __init__(self, app: Any, settings: ServeSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 499  # the client went away

        async def noting_status(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check_token(scope)
            body = await self._body(scope, receive)
            await self._run(scope, body, receive, noting_status)
        except RequestError as error:
            await error_response(scope["path"], error)(scope, receive, noting_status)
        except Exception:
            status = 500  # the layer around this one says so
            raise
        finally:
            # By the endpoint, not by the path: that is the client's, and there would be no end of them.
            endpoint = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(endpoint, status).inc()
            self._metrics.seconds.labels(endpoint).observe(time.perf_counter() - start)

    def _check_token(self, scope: Scope) -> None:
        if self._settings.token is None or (scope["path"] in OPEN_PATHS and scope["method"] in ("GET", "HEAD")):
            return
        header = dict(scope["headers"]).get(b"authorization", b"")
        expected = f"Bearer {self._settings.token}".encode()
        # In constant time: how long it takes must not tell how much of a guess is right.
        if not hmac.compare_digest(header, expected):
            raise WrongToken("this server needs its token; send it as Authorization: Bearer ...")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the whole body, which is bounded."""
        most = self._settings.max_body
        too_large = TooLarge(f"the body has more than {most:,} bytes; send fewer or shorter texts")
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > most:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while True:
                    message = await receive()
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise too_large
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise SlowBody(f"the body did not arrive within {_BODY_SECONDS:.0f} s; send it at once") from None

    async def _run(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Answer a request within its deadline, unless its client goes away."""
        given = False

        async def replay() -> Mapping[str, Any]:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        answering = asyncio.ensure_future(self._app(scope, replay, send))
        leaving = asyncio.ensure_future(receive())
        try:
            limit = self._settings.deadline_ms / 1000
            await asyncio.wait({answering, leaving}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
            elif not leaving.done():
                answering.cancel()
                await asyncio.wait({answering})
                raise DeadlinePassed(f"no answer within {limit:g} s; send fewer texts, or ask again later")
        finally:
            # Nobody reads an answer any more: what was not computed yet is not.
            for task in (answering, leaving):
                task.cancel()
