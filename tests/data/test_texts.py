"""Texts come out of every format as they went in, lazily, and bad files are refused in one line."""

import csv
import gzip
import json
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashee.data.texts import read_labelled, read_numbered, read_rows, read_texts
from hashee.errors import InputError

TEXTS = ["A good film.", "“Señor”, said he: \u2028 no!", "  leading, and\ttab", 'a "quoted" word', "0"]


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    if path.suffix == ".gz":
        data = gzip.compress(data)
    path.write_bytes(data)
    return path


def jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def refused(path: Path, *parts: str, **columns: str) -> None:
    with pytest.raises(InputError) as caught:
        list(read_texts(path, **columns))
    message = str(caught.value)
    assert "\n" not in message
    for part in (path.name, *parts):
        assert part in message


# --- formats ---


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_plain_text_is_one_text_a_line_without_empty_lines(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"corpus{ending}", "\n".join([TEXTS[0], "", *TEXTS[1:], "   ", ""]))
    assert list(read_texts(path)) == TEXTS


def test_windows_line_ends_and_byte_order_marks_are_not_text(tmp_path: Path) -> None:
    assert list(read_texts(write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n"))) == ["one", "two"]
    assert list(read_texts(write(tmp_path / "a.csv", b"\xef\xbb\xbftext,label\r\none,1\r\n"))) == ["one"]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_jsonl(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"corpus{ending}", jsonl([{"id": 1, "text": text} for text in TEXTS]) + "\n")
    assert list(read_texts(path)) == TEXTS


@given(texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1), min_size=1))
def test_csv_returns_what_was_written(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("csv") / "corpus.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["label", "text"], *(["1", text] for text in texts)])
    assert list(read_texts(path)) == texts


def test_csv_fields_may_be_longer_than_pythons_limit(tmp_path: Path) -> None:
    long = "word " * 60_000
    assert list(read_texts(write(tmp_path / "a.csv", f"text\n{long}\n"))) == [long]


def test_quotes_in_tsv_are_ordinary_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv.gz", 'text\tlabel\n"an open quote\t1\nnext "line"\t0\n')
    assert list(read_labelled(path)) == [('"an open quote', 1), ('next "line"', 0)]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [f"text {number}" for number in range(1000)]
    table = pyarrow.table({"other": list(range(1000)), "text": texts, "score": [number / 2 for number in range(1000)]})
    parquet.write_table(table, tmp_path / "corpus.parquet", row_group_size=300)
    assert list(read_texts(tmp_path / "corpus.parquet")) == texts
    assert list(read_labelled(tmp_path / "corpus.parquet"))[999] == ("text 999", 499.5)
    refused(write(tmp_path / "broken.parquet", b"PAR1 but not really"), "parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(write(tmp_path / "a.parquet", b"PAR1"), 'pip install "hashee[parquet]"')


def test_several_files_follow_each_other_each_with_its_own_columns(tmp_path: Path) -> None:
    first = write(tmp_path / "a.txt", "one\n")
    second = write(tmp_path / "b.jsonl", jsonl([{"premise": "two", "hypothesis": "three"}]))
    assert list(read_texts([first, str(second)])) == ["one", ("two", "three")]


# --- columns ---


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("text sentence document", "text"),
        ("sentence2 sentence1 sentence", ("sentence1", "sentence2")),
        ("hypothesis premise document", ("premise", "hypothesis")),
        ("document sentence", "sentence"),
        ("summary document", "document"),
        ("sentence1 sentence", "sentence"),
    ],
)
def test_columns_are_guessed_in_a_fixed_order(tmp_path: Path, columns: str, expected: object) -> None:
    path = write(tmp_path / "a.jsonl", jsonl([{name: name for name in columns.split()}]))
    assert list(read_texts(path)) == [expected]


