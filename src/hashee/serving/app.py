"""The endpoints: OpenAI's embeddings, those of text-embeddings-inference, and our own."""

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from hashee.serving.answers import embeddings, openai_embeddings, predictions, ranks, sequences
from hashee.serving.bodies import (
    EmbedBody,
    ExplainBody,
    InferenceBody,
    OpenAIEmbeddingsBody,
    PredictBody,
    RerankBody,
    TokenizeBody,
)
from hashee.serving.description import info, status
from hashee.serving.documented import (
    OpenAIEmbeddings,
    OpenAIFailure,
    Prediction,
    Rank,
    Token,
    reads_body,
    reads_nothing,
    runs_model,
    shows_text,
)
from hashee.serving.failures import NotReady, RequestError, UnknownModel
from hashee.serving.gate import Gate
from hashee.serving.playground import POLICY, page
from hashee.serving.refusals import add_refusals
from hashee.serving.responses import error_response, json_response, timings
from hashee.serving.served import Head
from hashee.serving.service import Services

SCORERS = (Head.CLASSIFIER, Head.RERANKER)


def make_app(services: Services) -> FastAPI:
    """Return the application that answers with some models."""
    # The pages that show the OpenAPI document would load scripts from elsewhere.
    app = FastAPI(title="hashee", version=version("hashee"), docs_url=None, redoc_url=None)
    _add_inference(app, services)
    _add_own(app, services)
    add_refusals(app)
    app.add_middleware(Gate, settings=services.settings, metrics=services.metrics)
    return app


def _add_inference(app: FastAPI, services: Services) -> None:
    """Add what runs a model."""

    @app.post("/v1/embeddings", response_class=JSONResponse, responses=runs_model(OpenAIEmbeddings, OpenAIFailure))
    async def v1_embeddings(body: OpenAIEmbeddingsBody) -> Response:
        """Embed texts, as OpenAI's API does."""
        service = services.named(body.model, [Head.EMBEDDING], "embed")
        texts = [body.input] if isinstance(body.input, str) else body.input
        answers = await service.run(texts, truncate=False)
        rows = embeddings(answers, normalize=True, dimensions=body.dimensions)
        return json_response(
            openai_embeddings(service.model, rows, answers, body.encoding_format), headers=timings(answers)
        )

    @app.get("/v1/models", response_class=JSONResponse, responses=reads_nothing(dict[str, Any], failure=OpenAIFailure))
    async def v1_models() -> Response:
        """List the models, as OpenAI's API does."""
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "hashee"} for name in services.by_name]
        return json_response({"object": "list", "data": models})

    @app.post("/embed", response_class=JSONResponse, responses=runs_model(list[list[float]]))
    async def embed(body: EmbedBody) -> Response:
        """Embed texts, as text-embeddings-inference does."""
        service = services.named(body.model, [Head.EMBEDDING], "embed")
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        answers = await service.run(texts, body.truncate)
        rows = embeddings(answers, normalize=body.normalize is not False, dimensions=body.dimensions)
        return json_response(rows, headers=timings(answers))

    @app.post("/predict", response_class=JSONResponse, responses=runs_model(list[Prediction] | list[list[Prediction]]))
    async def predict(body: PredictBody) -> Response:
        """Classify a text or a pair, as text-embeddings-inference does; regression gives a score."""
        service = services.named(body.model, SCORERS, "classify")
        texts, is_batch = sequences(body.inputs)
        answers = await service.run(texts, body.truncate)
        rows = predictions(service.model, texts, answers, body)
        return json_response(rows if is_batch else rows[0], headers=timings(answers))

    @app.post("/rerank", response_class=JSONResponse, responses=runs_model(list[Rank]))
    async def rerank(body: RerankBody) -> Response:
        """Order texts by how well they fit a query, as text-embeddings-inference does."""
        service = services.named(body.model, [Head.RERANKER], "rerank")
        answers = await service.run([(body.query, text) for text in body.texts], body.truncate)
        return json_response(ranks(answers, body), headers=timings(answers))

    @app.post("/", response_class=JSONResponse, responses=runs_model(list[list[float]] | list[list[Prediction]]))
    async def infer(body: InferenceBody) -> Response:
        """Answer as Hugging Face's inference API does: by the model's head, on an address without a path."""
        model = services.named(body.model).model
        fields = body.model_dump(exclude_none=True) | {"model": model.name}
        if model.head is Head.EMBEDDING:
            return await embed(EmbedBody.model_validate(fields))
        answer = PredictBody.model_validate(fields)
        texts, _ = sequences(answer.inputs)
        service = services.named(model.name)
        answers = await service.run(texts, answer.truncate)
        # A list for each text, also for a single one: this is what pipelines behind that API give.
        return json_response(predictions(model, texts, answers, answer), headers=timings(answers))


def _add_own(app: FastAPI, services: Services) -> None:
    """Add what runs no model."""

    @app.post("/tokenize", response_class=JSONResponse, responses=reads_body(list[list[Token]]))
    async def tokenize(body: TokenizeBody) -> Response:
        """Return every token with its id and place, as text-embeddings-inference does."""
        service = services.named(body.model)
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        service.check_number(texts)
        special = body.add_special_tokens is not False
        return json_response(await service.showing(texts, lambda model: model.tokens(texts, special)))

    @app.post("/explain", response_class=JSONResponse, responses=reads_body(dict[str, Any]))
    async def explain(body: ExplainBody) -> Response:
        """Return every token of a text with its exit layer, and what the text costs."""
        service = services.named(body.model)
        parts = [body.inputs] if body.text_pair is None else [body.inputs, body.text_pair]
        found = await service.showing(parts, lambda model: model.explain(body.inputs, body.text_pair))
        return json_response(found.to_dict() | {"model": service.model.name})

    @app.get("/info", response_class=JSONResponse, responses=reads_nothing(dict[str, Any], UnknownModel, RequestError))
    async def get_info(model: str | None = None) -> Response:
        """Describe a model and the limits of the server, as text-embeddings-inference does."""
        return json_response(info(services, services.named(model)))

    @app.get("/status", response_class=JSONResponse, responses=reads_nothing(dict[str, Any]))
    async def get_status() -> Response:
        """Return queue and throughput of every model."""
        return json_response(status(services))

    @app.get("/health", response_class=JSONResponse, responses=reads_nothing(dict[str, str]))
    async def health() -> Response:
        """Say that the server lives."""
        return json_response({"status": "ok"})

    @app.get("/ready", response_class=JSONResponse, responses=reads_nothing(dict[str, str], NotReady))
    async def ready(request: Request) -> Response:
        """Say whether every model can be run now."""
        if services.ready:
            return json_response({"status": "ready"})
        return error_response(request.url.path, NotReady("a model is being opened; ask again in a second"))

    @app.get("/metrics", response_class=PlainTextResponse, responses=shows_text())
    async def metrics() -> Response:
        """Return metrics in Prometheus' format."""
        return Response(services.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", response_class=HTMLResponse, responses=shows_text())
    async def playground() -> Response:
        """Show the page on which models can be tried."""
        return HTMLResponse(page(), headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"})
