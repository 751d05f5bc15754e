"""What each endpoint may answer, for the OpenAPI document: every status with the shape of its body."""

from typing import Any

from pydantic import BaseModel

from hashee.serving import failures
from hashee.serving.failures import RequestError

Responses = dict[int | str, dict[str, Any]]


class Failure(BaseModel):
    """Why there is no answer, as text-embeddings-inference says it."""

    error: str
    error_type: str


class OpenAIReason(BaseModel):
    """One line, and its kind."""

    message: str
    type: str
    param: None
    code: int


class OpenAIFailure(BaseModel):
    """Why there is no answer, as OpenAI's API says it."""

    error: OpenAIReason


class OpenAIEmbedding(BaseModel):
    """The embedding of one text: numbers, or 32-bit floats in base64."""

    object: str
    index: int
    embedding: list[float] | str


class OpenAIUsage(BaseModel):
    """Tokens of a request."""

    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddings(BaseModel):
    """Embeddings as OpenAI's API gives them."""

    object: str
    data: list[OpenAIEmbedding]
    model: str
    usage: OpenAIUsage


class Prediction(BaseModel):
    """A label with its score."""

    label: str
    score: float


class Rank(BaseModel):
    """A text by its index, with its score."""

    index: int
    text: str | None = None
    score: float


class Token(BaseModel):
    """A token and where it stands in its text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


_ALWAYS = (failures.WrongToken, failures.TooLarge, failures.SlowBody, failures.DeadlinePassed)
"""Any request may end so, before it reaches an endpoint or after."""
_OF_BODIES = (
    failures.MalformedBody,
    failures.UnknownModel,
    failures.UnsupportedMedia,
    RequestError,
    failures.Overloaded,
)
_OF_MODELS = (failures.ModelFailed, failures.NotReady)


def runs_model(answer: Any, failure: type[BaseModel] = Failure) -> Responses:
    """Return the responses of an endpoint that runs a model. answer: the type of its body."""
    return _responses(answer, failure, *_ALWAYS, *_OF_BODIES, *_OF_MODELS)


def reads_body(answer: Any) -> Responses:
    """Return the responses of an endpoint that takes a body and runs nothing."""
    return _responses(answer, Failure, *_ALWAYS, *_OF_BODIES)


def reads_nothing(answer: Any, *others: type[RequestError], failure: type[BaseModel] = Failure) -> Responses:
    """Return the responses of an endpoint without a body. others: errors of its own."""
    return _responses(answer, failure, *_ALWAYS, *others)


def shows_text() -> Responses:
    """Return the responses of an endpoint whose answer is no JSON; its errors are all the same."""
    found = _responses(str, Failure, *_ALWAYS)
    for status in found.keys() - {200}:
        del found[status]["model"]
        found[status]["content"] = {"application/json": {"schema": Failure.model_json_schema()}}
    return found


def _responses(answer: Any, failure: type[BaseModel], *errors: type[RequestError]) -> Responses:
    found: Responses = {200: {"model": answer}}
    for error in sorted(set(errors), key=lambda error: error.status):
        found[error.status] = {"model": failure, "description": (error.__doc__ or "").split(";")[0].strip()}
    retry = {"description": "Seconds until there will be room.", "schema": {"type": "integer"}}
    if failures.Overloaded in errors:
        found[failures.Overloaded.status]["headers"] = {"Retry-After": retry}
    return found