def test_named_columns_win_over_guesses(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", jsonl([{"text": "t", "title": "x", "body": "y"}]))
    assert list(read_texts(path, column="title")) == ["x"]
    assert list(read_texts(path, column="title", pair_column="body")) == [("x", "y")]


def test_lists_of_words_are_joined(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", jsonl([{"tokens": ["Empire", "State"], "tags": ["B", "I"]}]))
    assert list(read_texts(path, column="tokens")) == ["Empire State"]


def test_column_errors_list_the_columns_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", jsonl([{"body": "x", "title": "y"}]))
    refused(path, "body, title")
    refused(path, "'text'", "body, title", column="text")
    refused(path, "'missing'", column="body", pair_column="missing")
    with pytest.raises(InputError, match="needs column="):
        list(read_texts(path, pair_column="title"))
    with pytest.raises(InputError, match=r"'label' or 'score'.*body, title"):
        list(read_labelled(path, column="body"))
    refused(write(tmp_path / "b.jsonl", '{"text": "a"}\n{"txt": "b"}\n'), "line 2", "'text'", "txt")
    refused(write(tmp_path / "c.txt", "one\n"), "without columns", column="text")


# --- labels ---


def test_labels_are_guessed_and_keep_their_type(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", jsonl([{"text": "a", "label": 1, "score": 0.5}, {"text": "b", "label": "no"}]))
    assert list(read_labelled(path)) == [("a", 1), ("b", "no")]
    score = write(tmp_path / "b.jsonl", jsonl([{"sentence1": "a", "sentence2": "b", "score": 5.0}]))
    assert list(read_labelled(score)) == [(("a", "b"), 5.0)]
    assert list(read_labelled(write(tmp_path / "c.jsonl", '{"text": "a", "gold": true}'), "gold")) == [("a", 1)]


def test_numbers_in_csv_labels_become_numbers(tmp_path: Path) -> None:
    labels = ["1", "-2", "+3", "2.5", ".5", "1e3", "nan", "inf", "yes", "1_000", "", "1.2.3"]
    path = write(tmp_path / "a.csv", "text,label\n" + "".join(f"t,{label}\n" for label in labels))
    read = [label for _, label in read_labelled(path)]
    assert read == [1, -2, 3, 2.5, 0.5, 1000.0, "nan", "inf", "yes", "1_000", "", "1.2.3"]
    assert [type(label) for label in read[:4]] == [int, int, int, float]


@pytest.mark.parametrize("label", ["null", "[1]", "{}"])
def test_labels_that_are_no_labels_are_refused(tmp_path: Path, label: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "a", "label": {label}}}\n')
    with pytest.raises(InputError, match="line 1: the label is"):
        list(read_labelled(path))


# --- damage ---


def test_files_that_cannot_be_read_are_refused_before_reading(tmp_path: Path) -> None:
    for path, reason in [
        (tmp_path / "missing.jsonl", "does not exist"),
        (tmp_path, "is a folder"),
        (write(tmp_path / "a.docx", "x"), ".jsonl"),
        (write(tmp_path / "a.parquet.gz", "x"), ".parquet"),
        (write(tmp_path / "plain.gz", "x"), ".jsonl"),
    ]:
        with pytest.raises(InputError, match=reason):
            read_texts(path)  # not even iterated
    with pytest.raises(InputError, match="plain text"):
        read_rows(write(tmp_path / "a.txt", "x"), tuple)


def test_broken_json_is_reported_with_its_line(tmp_path: Path) -> None:
    refused(write(tmp_path / "a.jsonl", '{"text": "a"}\n\n{"text": "b"\n'), "line 3", "not valid JSON")
    refused(write(tmp_path / "b.jsonl", '["a"]\n'), "line 1", "list")
    refused(write(tmp_path / "c.jsonl", '{"text": "a"}\n{"text": 5}\n'), "line 2", "of type int")
    refused(write(tmp_path / "d.jsonl", '{"text": null}\n'), "line 1", "missing")
    refused(write(tmp_path / "e.jsonl", '{"text": ' + "[" * 100_000), "line 1")


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv", ".tsv"])
def test_bytes_that_are_not_utf8_are_reported_with_their_line(tmp_path: Path, ending: str) -> None:
    rows = {".jsonl": b'{"text": "a"}\n{"text": "b"}\n{"text": "\xe9"}\n'}.get(ending, b"text\nb\n\xe9\n")
    refused(write(tmp_path / f"a{ending}", rows), "line 3", "UTF-8")


def test_broken_csv_is_reported_with_the_line_it_starts_on(tmp_path: Path) -> None:
    refused(write(tmp_path / "a.csv", 'text,label\n"two\nlines",1\nx,1,2\n'), "line 4", "3 fields", "2")
    refused(write(tmp_path / "b.csv", 'text\na\n"never closed\nb\n'), "line 3", "not valid CSV")


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"text number {number}\n" for number in range(5000)).encode())
    truncated, garbled, plain = tmp_path / "a.txt.gz", tmp_path / "b.txt.gz", tmp_path / "c.txt.gz"
    truncated.write_bytes(whole[: len(whole) // 2])
    garbled.write_bytes(whole[:500] + b"\x00" * 200 + whole[700:])
    plain.write_bytes(b"no gzip at all\n")
    refused(truncated, "truncated")
    refused(garbled, "cannot read")
    refused(plain, "cannot read")


def test_what_comes_before_the_damage_is_still_read(tmp_path: Path) -> None:
    texts = read_texts(write(tmp_path / "a.jsonl", '{"text": "a"}\nbroken\n'))
    assert next(texts) == "a"


# --- memory ---


@pytest.mark.parametrize("ending", [".txt.gz", ".jsonl.gz", ".csv.gz", ".parquet"])
def test_a_file_is_never_held_in_memory(tmp_path: Path, ending: str) -> None:
    count, text = 20_000, "word " * 50
    path = tmp_path / f"corpus{ending}"
    if ending == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": [text] * count}), path)
    else:
        line = json.dumps({"text": text}) if ending == ".jsonl.gz" else text
        write(path, "text\n" * (ending == ".csv.gz") + f"{line}\n" * count)
    next(read_texts(path))  # imports and buffers
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_texts(path)) == count
        assert tracemalloc.get_traced_memory()[1] < count * len(text) / 4
    finally:
        tracemalloc.stop()


def test_half_a_surrogate_pair_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "fine"}\n{"text": "\\ud83d"}\n')
    with pytest.raises(InputError, match=r"texts\.jsonl, line 2: the text holds half of a surrogate pair"):
        list(read_texts(path))
    path.write_text('{"text": ["a", "\\udcff"]}\n')
    with pytest.raises(InputError, match="line 1: the text holds half"):
        list(read_texts(path))
    path.write_text('{"text": "\\ud83d\\ude00"}\n')
    assert list(read_texts(path)) == ["\U0001f600"], "a whole pair is a character"


def test_numbers_are_those_of_lines(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a\n\n  \nb\n")
    assert list(read_numbered(tmp_path / "texts.txt")) == [(1, "a"), (4, "b")]
    (tmp_path / "texts.csv").write_text('text\n"a\nb"\nc\n')
    assert list(read_numbered(tmp_path / "texts.csv")) == [(2, "a\nb"), (4, "c")]
