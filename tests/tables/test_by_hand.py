"""Tables written down by hand say exactly what was written, and errors point at the line."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from hashee.errors import InputError, TableError, TableMismatch
from hashee.tables.table import ExitTable


def test_a_mapping_sets_its_tokens_and_leaves_the_rest_at_the_last_layer(tokenizer: PreTrainedTokenizerBase) -> None:
    table = ExitTable.from_mapping(tokenizer, {"the": 0, "cat": 2}, 6)
    expected = [6] * len(tokenizer)
    expected[tokenizer.convert_tokens_to_ids("the")] = 0
    expected[tokenizer.convert_tokens_to_ids("cat")] = 2
    assert table.exit_layers.tolist() == expected
    table.check(tokenizer=tokenizer)


def test_the_default_reaches_neither_special_tokens_nor_spare_rows(tokenizer: PreTrainedTokenizerBase) -> None:
    table = ExitTable.from_mapping(tokenizer, {"the": 1}, 6, default=3, vocab_size=len(tokenizer) + 2)
    the = tokenizer.convert_tokens_to_ids("the")
    assert table.exit_layers.tolist() == [
        6 if token_id < 6 or token_id >= len(tokenizer) else 1 if token_id == the else 3
        for token_id in range(len(tokenizer) + 2)
    ]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"the": 1, "zork": 2}, "no token 'zork'"),
        ({"the": 7}, "'the' exits at layer 7; use a layer from 0 to 6"),
        ({"the": -1}, "'the'=-1"),
        ({"the": 1.5}, "'the'=1.5"),
        ({"[CLS]": 3}, r"special token '\[CLS\]' must exit at the last layer"),
    ],
)
def test_impossible_mappings_are_refused_by_token(
    tokenizer: PreTrainedTokenizerBase, mapping: dict[str, int], message: str
) -> None:
    with pytest.raises(TableError, match=message):
        ExitTable.from_mapping(tokenizer, mapping, 6)
    with pytest.raises(TableError, match="default=9"):
        ExitTable.from_mapping(tokenizer, {}, 6, default=9)


def test_a_file_says_the_same_as_a_mapping(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    path = tmp_path / "exits.csv"
    path.write_text('layer,note,token\n1,common,the\n6,,[CLS]\n2,,","\n', encoding="utf-8")
    from_file = ExitTable.from_csv(tokenizer, path, 6, default=4)
    from_mapping = ExitTable.from_mapping(tokenizer, {"the": 1, ",": 2}, 6, default=4)
    assert torch.equal(from_file.exit_layers, from_mapping.exit_layers)
    assert from_file.method == "csv"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("token,layer\nthe,1\nzork,2\n", "line 3: the tokenizer has no token 'zork'"),
        ("token,layer\nthe,one\n", "line 2: the layer of 'the' is 'one'"),
        ("token,layer\nthe,9\n", "line 2: token 'the' exits at layer 9"),
        ("token,layer\nthe,1\ncat,2\nthe,3\n", "line 4: token 'the' has a layer since line 2"),
        ("token,layer\n[SEP],1\n", "line 2: special token"),
        ("word,layer\nthe,1\n", "columns token and layer; it has: word, layer"),
    ],
)
def test_errors_in_a_file_point_at_the_line(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, rows: str, message: str
) -> None:
    path = tmp_path / "exits.csv"
    path.write_text(rows, encoding="utf-8")
    with pytest.raises(TableError, match=message):
        ExitTable.from_csv(tokenizer, path, 6)


def test_broken_files_are_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        ExitTable.from_csv(tokenizer, tmp_path / "exits.csv", 6)
    (tmp_path / "exits.csv").write_text("token,layer\nthe,1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2: 3 fields"):
        ExitTable.from_csv(tokenizer, tmp_path / "exits.csv", 6)


@given(layers=st.lists(st.integers(0, 12), min_size=1, max_size=50))
def test_a_tensor_is_taken_as_it_is(layers: list[int]) -> None:
    for given_layers in (layers, torch.tensor(layers, dtype=torch.uint8), torch.tensor(layers).numpy()):
        table = ExitTable.from_tensor(given_layers)
        assert table.exit_layers.tolist() == layers
        assert table.num_layers == max(1, *layers, 1)


def test_a_tensor_must_cover_the_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    table = ExitTable.from_tensor([1] * len(tokenizer), 4, tokenizer=tokenizer)
    assert table.num_layers == 4
    table.check(tokenizer=tokenizer)
    with pytest.raises(TableMismatch, match="covers 3 tokens"):
        ExitTable.from_tensor([1, 2, 3], tokenizer=tokenizer)
