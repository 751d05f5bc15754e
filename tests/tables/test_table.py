"""A table is what it was built as: validated, immutable, recognisable, and equal after a way through files."""

import copy
import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerBase

from hashee.errors import TableError, TableMismatch
from hashee.files import sha256_of_file
from hashee.tables.counting import CorpusInfo, count_tokens
from hashee.tables.table import ExitTable, tokenizer_fingerprint

TEXTS = ["the cat sat on the mat", "a great film", "the dog"]


@pytest.fixture(scope="module")
def table(tokenizer: PreTrainedTokenizerBase) -> ExitTable:
    return ExitTable.by_frequency(tokenizer, TEXTS, 6, num_buckets=3)


# --- construction ---


@pytest.mark.parametrize(
    ("layers", "num_layers", "message"),
    [
        (torch.tensor([[1, 2]]), 2, r"shape \(1, 2\)"),
        (torch.tensor([], dtype=torch.int64), 2, r"shape \(0,\)"),
        (torch.tensor(1), 2, r"shape \(\)"),
        (torch.tensor([1.0, 2.0]), 2, "torch.float32"),
        (torch.tensor([True]), 2, "torch.bool"),
        (torch.tensor([1, 3, 2]), 2, "token id 1 exits at layer 3; use layers from 0 to 2"),
        (torch.tensor([0, 1, -1]), 2, "token id 2 exits at layer -1"),
        (torch.tensor([1]), 0, "num_layers=0"),
        (torch.tensor([1]), 1.0, "num_layers=1.0"),
        (["one"], 1, "whole numbers"),
    ],
)
def test_impossible_tables_are_refused_with_value_and_remedy(layers: object, num_layers: int, message: str) -> None:
    with pytest.raises(TableError, match=message):
        ExitTable(layers, num_layers)


def test_fields_are_validated() -> None:
    with pytest.raises(TableError, match="must be JSON values"):
        ExitTable(torch.tensor([1]), 1, parameters={"model": object()})
    with pytest.raises(TableError, match="must be JSON values"):
        ExitTable(torch.tensor([1]), 1, parameters={"weight": float("nan")})
    with pytest.raises(TableError, match="occurrences has 1 entries"):
        ExitTable(torch.tensor([1]), 1, occurrences=(5,))


def test_a_table_keeps_its_layers_whatever_becomes_of_the_source() -> None:
    source, parameters = torch.tensor([1, 2, 3]), {"weights": [1, 2]}
    table = ExitTable(source, 3, parameters=parameters)
    before = table.fingerprint
    source[0] = 3
    parameters["weights"].append(3)
    table.metadata()["parameters"]["weights"].append(4)
    assert table.fingerprint == before
    assert table.parameters == {"weights": [1, 2]}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_layers_are_int64_on_the_cpu(dtype: torch.dtype) -> None:
    with torch.device("meta"):  # as when a model is being constructed
        table = ExitTable.from_tensor(torch.tensor([1, 2], dtype=dtype, device="cpu"))
        random = ExitTable.at_random(5, 2).resized(9)
    assert table.exit_layers.dtype == random.exit_layers.dtype == torch.int64
    assert table.exit_layers.device == random.exit_layers.device == torch.device("cpu")


def test_never_is_full_depth(tokenizer: PreTrainedTokenizerBase) -> None:
    assert ExitTable.never(4, 7).exit_layers.tolist() == [7] * 4
    table = ExitTable.never(tokenizer, 7, vocab_size=100)
    assert table.exit_layers.tolist() == [7] * 100
    assert table.tokenizer_fingerprint == tokenizer_fingerprint(tokenizer)


# --- identity ---


def test_fingerprint_depends_on_layers_and_depth_only() -> None:
    layers = torch.tensor([1, 2, 1])
    same = [ExitTable(layers, 2), ExitTable(layers, 2, method="other", corpus=CorpusInfo(1, 2, "ab"))]
    assert same[0].fingerprint == same[1].fingerprint
    assert same[0] != same[1]
    others = [ExitTable(layers, 3), ExitTable(layers.flip(0).roll(1), 2), ExitTable(layers[:2], 2)]
    assert len({table.fingerprint for table in [*same, *others]}) == 4


