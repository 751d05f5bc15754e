"""sentence-transformers objects (SentenceTransformer, CrossEncoder, SparseEncoder): the Hugging Face model inside."""

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hashee.errors import UnsupportedModel


def is_sentence_model(model: Any) -> bool:
    """Say whether an object is one of sentence-transformers' models, without importing it."""
    return isinstance(model, nn.Module) and any(
        base.__module__.partition(".")[0] == "sentence_transformers" for base in type(model).__mro__
    )


def transformer_inside(model: nn.Module) -> PreTrainedModel:
    """Return the one Hugging Face model that such an object runs its texts through."""
    found: list[PreTrainedModel] = []
    for module in model.modules():
        inside_another = any(module is not outer and module in outer.modules() for outer in found)
        if isinstance(module, PreTrainedModel) and not inside_another:
            found.append(module)
    if len(found) != 1:
        raise UnsupportedModel(
            f"this {type(model).__name__} holds {len(found)} transformers models; exits are for those with one"
        )
    return found[0]


def with_transformer(model: nn.Module, old: PreTrainedModel, new: PreTrainedModel) -> Any:
    """Return a copy of such an object with another Hugging Face model inside; it shares all other tensors."""
    memo: dict[int, Any] = {id(old): new}
    for tensor in (*model.parameters(), *model.buffers()):
        memo[id(tensor)] = tensor
    return copy.deepcopy(model, memo)
