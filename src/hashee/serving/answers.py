"""From a model's outputs to what each endpoint returns."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.data.texts import Text
from hashee.errors import HasheeError
from hashee.serving.bodies import PredictBody, RerankBody
from hashee.serving.failures import ModelFailed, RequestError
from hashee.serving.scheduler import Answers
from hashee.serving.served import ServedModel

Vector = NDArray[np.float32]


def embeddings(answers: Answers, normalize: bool, dimensions: int | None) -> list[Vector]:
    """Return the embeddings of texts: (width,) each, or the first `dimensions` columns, of length 1 if wanted."""
    rows = []
    for number, row in enumerate(answers.outputs):
        if dimensions is not None and dimensions > len(row):
            raise RequestError(f"dimensions is {dimensions}, but the model's embeddings have {len(row)}; ask for fewer")
        vector = row[:dimensions].astype(np.float64)
        length = float(np.linalg.norm(vector))
        if not np.isfinite(length):
            raise ModelFailed(f"the embedding of text {number} is not finite; the model's weights overflow on it")
        rows.append((vector / max(length, 1e-12) if normalize else vector).astype(np.float32))
    return rows


def openai_embeddings(
    model: ServedModel, rows: Sequence[Vector], answers: Answers, encoding: str | None
) -> dict[str, Any]:
    """Return embeddings as OpenAI's API does."""
    data = [
        {
            "object": "embedding",
            "index": number,
            "embedding": base64.b64encode(row.astype("<f4").tobytes()).decode() if encoding == "base64" else row,
        }
        for number, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": answers.tokens, "total_tokens": answers.tokens}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}


def sequences(inputs: str | Sequence[str] | Sequence[Sequence[str] | str]) -> tuple[list[Text], bool]:
    """Return the texts or pairs in `inputs` of /predict, and whether they are a batch.

    As in text-embeddings-inference, a list of two strings is a pair; a batch is a list of lists.
    """
    if isinstance(inputs, str):
        return [inputs], False
    if all(isinstance(each, str) for each in inputs):
        return [_sequence([str(each) for each in inputs])], False
    return [each if isinstance(each, str) else _sequence(each) for each in inputs], True


def _sequence(parts: Sequence[str]) -> Text:
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        return (parts[0], parts[1])
    raise RequestError(
        f"{len(parts)} strings are neither a text nor a pair; send a batch as a list of lists: [[text], [text, text]]"
    )


def predictions(
    model: ServedModel, texts: Sequence[Text], answers: Answers, body: PredictBody
) -> list[list[dict[str, Any]]]:
    """Return labels with scores for each text, the highest score first; a regression's score has the label's name."""
    parameters = body.parameters
    raw = bool(body.raw_scores) or (parameters is not None and parameters.function_to_apply == "none")
    if parameters is not None and parameters.function_to_apply in ("sigmoid", "softmax"):
        raise RequestError("function_to_apply is the model's own here; leave it out, or say none for logits")
    found = []
    for number, (text, logits) in enumerate(zip(texts, answers.outputs, strict=True)):
        try:
            decoded = model.decode(text, logits)
        except HasheeError as error:
            raise ModelFailed(f"text {number}: {error}") from None
        if raw:
            scores = dict(zip(model.labels, logits.tolist(), strict=True))
        else:
            scores = decoded["scores"] if "scores" in decoded else {model.labels[0]: decoded["score"]}
        ordered = sorted(scores.items(), key=lambda item: -item[1])
        rows = [{"label": label, "score": score} for label, score in ordered]
        found.append(rows if parameters is None or parameters.top_k is None else rows[: parameters.top_k])
    return found


def ranks(answers: Answers, body: RerankBody) -> list[dict[str, Any]]:
    """Return the texts by falling score: logits, or their sigmoid."""
    logits = np.concatenate(answers.outputs).astype(np.float64)
    if not np.isfinite(logits).all():
        raise ModelFailed("the model's scores are not finite; its weights overflow on these texts")
    scores = logits if body.raw_scores else np.exp(-np.logaddexp(0, -logits))
    found = []
    # By logit: sigmoids of large ones are all 1.
    for index in np.argsort(-logits, kind="stable").tolist():
        text = {"text": body.texts[index]} if body.return_text else {}
        found.append({"index": index, **text, "score": float(scores[index])})
    return found
