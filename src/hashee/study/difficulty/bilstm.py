"""A bidirectional LSTM with one layer of 256, on word embeddings that start from the backbone's."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from hashee.data.batching import Batching, make_batches
from hashee.data.splits import first_of_shuffled
from hashee.data.tokenized import Tokenized
from hashee.study.difficulty.datasets import LABELS, DifficultySet, flat_targets
from hashee.study.difficulty.features import backbone_of, tokenized_by
from hashee.study.difficulty.judgement import judge, merit
from hashee.study.difficulty.predictor import CURVE_EXAMPLES, Fitted, PredictorSettings
from hashee.study.difficulty.results import Epoch
from hashee.study.difficulty.sampling import Splits
from hashee.training.outputs import Batch, batch_of
from hashee.training.trainer import Steps

Array = NDArray[Any]
HIDDEN = 256
EPOCHS = 5.0
RATE = 1e-3
BATCH = 64
DROPOUT = 0.3


class BiLstm(nn.Module):
    """Reads tokens in both directions; an output for each layer, of a text or of each of its words."""

    def __init__(self, embeddings: Tensor, outputs: int) -> None:
        """embeddings: (vocabulary, width), which are fine-tuned."""
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(embeddings.clone(), freeze=False)
        self.lstm = nn.LSTM(embeddings.shape[1], HIDDEN, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(DROPOUT)
        self.out = nn.Linear(2 * HIDDEN, outputs)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits: (texts or words, layers)."""
        lengths = batch.mask.sum(dim=1).cpu()
        embedded = self.dropout(self.embed(batch.inputs["input_ids"]))
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        if batch.words is not None:
            rows = states.flatten(0, 1).index_select(0, batch.words)
        else:
            rows = states.masked_fill(~batch.mask[..., None], -torch.inf).amax(dim=1)
        logits: Tensor = self.out(self.dropout(rows))
        return logits


class BiLstmPredictor:
    """One layer of 256 in each direction, its maximum over the text or its state at each word."""

    name = "BiLSTM"
    reads_backbone = True

    def refuse(self, data: DifficultySet, settings: PredictorSettings) -> None:
        """Refuse nothing."""

    def fit(self, splits: Splits, settings: PredictorSettings, work: Path) -> Fitted:
        """Train with binary cross entropy over layers; keep the pass that is best on dev."""
        backbone = backbone_of(splits, settings)
        embeddings = backbone.load(settings.seed).get_input_embeddings().weight.detach().float()
        some = first_of_shuffled(splits.seen, CURVE_EXAMPLES, settings.seed)
        parts = {"train": splits.train, "some": some, "dev": splits.dev, "test": splits.test}
        tokenized = {name: tokenized_by(backbone, settings, examples) for name, examples in parts.items()}
        targets = {name: flat_targets(splits.level, examples) for name, examples in parts.items()}
        torch.manual_seed(settings.seed)
        model = BiLstm(embeddings, len(splits.task.labels))
        curve: list[Epoch] = []
        best: dict[str, Tensor] = {}
        for epoch in _train(model, tokenized["train"], settings):
            found = {
                name: judge(probabilities(model, tokenized[name]), targets[name]) for name in ("some", "dev", "test")
            }
            score = merit(splits.level, found["dev"])
            if all(score > each.dev for each in curve):
                best = copy.deepcopy(model.state_dict())
            curve.append(Epoch(epoch, found["some"].accuracy, found["test"].accuracy, score))
        model.load_state_dict(best)
        return Fitted(probabilities(model, tokenized["test"]), tuple(curve))


def _train(model: BiLstm, train: Tokenized, settings: PredictorSettings) -> Iterator[int]:
    """Train for some passes, and yield after each."""
    epochs = round(settings.epochs or EPOCHS)
    steps = Steps(len(train), BATCH, settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate or RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, epochs * len(steps))
    loss_of = LABELS.loss
    for epoch in range(epochs):
        model.train()
        steps.set_epoch(epoch)
        for indices in steps:
            batch = batch_of(train, indices)
            assert batch.targets is not None  # sets of difficulties are labelled
            loss = loss_of(model(batch), batch.targets) / max(len(batch.targets), 1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        yield epoch + 1


def probabilities(model: BiLstm, tokenized: Tokenized) -> Array:
    """Return the probabilities that layers are right: (instances, layers), NaN for words that were truncated."""
    model.eval()
    rows: dict[int, Array] = {}
    with torch.no_grad():
        for indices in make_batches([row.tolist() for row in tokenized.ids], None, Batching()):
            batch = batch_of(tokenized, indices)
            found = F.sigmoid(model(batch)).numpy()
            counts = tokenized.items[indices]
            for index, part in zip(indices, np.split(found, np.cumsum(counts)[:-1]), strict=True):
                rows[index] = _with_lost_words(part, None if tokenized.starts is None else tokenized.starts[index])
    return np.concatenate([rows[index] for index in range(len(tokenized))])


def _with_lost_words(part: Array, starts: Array | None) -> Array:
    if starts is None:
        return part
    whole = np.full((len(starts), part.shape[1]), np.nan, dtype=part.dtype)
    whole[starts >= 0] = part
    return whole
