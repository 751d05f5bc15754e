"""What the layers of a dense model do for each token type, measured in one pass over texts.

To first order, leaving out layer l's update of a token changes a loss by `-g . (h_l - h_(l-1))`, where h are its states
and g is the gradient of the loss after layer l. One backward pass gives it for all tokens and layers at once.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import PreTrainedModel

from hashee.engine.structure import share_tensors
from hashee.errors import InputError, TableError, UnsupportedModel
from hashee.families.adapters import adapter_for
from hashee.tables.choices import Movement, Prior, Signal
from hashee.tables.counting import CorpusInfo
from hashee.tables.importance import Importance, Shrinkage
from hashee.tables.reliability import PARTS, part_of
from hashee.tables.vocabulary import tokenizer_fingerprint

__all__ = [
    "Importance",
    "Movement",
    "Prior",
    "Shrinkage",
    "Signal",
    "measure_importance",
    "measure_movement",
    "measure_projections",
]

GROUPS = "groups"
"""Entry of a batch: rows with the same number share a text."""
PROJECTIONS = "projections"
"""The signal of `measure_projections`."""
_Option = TypeVar("_Option", bound=StrEnum)


def measure_importance(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    signal: Signal | str = Signal.LOSS,
    tokenizer: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Importance:
    """Measure what each layer's update of each token type is worth to a trained dense model.

    model: a Hugging Face model with its head, or a converted one in which no token exits; it is not changed. batches:
    what its `forward` takes (input_ids, attention_mask, labels, ...), e.g. a DataLoader; they may be cut in any way.
    `groups`, (rows,), if a batch has it, numbers the rows: those with the same number share a text, so that they are
    not independent observations. tokenizer: whose ids these are, to be checked when a table is built. seed: for labels
    that are drawn.
    """
    chosen = _choice(Signal, "signal", signal)
    draws = torch.Generator().manual_seed(seed)

    def effects(batch: dict[str, Tensor], trace: "_Trace", output: Any) -> Tensor:
        objective = _objective(chosen, model.config, batch, output, draws)
        if not bool(torch.isfinite(objective)):
            raise InputError(f"the {chosen} of a batch is {objective.item()}; check its labels and the model's weights")
        gradients = torch.autograd.grad(objective, trace.states[1:])
        return torch.stack(
            [
                -(_precise(gradient) * (new - old)).sum(-1)
                for gradient, (old, new) in zip(gradients, trace.steps(), strict=True)
            ],
            dim=-1,
        )

    with torch.enable_grad():
        return _measure(model, batches, effects, signal=str(chosen), tokenizer=tokenizer, progress=progress)


def measure_movement(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    by: Movement | str = Movement.DISTANCE,
    tokenizer: Any = None,
    progress: bool = True,
) -> Importance:
    """Measure how far the states of each token type still move in each layer: no labels, no head, no backward pass.

    The rest is as in `measure_importance`.
    """
    chosen = _choice(Movement, "by", by)

    def effects(batch: dict[str, Tensor], trace: "_Trace", output: Any) -> Tensor:
        return torch.stack([_movement(chosen, old, new) for old, new in trace.steps()], dim=-1)

    with torch.no_grad():
        importance = _measure(model, batches, effects, signal=str(chosen), tokenizer=tokenizer, progress=progress)
    return replace(importance, signed=None)


def measure_projections(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    outputs: Callable[..., Tensor],
    *,
    projections: int = 2,
    tokenizer: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Importance:
    """Measure what each layer's update of each token type is worth to the outputs around a dense model; no labels.

    outputs: from the batch, by keywords, to (rows, ...) embeddings, scores or states, computed with `model`. An effect
    is the root mean square of the changes of random projections of a row's outputs. The rest is as in
    `measure_importance`.
    """
    draws = torch.Generator().manual_seed(seed)

    def effects(batch: dict[str, Tensor], trace: "_Trace", found: Tensor) -> Tensor:
        if not bool(torch.isfinite(found).all()):
            raise InputError("the outputs of a batch hold NaN or infinity; check the model's weights")
        squares: Any = 0
        for number in range(projections):
            # Signs, so that the projection of a single score is the score.
            signs = torch.randint(0, 2, found.shape, generator=draws).to(found) * 2 - 1
            kept = number < projections - 1
            gradients = torch.autograd.grad((_precise(found) * signs).sum(), trace.states[1:], retain_graph=kept)
            steps = zip(gradients, trace.steps(), strict=True)
            changes = torch.stack([(_precise(each) * (new - old)).sum(-1) for each, (old, new) in steps], dim=-1)
            squares = squares + changes.square()
        effect: Tensor = (squares / projections).sqrt()
        return effect

    with torch.enable_grad():
        options: dict[str, Any] = {"signal": PROJECTIONS, "tokenizer": tokenizer, "progress": progress}
        importance = _measure(model, batches, effects, run=outputs, **options)
    return replace(importance, signed=None)


# --- one pass ----------------------------------------------------------------------------------------------


def _measure(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    effects: Callable[[dict[str, Tensor], "_Trace", Any], Tensor],
    *,
    signal: str,
    tokenizer: Any,
    progress: bool,
    run: Callable[..., Any] | None = None,
) -> Importance:
    """Add up over all real tokens what `effects` returns for a batch: (rows, length, layers).

    run: what is called with a batch, if not the model itself.
    """
    model = _dense(model)
    tally = _Tally(
        cast(Any, model.get_input_embeddings()).num_embeddings, adapter_for(model.config).shape(model.config).layers
    )
    total = len(batches) if isinstance(batches, Sized) else None
    with _evaluating(model), _traced(model) as trace:
        for batch in tqdm(batches, total=total, desc="measuring", unit=" batches", disable=None if progress else True):
            if "input_ids" not in batch:
                raise InputError(
                    f"a batch holds {', '.join(batch)} but no input_ids; pass what the model's forward takes"
                )
            here = {name: value.to(model.device) for name, value in batch.items()}
            groups = here.pop(GROUPS, None)
            trace.states.clear()
            output = (run or model)(**here)
            tally.add(here["input_ids"], here.get("attention_mask"), effects(here, trace, output), groups)
    return tally.importance(signal, None if tokenizer is None else tokenizer_fingerprint(tokenizer))


class _Tally:
    """Running sums over token types."""

    def __init__(self, vocab_size: int, layers: int) -> None:
        self.absolute = torch.zeros(vocab_size, layers, dtype=torch.float64)
        self.signed = torch.zeros(vocab_size, layers, dtype=torch.float64)
        self.counts = torch.zeros(vocab_size, dtype=torch.int64)
        self.parts = torch.zeros(PARTS, 2, vocab_size, dtype=torch.float64)
        self.num_texts = 0
        self.fingerprint = 0

    def add(self, ids: Tensor, mask: Tensor | None, effects: Tensor, groups: Tensor | None = None) -> None:
        """Add a batch. ids, mask: (..., length); effects: (rows, length, layers); groups: (...,)."""
        # Choices of one question come as one more dimension, which models flatten too.
        ids = ids.flatten(0, -2).cpu()
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.flatten(0, -2).cpu() != 0
        types, values = ids[real], effects.detach().cpu()[real].double()
        if not bool(torch.isfinite(values).all()):
            raise InputError("the states of a batch hold NaN or infinity; check the model's weights")
        self.absolute.index_add_(0, types, values.abs())
        self.signed.index_add_(0, types, values)
        self.counts.index_add_(0, types, torch.ones_like(types))
        self.num_texts += len(ids)
        digests = [_digest(row[kept]) for row, kept in zip(ids, real, strict=True)]
        self.fingerprint = (self.fingerprint + sum(map(int.from_bytes, digests))) % (1 << 256)
        if groups is not None:
            if groups.ndim != 1 or not len(groups) or len(ids) % len(groups):
                raise InputError(f"groups of shape {tuple(groups.shape)} do not number the {len(ids)} rows of a batch")
            digests = [_digest(group) for group in groups.cpu().repeat_interleave(len(ids) // len(groups))]
        part = torch.tensor([part_of(digest) for digest in digests])[:, None].expand_as(ids)[real]
        each = torch.stack([torch.ones_like(types, dtype=torch.float64), values.abs().sum(-1)])
        for number in range(PARTS):
            here = part == number
            self.parts[number].index_add_(1, types[here], each[:, here])

    def importance(self, signal: str, tokenizer: str | None) -> Importance:
        """Return the sums."""
        if not self.num_texts:
            raise TableError("there is not a single batch to measure on; if they come from a generator, it is used up")
        corpus = CorpusInfo(self.num_texts, int(self.counts.sum()), f"{self.fingerprint:064x}")
        parts = self.parts.permute(2, 1, 0).contiguous().numpy()
        return Importance(
            self.absolute.numpy(), self.signed.numpy(), self.counts.numpy(), signal, corpus, tokenizer, parts
        )


def _digest(ids: Tensor) -> bytes:
    return hashlib.sha256(ids.numpy().astype("<i8").tobytes()).digest()


@dataclass(frozen=True)
class _Trace:
    """The states of the batch that ran last, before the first layer and after each exit layer."""

    states: list[Tensor] = field(default_factory=list)
    """Each (rows, length, width), as the model goes on with them."""

    def steps(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the states before and after each exit layer, without their history."""
        return pairwise(_precise(state.detach()) for state in self.states)


