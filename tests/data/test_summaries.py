"""Summaries as a type of task: how documents and summaries are read, learnt and compared."""

from pathlib import Path

import pytest
import torch
from task_files import Record, write_rows

from hashee.data import Columns, Kind, Task, load_task, score
from hashee.data.task_types import TASK_TYPES
from hashee.data.task_types.rouge import chrf, rouge, written_without_spaces
from hashee.errors import InputError

TASK = Task("news", Kind.SUMMARIES, (), "rouge1")


def mails(document: str = "document", summary: str = "summary") -> list[Record]:
    return [{document: f"Dear all, meeting {number} is at noon.", summary: f"meeting {number}"} for number in range(40)]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(("document", "summary"), [("document", "summary"), ("email", "subject"), ("text", "title")])
def test_columns_are_guessed(tmp_path: Path, ending: str, document: str, summary: str) -> None:
    data = load_task(write_rows(tmp_path / f"mails.{ending}", mails(document, summary)), kind="summarization")
    assert data.task.kind is Kind.SUMMARIES
    assert data.task.metric == "rouge1"
    assert data.task.recipe.learning_rate == 3e-5
    assert len(data.train) + len(data.dev) == 40
    assert data.train.targets is not None
    assert data.train.texts[0].startswith("Dear all")  # type: ignore[union-attr]
    assert data.train.targets[0].startswith("meeting")  # type: ignore[union-attr]


def test_columns_can_be_named_and_a_folder_has_splits(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("dev", 9), ("test", 7)):
        rows = [{"long": f"{split} mail {number}", "short": f"{split} {number}"} for number in range(count)]
        write_rows(tmp_path / f"{split}.jsonl", rows)
    data = load_task(tmp_path, kind="summarization", columns=Columns(text="long", label="short"))
    assert data.test is not None
    assert (len(data.train), len(data.dev), len(data.test)) == (40, 9, 7)
    with pytest.raises(InputError, match=r"lacks a column that looks like text.*long, short"):
        load_task(tmp_path, kind="summarization")
    with pytest.raises(InputError, match=r"has no column of summaries.*--label-column.*long, short"):
        load_task(tmp_path, kind="summarization", columns=Columns(text="long"))


def test_a_summary_that_looks_like_a_number_stays_a_text(tmp_path: Path) -> None:
    rows = [{"document": f"A year in the life, {number}.", "summary": f"00{number}"} for number in range(30)]
    data = load_task(write_rows(tmp_path / "years.csv", rows), kind="summarization")
    assert data.train.targets is not None
    assert all(isinstance(target, str) and target.startswith("00") for target in data.train.targets)


def test_the_kind_is_named_where_the_columns_are_those_of_summaries(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "mails.jsonl", [{"document": "a", "summary": "b"}, {"document": "c", "summary": "d"}])
    with pytest.raises(InputError, match="--kind summarization"):
        load_task(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"document": "a text", "summary": ""}, r"has no label \(null, empty.* in line 5"),
        ({"document": "a text", "summary": None}, r"has no label \(null, empty.* in line 5"),
        ({"document": " ", "summary": "short"}, "has a blank text in line 5"),
        ({"document": "a text", "summary": 7}, "line 5: the summary is of type int; it must be a string"),
        ({"document": None, "summary": "short"}, "line 5: the text is missing"),
    ],
)
def test_rows_without_document_or_summary_are_named(tmp_path: Path, row: Record, message: str) -> None:
    path = write_rows(tmp_path / "mails.jsonl", [*mails()[:4], row, *mails()[4:]])
    with pytest.raises(InputError, match=message):
        load_task(path, kind="summarization")


def test_an_empty_column_of_summaries_is_refused(tmp_path: Path) -> None:
    rows = [{"document": f"mail {number}", "summary": ""} for number in range(30)]
    with pytest.raises(InputError, match=r"has no label .* in line"):
        load_task(write_rows(tmp_path / "mails.csv", rows), kind="summarization")


@pytest.mark.data
@pytest.mark.parametrize("name", ["AESLC", "AmazonFood-summary", "SciTLDR-A", "XSum", "RedditTIFU", "CNN-DailyMail"])
def test_named_tasks(name: str) -> None:
    data = load_task(name)
    assert data.task.kind is Kind.SUMMARIES
    assert len(data.train) >= 200


@pytest.mark.data
def test_csl_is_trained_on_its_dev_split() -> None:
    data = load_task("csl")
    assert len(data.train) == 900
    assert any("dev is trained on" in note for note in data.notes)


# --- comparing ---------------------------------------------------------------------------------------------


def test_rouge_of_texts_computed_by_hand() -> None:
    found = rouge(["the cat sat"], ["the cat sat on the mat"])
    # 3 of 3 words are right, of 6 that there are; 2 of 2 pairs of 5; the subsequence is 3 words long.
    assert found["rouge1"] == pytest.approx(2 * 1 * 0.5 / 1.5)
    assert found["rouge2"] == pytest.approx(2 * 1 * 0.4 / 1.4)
    assert found["rougeL"] == pytest.approx(2 * 1 * 0.5 / 1.5)
    assert rouge(["", "a b"], ["x y", "a b"])["rouge1"] == 0.5
    assert rouge(["meetings"], ["meeting"])["rouge1"] == 1.0


def test_chinese_is_compared_by_characters() -> None:
    assert written_without_spaces(["飞行器控制", "BERT 模型的应用研究"])
    assert not written_without_spaces(["a control of 飞行器 and others", "Überblick"])
    found = rouge(["飞行控制"], ["飞行器的控制"])
    assert found["rouge1"] == pytest.approx(2 * 1 * (4 / 6) / (1 + 4 / 6))
    assert found["rouge2"] == pytest.approx(2 * (2 / 3) * (2 / 5) / (2 / 3 + 2 / 5))
    # By English words, of which there are none, nothing is found.
    assert rouge(["飞行控制"], ["飞行器的控制"], characters=False)["rouge1"] == 0.0
    assert rouge(["ab cd"], ["ab xy"], characters=True)["rouge1"] == 0.5


def test_chrf_is_that_of_sacrebleu() -> None:
    import sacrebleu

    texts, references = ["le chat est ici", "bonjour"], ["le chat est assis ici", "bonsoir"]
    assert chrf(texts, references) == pytest.approx(sacrebleu.corpus_chrf(texts, [references]).score / 100)
    assert chrf(references, references) == pytest.approx(1.0)


def test_scores_have_all_three_and_the_metric() -> None:
    found = score(TASK, ["a b", "c"], ["a b", "d"])
    assert found == {"rouge1": 0.5, "rouge2": 0.5, "rougeL": 0.5, "score": 0.5}
    with pytest.raises(InputError, match="prediction 1 of news is a int; a summary is a string"):
        score(TASK, ["a", 2], ["a", "b"])


def test_label_smoothing_is_part_of_the_loss() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(5, 7), torch.tensor([0, 6, 3, 3, 1])
    task_type = TASK_TYPES[Kind.SUMMARIES]
    logs = logits.log_softmax(-1)
    picked = -logs[torch.arange(5), targets].sum()
    expected = 0.9 * picked - 0.1 * logs.mean(-1).sum()
    torch.testing.assert_close(task_type.loss(logits, targets), expected)
    torch.testing.assert_close(task_type.smoothed(0.0).loss(logits, targets), picked)
