"""Starting and ending a server: models first, then the port; SIGTERM answers what was accepted and ends."""

import asyncio
import importlib.util
import socket
from collections.abc import Callable, Sequence

import uvicorn

from hashee.errors import HasheeError, InputError
from hashee.serving.app import make_app
from hashee.serving.metrics import Metrics
from hashee.serving.service import Services
from hashee.serving.settings import ModelSettings, ServeSettings, check_names

_IDLE_SECONDS = 30
"""How long a connection without requests is kept."""


_BACKLOG = 2048
"""Connections that may wait to be accepted."""


def serve(models: Sequence[ModelSettings], settings: ServeSettings, say: Callable[[str], None]) -> None:
    """Serve models until SIGTERM or Ctrl-C. say: called with lines for whoever started it."""
    if not models:
        raise InputError("there is no model to serve; name at least one folder")
    check_names(models)
    listening = _bound(settings)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(Services(models, settings, Metrics()), listening, say))
    finally:
        listening.close()


async def _serve(services: Services, listening: socket.socket, say: Callable[[str], None]) -> None:
    await services.start()
    try:
        for name, service in services.by_name.items():
            status = service.scheduler.status()
            say(
                f"{name}: {service.model.head.value}, {status['macs_per_second'] / 1e9:.2f} GMACs/s on "
                f"{service.model.settings.threads} threads"
            )
        config = uvicorn.Config(
            make_app(services),
            log_level="warning",
            access_log=False,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=max(1, round(services.settings.deadline_ms / 1000)),
            lifespan="off",
            server_header=False,
        )
        host, port = listening.getsockname()[:2]
        # From here on connections are accepted, if only into the backlog.
        listening.listen(_BACKLOG)
        say(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}")
        await uvicorn.Server(config).serve(sockets=[listening])
    finally:
        services.stop()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return how an event loop is made: uvloop's where there is one, which needs half the time for a request."""
    if importlib.util.find_spec("uvloop") is None:  # there is none for Windows
        return asyncio.new_event_loop
    import uvloop  # noqa: PLC0415

    return uvloop.new_event_loop


def _bound(settings: ServeSettings) -> socket.socket:
    """Return a socket on the address that is asked for, or say why there is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        raise HasheeError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror or error}); choose another --port or "
            "--host"
        ) from None
    return listening