@contextmanager
def _traced(model: PreTrainedModel) -> Iterator[_Trace]:
    """Keep the states of every batch that a dense model runs while the context lasts."""
    adapter = adapter_for(model.config)
    found = adapter.encoder_in(model)
    if found is None:
        raise UnsupportedModel(f"{type(model).__name__} holds no {adapter.encoder_class.__name__} to measure")
    encoder = found[1]
    layers = adapter.layers(encoder)
    trace, block = _Trace(), 0

    def start(module: Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal block
        if trace.states:  # a layer that runs again (ALBERT)
            return None
        block = 0
        # Gradients end here: those of the embeddings are not needed, and a frozen model has gradients all the same.
        trace.states.append(inputs[0].detach().requires_grad_(torch.is_grad_enabled()))
        return (trace.states[0], *inputs[1:])

    def keep(module: Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal block
        state = output[0] if isinstance(output, tuple) else output
        # Of several blocks in one exit layer (ALBERT) the last one's state counts.
        del trace.states[adapter.exit_layer(encoder, block) :]
        trace.states.append(state)
        block += 1

    handles = [layers[0].register_forward_pre_hook(start)]
    handles += [layer.register_forward_hook(keep) for layer in dict.fromkeys(layers)]
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Switch dropout off while the context lasts."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _dense(model: PreTrainedModel) -> PreTrainedModel:
    """Return the model, or the dense twin of a converted one, whose layers can be traced; parameters are shared."""
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(f"{type(model).__name__} is not a transformers model; pass the model inside")
    dense_class = getattr(type(model), "dense_class", None)
    if dense_class is None:
        return model
    table: Any = model.exit_table
    if int(table.exit_layers.min()) < table.num_layers:
        raise UnsupportedModel(
            "tokens exit in this model, so what later updates are worth cannot be measured; take a dense model, "
            "or one that was converted with ExitTable.never and trained so"
        )
    fields = model.config.to_dict()
    settings = fields.pop("hashee")
    adapter = adapter_for(model.config)
    if settings["source_layers"] != table.num_layers and fields.get("num_hidden_groups", 1) > 1:
        raise UnsupportedModel("several groups of shared layers that were cut in depth have no dense twin to measure")
    with torch.device("meta"):
        twin: PreTrainedModel = dense_class(adapter.config_class.from_dict(fields | {"model_type": adapter.model_type}))
    share_tensors(model, twin)
    twin.eval()
    return twin


# --- what is measured --------------------------------------------------------------------------------------


def _objective(signal: Signal, config: Any, batch: dict[str, Tensor], output: Any, draws: torch.Generator) -> Tensor:
    """Return the quantity that a signal is about, as a sum over the predictions of a batch; lower is better."""
    logits = getattr(output, "logits", None)
    if signal is Signal.LOSS:
        if getattr(output, "loss", None) is None:
            raise InputError("the model returned no loss; add labels to the batches, or use signal='sampled'")
        # Losses are means: over the texts, or over the tokens with a label.
        tokens = logits is not None and logits.ndim == 3
        loss: Tensor = output.loss * (int((batch["labels"] != -100).sum()) if tokens else len(batch["input_ids"]))
        return loss
    if logits is None:
        raise InputError(
            f"signal={str(signal)!r} needs a head with logits, which this model lacks; see measure_movement"
        )
    logits = _precise(_rows_with_logits(config, batch, logits))
    compute = _sampled_loss if signal is Signal.SAMPLED else _negated_margin
    return compute(logits, getattr(config, "problem_type", None) == "multi_label_classification", draws)


def _rows_with_logits(config: Any, batch: dict[str, Tensor], logits: Tensor) -> Tensor:
    """Return the logits of texts, or of tokens that are not padding. (predictions, labels)"""
    if logits.ndim < 3:
        return logits
    if config.is_encoder_decoder:
        return logits[batch["labels"] != -100] if "labels" in batch else logits.flatten(0, 1)
    return logits[batch["attention_mask"] != 0] if "attention_mask" in batch else logits.flatten(0, 1)


def _sampled_loss(logits: Tensor, multi_label: bool, draws: torch.Generator) -> Tensor:
    """Return the loss on labels drawn from the model's predictions, text by text. logits: (predictions, labels)"""
    if logits.shape[-1] == 1:
        noise = torch.randn(logits.shape, generator=draws, dtype=torch.float64).to(logits)
        return 0.5 * (logits - (logits.detach() + noise)).square().sum()
    if multi_label:
        drawn = torch.rand(logits.shape, generator=draws, dtype=torch.float64).to(logits) < logits.sigmoid()
        return F.binary_cross_entropy_with_logits(logits, drawn.to(logits), reduction="sum")
    drawn = torch.rand((len(logits), 1), generator=draws, dtype=torch.float64).to(logits)
    labels = (logits.softmax(-1).cumsum(-1) < drawn).sum(-1).clamp_max(logits.shape[-1] - 1)
    return F.cross_entropy(logits, labels, reduction="sum")


def _negated_margin(logits: Tensor, multi_label: bool, draws: torch.Generator) -> Tensor:
    """Return the negated margins of the predictions, or negated scores. logits: (predictions, labels)"""
    if logits.shape[-1] == 1:
        return -logits.sum()
    if multi_label:
        return -logits.abs().sum()
    highest = logits.max(dim=-1).values
    others = (logits.sum(-1) - highest) / (logits.shape[-1] - 1)
    return (others - highest).sum()


def _movement(by: Movement, old: Tensor, new: Tensor) -> Tensor:
    """Return how far states moved. old, new: (rows, length, width). (rows, length)"""
    if by is Movement.ANGLE:
        turned: Tensor = 1 - F.cosine_similarity(old, new, dim=-1)
        return turned
    share: Tensor = (new - old).norm(dim=-1) / new.norm(dim=-1).clamp_min(1e-12)
    return share


def _precise(values: Tensor) -> Tensor:
    """Return values in at least single precision."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _choice(options: type[_Option], name: str, value: str) -> _Option:
    try:
        return options(value)
    except ValueError:
        raise InputError(f"{name}={value!r} is unknown; use one of {', '.join(options)}") from None
