"""Tables by importance from labelled rows: tokenized as models read them, with labels that the model knows."""

from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification

from architectures import make_model
from hashee.data import Examples, Kind, Task, TaskData
from hashee.errors import InputError
from hashee.tables.labelled import measured_on
from small_tokenizer import make_tokenizer

PAIRS = [(("the film is good", "it was good"), 1), (("the cat sat on it", "a bad film"), 0)] * 4


def make_classifier(tokenizer: Any) -> Any:
    return make_model("bert", AutoModelForSequenceClassification, vocab_size=len(tokenizer), num_labels=2)


def test_pairs_have_token_types_even_where_the_tokenizer_leaves_them_out() -> None:
    tokenizer, without = make_tokenizer(), make_tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    assert 1 in tokenizer("a", "b")["token_type_ids"] and "token_type_ids" not in without("a", "b")
    model = make_classifier(tokenizer)
    one, other = (measured_on(model, PAIRS, 1.2, tokenizer=each, progress=False) for each in (tokenizer, without))
    assert np.array_equal(one.importance.absolute, other.importance.absolute) and one.importance.absolute.any()
    assert one.budget.ids.tolist() == other.budget.ids.tolist()


def test_rows_that_cannot_be_measured_are_one_clear_line() -> None:
    tokenizer = make_tokenizer()
    model = make_classifier(tokenizer)
    with pytest.raises(InputError, match="the model knows no label 'fine'"):
        measured_on(model, [("the film", "fine")], 2.0, tokenizer=tokenizer)
    with pytest.raises(InputError, match="not a single text"):
        measured_on(model, [], 2.0, tokenizer=tokenizer)
    words = Examples([("the", "cat")], [(0, 1)])
    tagging = TaskData(Task("names", Kind.TAGS, ("O", "B"), "tag_accuracy"), words, words, None, "")
    with pytest.raises(InputError, match="tags are for words"):
        measured_on(model, tagging, 2.0, tokenizer=tokenizer)