def test_fingerprints_never_change() -> None:
    # Saved tables carry them: the depth in ASCII, a space, and little-endian 64-bit layers.
    expected = hashlib.sha256(b"3 " + struct.pack("<4q", 0, 1, 2, 3)).hexdigest()
    assert ExitTable.from_tensor([0, 1, 2, 3]).fingerprint == expected


def test_copies_are_equal_and_hash_alike(table: ExitTable) -> None:
    assert copy.deepcopy(table) == table
    assert hash(copy.deepcopy(table)) == hash(table)
    assert table != "table"


# --- resizing and checking ---


def test_resized_tables_keep_old_ids_and_send_new_ones_to_the_last_layer(table: ExitTable) -> None:
    larger = table.resized(len(table) + 3)
    assert larger.exit_layers.tolist() == [*table.exit_layers.tolist(), 6, 6, 6]
    assert larger.occurrences == table.occurrences
    assert larger.resized(len(table)).exit_layers.tolist() == table.exit_layers.tolist()
    assert table.resized(5).exit_layers.tolist() == table.exit_layers[:5].tolist()
    assert table.resized(5).occurrences is None
    with pytest.raises(TableError, match="vocab_size=0"):
        table.resized(0)


def test_a_table_fits_its_own_tokenizer_and_deeper_models(table: ExitTable, tokenizer: PreTrainedTokenizerBase) -> None:
    table.check()
    table.check(tokenizer=tokenizer, vocab_size=len(tokenizer), num_layers=6)
    table.check(num_layers=12)
    table.resized(200).check(tokenizer=tokenizer, vocab_size=200)


def test_mismatches_say_what_to_do(table: ExitTable, own_tokenizer: PreTrainedTokenizerBase) -> None:
    size = len(own_tokenizer)
    with pytest.raises(TableMismatch, match=f"covers {size} tokens.*vocabulary has 100; .*table.resized\\(100\\)"):
        table.check(vocab_size=100)
    with pytest.raises(TableMismatch, match="vocabulary has 10;"):
        table.check(vocab_size=10)
    with pytest.raises(TableMismatch, match="made for 6 layers but the model has 4; rebuild it with num_layers=4"):
        table.check(num_layers=4)
    with pytest.raises(TableMismatch, match=f"covers 7 tokens but the tokenizer has {size}; rebuild it with ExitTable"):
        ExitTable.never(7, 6).check(tokenizer=own_tokenizer)


def test_a_grown_tokenizer_fits_once_the_table_is_resized(
    table: ExitTable, tokenizer: PreTrainedTokenizerBase, own_tokenizer: PreTrainedTokenizerBase
) -> None:
    own_tokenizer.add_tokens(["zork"])
    with pytest.raises(TableMismatch, match=f"tokens were added, so use table.resized\\({len(own_tokenizer)}\\)"):
        table.check(tokenizer=own_tokenizer)
    table.resized(len(own_tokenizer)).check(tokenizer=own_tokenizer)
    # The reverse does not hold: a table for the grown tokenizer knows tokens that the original lacks.
    grown = ExitTable.never(own_tokenizer, 6)
    with pytest.raises(TableMismatch, match="made for another tokenizer"):
        grown.check(tokenizer=tokenizer)


def test_a_table_without_fingerprint_is_checked_by_size(tokenizer: PreTrainedTokenizerBase) -> None:
    ExitTable.never(len(tokenizer), 6).check(tokenizer=tokenizer)


# --- describing ---


