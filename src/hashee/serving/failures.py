"""Why a request is refused or fails: a status, a type in the words of text-embeddings-inference, and one line."""

from hashee.errors import HasheeError


class RequestError(HasheeError):
    """A request that is not answered; `status` is HTTP's, `type` is text-embeddings-inference's."""

    status = 422
    type = "Validation"


class MalformedBody(RequestError):
    """The body is no JSON."""

    status = 400


class WrongToken(RequestError):
    """The token is missing or not the server's."""

    status = 401
    type = "Unauthorized"


class UnknownModel(RequestError):
    """No model of this name is served."""

    status = 404


class WrongHead(RequestError):
    """The model's head cannot answer this endpoint."""

    status = 424
    type = "Backend"


class SlowBody(RequestError):
    """The body did not arrive in time."""

    status = 408


class TooLarge(RequestError):
    """Too many bytes, texts or tokens."""

    status = 413


class UnsupportedMedia(RequestError):
    """The body is compressed, or is said to be something else than JSON."""

    status = 415


class Overloaded(RequestError):
    """The queue is full; `retry_after` says in how many seconds there will be room."""

    status = 429
    type = "Overloaded"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelFailed(RequestError):
    """The model could not compute this request's texts."""

    status = 424
    type = "Backend"


class WorkerDied(RequestError):
    """The model's process died twice while it computed this request."""

    status = 503
    type = "Unhealthy"


class NotReady(RequestError):
    """The server is stopping."""

    status = 503
    type = "Unhealthy"


class DeadlinePassed(RequestError):
    """The request took longer than the server allows."""

    status = 504
    type = "Overloaded"
