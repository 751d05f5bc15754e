"""What a server says of itself: its models, their limits, and what happens now."""

from importlib.metadata import version
from typing import Any

from hashee.serving.served import Head
from hashee.serving.service import ModelService, Services

_ENDPOINTS = {
    Head.EMBEDDING: ("/v1/embeddings", "/embed"),
    Head.CLASSIFIER: ("/predict",),
    Head.RERANKER: ("/rerank", "/predict"),
}
_OF_ALL = ("/", "/tokenize", "/explain", "/info")


def info(services: Services, service: ModelService) -> dict[str, Any]:
    """Return what text-embeddings-inference says of a model, and its exits."""
    model, settings = service.model, services.settings
    return {
        "model_id": model.name,
        "model_sha": None,
        "model_dtype": "int8" if model.settings.backend == "int8" else "float32",
        "model_type": _model_type(service),
        "max_concurrent_requests": None,
        "max_input_length": model.max_length,
        "max_batch_tokens": None,
        "max_client_batch_size": settings.max_batch,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": version("hashee"),
        "backend": "dense" if model.settings.dense else model.settings.backend,
        "threads": model.settings.threads,
        "layers": model.table.num_layers,
        "parameters": None if model.opened is None else model.opened.parameters,
        "endpoints": [*_ENDPOINTS[model.head], *_OF_ALL],
        **service.scheduler.status(),
    }


def status(services: Services) -> dict[str, Any]:
    """Return every model with its head, its place in a trade-off, and what happens now."""
    return {
        "version": version("hashee"),
        "models": [
            {
                "name": name,
                "head": service.model.head.value,
                "dense": service.model.settings.dense,
                "speedup": service.model.settings.speedup,
                "layers": service.model.table.num_layers,
                **service.scheduler.status(),
            }
            for name, service in services.by_name.items()
        ],
    }


def _model_type(service: ModelService) -> dict[str, Any]:
    model = service.model
    if model.head is Head.EMBEDDING:
        return {"embedding": {"pooling": service.pooling}}
    names = {str(number): label for number, label in enumerate(model.labels)}
    return {model.head.value: {"id2label": names, "label2id": {label: int(key) for key, label in names.items()}}}