def test_describe_lists_every_layer_with_types_and_occurrences(
    table: ExitTable, tokenizer: PreTrainedTokenizerBase
) -> None:
    lines = table.describe(tokenizer).splitlines()
    assert lines[0].startswith("ExitTable(frequency, 81 tokens, 6 layers") and "num_buckets=3" in lines[0]
    assert lines[1] == "corpus of 3 texts and 11 tokens"
    rows = {int(line.split()[0]): line.split()[1:] for line in lines[3:]}
    assert list(rows) == [1, 2, 3, 4, 5, 6]
    types = np.bincount(table.exit_layers.numpy(), minlength=7)
    assert [int(row[0]) for row in rows.values()] == types[1:].tolist()
    assert [int(row[1]) for row in rows.values()] == list(table.occurrences or ())[1:]
    assert rows[1][:5] == ["3", "5", "45.5%", "the", "a"]


def test_describe_shows_layer_0_only_where_it_is_used(tokenizer: PreTrainedTokenizerBase) -> None:
    early = ExitTable.by_frequency(tokenizer, TEXTS, 2, min_exit=0)
    assert early.describe().splitlines()[3].split()[0] == "0"
    assert ExitTable.by_frequency(tokenizer, TEXTS, 2).describe().splitlines()[3].split()[0] == "1"


def test_describe_takes_occurrences_from_any_corpus(tokenizer: PreTrainedTokenizerBase) -> None:
    table = ExitTable.at_random(tokenizer, 2)
    assert table.describe().splitlines()[-1].split() == ["2", str(int((table.exit_layers == 2).sum())), "-", "-"]
    counts = count_tokens(tokenizer, TEXTS)
    assert "corpus of 3 texts and 11 tokens" in table.describe(counts=counts)
    assert sum(table.occurrences_in(counts)) == 11
    with pytest.raises(TableMismatch, match="counts cover 81 tokens but the table only 5"):
        ExitTable.never(5, 2).describe(counts=counts)


def test_text_forms_are_short(table: ExitTable) -> None:
    assert (
        str(table) == repr(table) == f"ExitTable(frequency, 81 tokens, 6 layers, fingerprint {table.fingerprint[:12]})"
    )


# --- files ---

