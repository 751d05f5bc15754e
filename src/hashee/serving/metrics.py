"""What Prometheus reads at `/metrics`."""

from collections.abc import Sequence

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hashee.serving.served import TokenizedText

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
FILL = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class Metrics:
    """The metrics of a server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "hashee_requests", "Requests by endpoint and status.", ("endpoint", "status"), registry=registry
        )
        self.seconds = Histogram(
            "hashee_request_seconds", "Time to an answer.", ("endpoint",), buckets=SECONDS, registry=registry
        )
        model = ("model",)
        self.queue_macs = Gauge("hashee_queue_macs", "Multiply-accumulates that wait or run.", model, registry=registry)
        self.macs_per_second = Gauge(
            "hashee_macs_per_second", "Measured on the last batches, while they ran.", model, registry=registry
        )
        self.batch_texts = Histogram("hashee_batch_texts", "Texts of a batch.", model, buckets=TEXTS, registry=registry)
        self.batch_fill = Histogram(
            "hashee_batch_fill", "Cost of a batch / what it may cost.", model, buckets=FILL, registry=registry
        )
        self.texts = Counter("hashee_texts", "Texts that were run.", model, registry=registry)
        self.tokens = Counter("hashee_tokens", "Tokens that were run.", model, registry=registry)
        self.macs = Counter("hashee_macs", "Multiply-accumulates that were run.", model, registry=registry)
        self.run_seconds = Counter(
            "hashee_run_seconds",
            "Time in which the model ran; the rest of the clock it waited.",
            model,
            registry=registry,
        )
        self.exits = Counter("hashee_exits", "Tokens by exit layer.", ("model", "layer"), registry=registry)
        self.restarts = Counter(
            "hashee_worker_restarts", "Times that the process of a model died.", model, registry=registry
        )

    def text(self) -> bytes:
        """Return all of them in Prometheus' format."""
        return generate_latest(self._registry)


class ModelMetrics:
    """Those of one model."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self.queue_macs = metrics.queue_macs.labels(name)
        self.batch_texts = metrics.batch_texts.labels(name)
        self.batch_fill = metrics.batch_fill.labels(name)
        self.restarts = metrics.restarts.labels(name)
        self._metrics = metrics
        self._name = name

    def ran(self, texts: Sequence[TokenizedText], seconds: float, macs_per_second: float) -> None:
        """Count a batch that ran for some seconds."""
        metrics, name = self._metrics, self._name
        metrics.texts.labels(name).inc(len(texts))
        metrics.tokens.labels(name).inc(sum(text.cost.tokens for text in texts))
        metrics.macs.labels(name).inc(sum(text.cost.macs for text in texts))
        metrics.run_seconds.labels(name).inc(seconds)
        metrics.macs_per_second.labels(name).set(macs_per_second)
        for layer, tokens in enumerate(np.sum([text.exits for text in texts], axis=0).tolist()):
            if tokens:
                metrics.exits.labels(name, layer).inc(tokens)
