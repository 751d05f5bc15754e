"""Bodies of requests, as OpenAI's and text-embeddings-inference's clients send them; unknown fields are ignored."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ModelName = Annotated[str | None, Field(description="Which model; default: the first that can answer.")]
Truncate = Annotated[bool | None, Field(description="Whether longer texts are cut instead of refused.")]
RawScores = Annotated[bool | None, Field(description="Whether scores are logits instead of probabilities.")]


class Body(BaseModel):
    """What all bodies share: values are not converted from other types."""

    model_config = ConfigDict(strict=True)
    model: ModelName = None


class EmbedBody(Body):
    """Texts to embed, as text-embeddings-inference takes them."""

    inputs: str | list[str]
    normalize: bool | None = True
    truncate: Truncate = False
    dimensions: Annotated[int | None, Field(ge=1, description="Leave out the other columns, then normalize.")] = None


class OpenAIEmbeddingsBody(BaseModel):
    """Texts to embed, as OpenAI's clients send them."""

    model_config = ConfigDict(strict=True)
    model: str
    input: str | list[str]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int | None, Field(ge=1)] = None
    user: str | None = None


class PredictParameters(BaseModel):
    """Parameters of Hugging Face's inference API."""

    model_config = ConfigDict(strict=True)
    top_k: Annotated[int | None, Field(ge=1)] = None
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None


class PredictBody(Body):
    """A text, a pair of texts, or a batch of either: `"a"`, `["a", "b"]`, `[["a"], ["b", "c"]]`."""

    inputs: str | list[str] | list[list[str] | str]
    raw_scores: RawScores = False
    truncate: Truncate = False
    parameters: PredictParameters | None = None


class RerankBody(Body):
    """A query and the texts to order by it."""

    query: str
    texts: list[str]
    raw_scores: RawScores = False
    return_text: bool | None = False
    truncate: Truncate = False


class TokenizeBody(Body):
    """Texts to tokenize."""

    inputs: str | list[str]
    add_special_tokens: bool | None = True


class ExplainBody(Body):
    """A text, or a pair, whose tokens and cost are to be shown."""

    inputs: str
    text_pair: str | None = None


class InferenceBody(Body):
    """What Hugging Face's clients send to an address without a path: the model's head says what is done with it."""

    model_config = ConfigDict(strict=True, extra="allow")
    inputs: Any
    parameters: dict[str, Any] | None = None
