"""Examples become ids and targets that belong together, in any batch."""

from typing import Any

import numpy as np
import pytest
from fitting_data import TAGS, make_examples

from hashee.data.task import Examples, Kind, Task
from hashee.data.tokenized import ExampleTokenizer
from hashee.errors import InputError
from hashee.training.evaluation import predictions

TAGGING = Task("tags", Kind.TAGS, TAGS, "tag_accuracy")


def test_tags_stand_at_the_first_token_of_their_word(tokenizer: Any) -> None:
    # zebra is spelt in five pieces; the second text is too long for 8 tokens.
    words = [("zebra", "sat"), ("the", "cat", "zebra", "dog")]
    encoded = ExampleTokenizer(TAGGING, tokenizer, 8, token_types=True)(Examples(words, [(1, 0), (0, 1, 2, 1)]))
    assert encoded.starts is not None
    assert encoded.starts[0].tolist() == [1, 6]
    assert encoded.starts[1].tolist() == [1, 2, 3, -1]
    assert encoded.items.tolist() == [2, 3]
    inputs, rows = encoded.inputs([1, 0]), encoded.word_rows([1, 0])
    assert rows is not None
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"].flatten()[rows].tolist())
    assert tokens == ["the", "cat", "z", "z", "sat"]
    assert encoded.batch_targets([1, 0]).tolist() == [0, 1, 2, 1, 0]


def test_words_that_were_cut_off_are_outside_every_span() -> None:
    logits = np.array([[0.0, 2.0, 1.0], [np.nan] * 3], dtype=np.float32)
    assert predictions(TAGGING, [logits]) == [(1, 0)]


@pytest.mark.parametrize("kind", [Kind.CLASSES, Kind.SCORE, Kind.LABELS])
def test_batches_are_what_the_tokenizer_makes_of_the_texts(tokenizer: Any, kind: Kind) -> None:
    examples = make_examples(kind, pair=True, count=20, seed=3)
    task = Task("pairs", kind, ("a", "b"), "accuracy", pair=True)
    encoded = ExampleTokenizer(task, tokenizer, 64, token_types=True)(examples)
    places = [7, 2, 11]
    firsts, seconds = ([examples.texts[place][side] for place in places] for side in (0, 1))
    wanted = tokenizer(firsts, seconds, padding=True, return_tensors="pt", return_token_type_ids=True)
    inputs = encoded.inputs(places)
    assert set(inputs) == set(wanted)
    assert all((inputs[name] == wanted[name]).all() for name in wanted)
    assert examples.targets is not None
    assert encoded.batch_targets(places).tolist() == [
        list(target) if isinstance(target, tuple) else target
        for target in (examples.targets[place] for place in places)
    ]


def test_examples_without_answers_can_be_encoded_but_not_learnt_from(tokenizer: Any) -> None:
    task = Task("plain", Kind.CLASSES, ("a", "b"), "accuracy")
    encoded = ExampleTokenizer(task, tokenizer, 64, token_types=False)(Examples(["the film"], None))
    assert "token_type_ids" not in encoded.inputs([0])
    with pytest.raises(InputError, match="no labels"):
        encoded.batch_targets([0])