corpora = st.none() | st.builds(CorpusInfo, st.integers(0), st.integers(0), st.text("0123456789abcdef"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def tables(draw: st.DrawFn) -> ExitTable:
    num_layers = draw(st.integers(1, 40))
    layers = draw(st.lists(st.integers(0, num_layers), min_size=1, max_size=100))
    occurrences = st.lists(st.integers(0, 2**60), min_size=num_layers + 1, max_size=num_layers + 1).map(tuple)
    return ExitTable(
        torch.tensor(layers),
        num_layers,
        draw(st.text()),
        draw(st.dictionaries(st.text(), values, max_size=3)),
        draw(corpora),
        draw(st.none() | st.text("0123456789abcdef")),
        draw(st.none() | occurrences),
    )


@given(table=tables())
def test_saved_tables_load_equal(tmp_path_factory: pytest.TempPathFactory, table: ExitTable) -> None:
    folder = tmp_path_factory.mktemp("table")
    table.save(folder)
    loaded = ExitTable.load(folder)
    assert loaded == table
    assert torch.equal(loaded.exit_layers, table.exit_layers)
    assert sorted(path.name for path in folder.iterdir()) == ["exit_table.json", "exit_table.safetensors"]


@given(table=tables())
def test_a_table_comes_back_from_its_parts(table: ExitTable) -> None:
    metadata = json.loads(json.dumps(table.metadata()))
    assert ExitTable.from_parts(table.exit_layers.to(torch.int32), metadata) == table


def test_loading_checks_tokenizer_and_depth(
    table: ExitTable, own_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    table.save(tmp_path / "a" / "b")
    assert ExitTable.load(str(tmp_path / "a" / "b"), tokenizer=own_tokenizer, num_layers=6) == table
    with pytest.raises(TableMismatch, match="6 layers but the model has 3"):
        ExitTable.load(tmp_path / "a" / "b", num_layers=3)
    own_tokenizer.add_tokens(["zork"])
    with pytest.raises(TableMismatch, match="tokens were added"):
        ExitTable.load(tmp_path / "a" / "b", tokenizer=own_tokenizer)


def test_a_table_can_be_saved_over_another(table: ExitTable, tmp_path: Path) -> None:
    ExitTable.never(5, 2).save(tmp_path)
    table.save(tmp_path)
    assert ExitTable.load(tmp_path) == table


@pytest.mark.parametrize("name", ["exit_table.json", "exit_table.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped"])
def test_damaged_files_are_refused(table: ExitTable, tmp_path: Path, name: str, damage: str) -> None:
    table.save(tmp_path)
    path = tmp_path / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        flipped = data[:-20] + bytes([data[-20] ^ 0xFF]) + data[-19:]
        path.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "flipped": flipped}[damage])
    with pytest.raises(TableError, match=name) as caught:
        ExitTable.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no exit table in"):
        ExitTable.load(tmp_path / "nowhere")


def test_files_of_two_tables_do_not_mix(table: ExitTable, tmp_path: Path) -> None:
    table.save(tmp_path / "one")
    ExitTable.at_random(len(table), 6).save(tmp_path / "two")
    other = tmp_path / "two" / "exit_table.safetensors"
    (tmp_path / "one" / "exit_table.safetensors").write_bytes(other.read_bytes())
    with pytest.raises(TableError, match=r"does not belong to exit_table\.json"):
        ExitTable.load(tmp_path / "one")


def edit_json(folder: Path, **changes: object) -> None:
    document = folder / "exit_table.json"
    # As before there was a checksum of the metadata, which would refuse every change.
    metadata = json.loads(document.read_text(encoding="utf-8")) | {"metadata_xxh3_128": "dropped"} | changes
    document.write_text(json.dumps({name: value for name, value in metadata.items() if value != "dropped"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format version 2, but this hashee reads up to 1; upgrade"),
        ({"format_version": "dropped"}, "format_version is None"),
        ({"format_version": "1"}, "format_version is '1'"),
        ({"num_layers": 12}, "belong to different tables"),
        ({"num_layers": 3}, "exits at layer"),
        ({"fingerprint": "0" * 64}, "belong to different tables"),
        ({"parameters": "dropped"}, "incomplete or damaged .'parameters'"),
        ({"corpus": {"texts": 3}}, "incomplete or damaged"),
        ({"occurrences": 5}, "incomplete or damaged"),
    ],
)
def test_edited_metadata_is_refused(table: ExitTable, tmp_path: Path, changes: dict[str, object], message: str) -> None:
    table.save(tmp_path)
    if "num_layers" in changes:
        changes = changes | {"occurrences": None}
    edit_json(tmp_path, **changes)
    with pytest.raises(TableError, match=message):
        ExitTable.load(tmp_path)


@pytest.mark.parametrize("content", ["[]", '"table"', "[" * 100_000])
def test_json_that_is_no_metadata_is_refused(table: ExitTable, tmp_path: Path, content: str) -> None:
    table.save(tmp_path)
    (tmp_path / "exit_table.json").write_text(content)
    with pytest.raises(TableError, match=r"exit_table\.json is damaged"):
        ExitTable.load(tmp_path)


def test_tensors_under_another_name_or_no_tensors_at_all_are_refused(table: ExitTable, tmp_path: Path) -> None:
    table.save(tmp_path)
    path = tmp_path / "exit_table.safetensors"
    save_file({"layers": load_file(path)["exit_layers"]}, path)
    edit_json(tmp_path, safetensors_sha256=sha256_of_file(path))
    with pytest.raises(TableError, match="holds no exit_layers"):
        ExitTable.load(tmp_path)
    path.write_bytes(b"\x80\x04 not safetensors")
    edit_json(tmp_path, safetensors_sha256=sha256_of_file(path))
    with pytest.raises(TableError, match="cannot be read"):
        ExitTable.load(tmp_path)


def test_a_crash_while_saving_leaves_the_old_table(
    table: ExitTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.save(tmp_path)

    def crash(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("hashee.tables.storage.save_file", crash)
    with pytest.raises(OSError, match="disk full"):
        ExitTable.never(5, 2).save(tmp_path)
    assert ExitTable.load(tmp_path) == table
    assert len(list(tmp_path.iterdir())) == 2
