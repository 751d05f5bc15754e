"""Clusters of embeddings exit in the order of their mean norm."""

import sys
import warnings

import pytest
import torch
from transformers import BertConfig, BertModel, PreTrainedTokenizerBase

from hashee.errors import HasheeError, TableError, TableMismatch
from hashee.tables import clusters
from hashee.tables.table import ExitTable

pytest.importorskip("sklearn")


def three_clusters(vocab_size: int) -> torch.Tensor:
    """Return a matrix with tight clusters: norm 2 for most ids, 3 for every fifth, 1 for the last two."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.zeros(vocab_size, 8)
    matrix[:, 0] = 2
    matrix[::5] = 0
    matrix[::5, 1] = 3
    matrix[-2:] = 0
    matrix[-2:, 2] = 1
    return matrix + 0.01 * torch.randn(matrix.shape, generator=generator)


def test_the_mean_norm_decides_not_the_sum(tokenizer: PreTrainedTokenizerBase) -> None:
    matrix = three_clusters(len(tokenizer))
    table = ExitTable.by_clusters(tokenizer, matrix, 12, num_buckets=3)
    special = set(tokenizer.all_special_ids) | {5}
    for token_id, exit_layer in enumerate(table.exit_layers.tolist()):
        if token_id in special:
            assert exit_layer == 12
        else:
            assert exit_layer == {1: 1, 2: 5, 3: 9}[round(float(matrix[token_id].norm()))]
    # Sums of norms would order the three differently: the large cluster of norm 2 has by far the largest.
    norms = matrix.norm(dim=1)
    sums = [float(norms[norms.round() == norm].sum()) for norm in (1, 2, 3)]
    assert sums[0] < sums[2] < sums[1]
    assert table.method == "clusters" and table.corpus is None and table.occurrences is None


def test_large_clusters_of_short_vectors_come_first(tokenizer: PreTrainedTokenizerBase) -> None:
    matrix = torch.ones(len(tokenizer), 4) + 0.01 * torch.randn(len(tokenizer), 4)
    matrix[-1] = 10.0
    table = ExitTable.by_clusters(tokenizer, matrix, 2)
    assert float(matrix[6:-1].norm(dim=1).sum()) > float(matrix[-1].norm())
    assert table.exit_layers[6:].tolist() == [1] * (len(tokenizer) - 7) + [2]


def test_the_seed_settles_the_clusters(tokenizer: PreTrainedTokenizerBase) -> None:
    matrix = torch.randn(len(tokenizer), 8, generator=torch.Generator().manual_seed(1))
    tables = [ExitTable.by_clusters(tokenizer, matrix, 6, seed=seed) for seed in (0, 0, 1)]
    assert tables[0] == tables[1]
    assert tables[0].parameters == {"num_buckets": 6, "min_exit": 1, "seed": 0}
    assert tables[0].fingerprint != tables[2].fingerprint


def test_large_vocabularies_are_clustered_in_mini_batches(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = three_clusters(len(tokenizer))
    full = ExitTable.by_clusters(tokenizer, matrix, 3)
    monkeypatch.setattr(clusters, "_MOST_ROWS_FOR_FULL_KMEANS", 10)
    assert ExitTable.by_clusters(tokenizer, matrix, 3) == full


def test_a_model_is_as_good_as_its_matrix_and_spare_rows_never_exit(tokenizer: PreTrainedTokenizerBase) -> None:
    config = BertConfig(
        vocab_size=len(tokenizer) + 5, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    model = BertModel(config)
    table = ExitTable.by_clusters(tokenizer, model, 4, num_buckets=2, min_exit=0)
    matrix = model.get_input_embeddings().weight
    assert table == ExitTable.by_clusters(tokenizer, matrix, 4, num_buckets=2, min_exit=0)
    assert table == ExitTable.by_clusters(tokenizer, matrix.to(torch.float64), 4, num_buckets=2, min_exit=0)
    assert len(table) == config.vocab_size
    assert table.exit_layers[len(tokenizer) :].tolist() == [4] * 5
    assert set(table.exit_layers.tolist()) == {0, 3, 4}


def test_equal_vectors_share_a_layer(tokenizer: PreTrainedTokenizerBase) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # k-means warns that it finds fewer clusters than asked for
        table = ExitTable.by_clusters(tokenizer, torch.ones(len(tokenizer), 4), 6)
    assert set(table.exit_layers[6:].tolist()) == {1}


def test_unusable_matrices_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(TableMismatch, match=f"has 5 rows but the tokenizer has {len(tokenizer)}"):
        ExitTable.by_clusters(tokenizer, torch.ones(5, 4), 2)
    with pytest.raises(TableError, match="NaN"):
        ExitTable.by_clusters(tokenizer, torch.full((len(tokenizer), 4), torch.nan), 2)
    with pytest.raises(TableError, match="no embedding matrix"):
        ExitTable.by_clusters(tokenizer, torch.ones(len(tokenizer)), 2)
    with pytest.raises(TableError, match="meta device"):
        ExitTable.by_clusters(tokenizer, torch.ones(len(tokenizer), 4, device="meta"), 2)
    with pytest.raises(TableError, match="num_buckets=1000 is more than"):
        ExitTable.by_clusters(tokenizer, torch.ones(len(tokenizer), 4), 2, num_buckets=1000)


def test_without_scikit_learn_the_error_names_the_extra(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(HasheeError, match=r'pip install "hashee\[clusters\]"'):
        ExitTable.by_clusters(tokenizer, torch.ones(len(tokenizer), 4), 2)
