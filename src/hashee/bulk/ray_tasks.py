"""What tables are built from, of one chunk of texts: tasks on the nodes of a Ray cluster, which import little else."""

from functools import cache
from typing import Any

import torch

from hashee.data.texts import Text
from hashee.data.tokenized import tokenized_texts
from hashee.hf.opening import open_tokenizer
from hashee.hf.text_models import TextModel, open_text_model
from hashee.tables.counting import Class, TokenCounts, count_tokens
from hashee.tables.measuring import Importance


def count_chunk(folder: str, texts: list[Text], labels: list[Class] | None) -> TokenCounts:
    """Count the tokens of some texts with the tokenizer of a folder."""
    return count_tokens(_tokenizer(folder), texts, labels, progress=False)


def measure_chunk(folder: str, texts: list[Text], seed: int) -> Importance:
    """Measure what updates are worth to the outputs of the model of a folder on some texts."""
    from hashee.distillation.tables import importance_of  # noqa: PLC0415  # imports all of training

    model = _model(folder)
    return importance_of(model, tokenized_texts(model.tokenize, texts), seed=seed)


# A process of Ray runs many tasks, and opens what they share once.
@cache
def _tokenizer(folder: str) -> Any:
    return open_tokenizer(folder)


@cache
def _model(folder: str) -> TextModel:
    torch.set_num_threads(1)
    return open_text_model(folder)
