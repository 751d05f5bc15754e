"""What a budget counts: the speed-up of a table on given texts, and on new ones of the same kind."""

import numpy as np
import pytest
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerBase

import hashee
from architectures import converted, make_config, make_exits, make_ids, make_model
from hashee.errors import InputError
from hashee.tables.budget import Budget
from hashee.tables.table import ExitTable
from made_up_texts import CONFIG, TRAIN


@pytest.mark.parametrize("reads_first_row", [False, True])
@pytest.mark.parametrize("exits_kind", ["full depth", "random exits", "exits at 0"])
@pytest.mark.parametrize("family", ["bert", "albert", "mpnet", "bart"])
def test_speedups_are_those_of_count_flops(family: str, exits_kind: str, reads_first_row: bool) -> None:
    table = ExitTable.from_tensor(make_exits(exits_kind), num_layers=4)
    ids = [make_ids(batch=1, length=length, seed=length)[0].tolist() for length in (3, 12, 1, 30)]
    budget = Budget.of(2, make_config(family), ids, reads_first_row=reads_first_row, held_out=True)
    count = hashee.count_flops(make_config(family), ids, table, reads_first_row=reads_first_row)
    speedup = budget.speedup_of(table.exit_layers.numpy(), 4, counted=True)
    assert speedup == pytest.approx(count.speedup, rel=1e-12)


def test_the_depth_without_exits_is_the_models_unless_told() -> None:
    ids, layers = make_ids().tolist(), make_exits("random exits", layers=2).numpy()
    table = ExitTable.from_tensor(layers, num_layers=2)
    for depth in (4, 2):
        config = make_config("bert", num_hidden_layers=depth)
        count = hashee.count_flops(config, ids, table).speedup
        assert Budget.of(2, config, ids).speedup_of(layers, 2, counted=False) == pytest.approx(count, rel=1e-12)
        told = Budget.of(2, make_config("bert"), ids, full_layers=depth)
        assert told.speedup_of(layers, 2, counted=False) == pytest.approx(count, rel=1e-12)


def test_a_model_tells_what_its_head_reads() -> None:
    classifier, encoder = make_model("bert", AutoModelForSequenceClassification), make_model("bert", AutoModel)
    exits = make_exits("full depth")
    for model, first in ((classifier, True), (encoder, False), (make_model("bart"), False), (encoder.config, False)):
        assert Budget.of(2, model, make_ids()).reads_first_row is first
    assert Budget.of(2, converted(classifier, exits), make_ids()).reads_first_row
    assert not Budget.of(2, converted(encoder, exits), make_ids()).reads_first_row
    assert not Budget.of(2, classifier, make_ids(), reads_first_row=False).reads_first_row


def test_costs_of_updates_add_up_to_full_depth() -> None:
    budget = Budget.of(2, CONFIG, TRAIN)
    never = np.full(CONFIG.vocab_size, 6)
    full = hashee.count_flops(CONFIG, TRAIN, ExitTable.never(CONFIG.vocab_size, 6)).executed_macs
    assert budget.update_costs(6).sum() * len(budget.ids) == pytest.approx(full)
    assert budget.speedup_of(never, 6, counted=False) >= 1
    # Of the last layer a classifier reads one row, so updates of the others are free there.
    costs = Budget.of(2, CONFIG, TRAIN, reads_first_row=True).update_costs(6)
    assert costs[-1] < 0.5 * costs[-2]


def test_texts_count_like_their_ids(words: PreTrainedTokenizerBase) -> None:
    texts = [" ".join(words.convert_ids_to_tokens(text)) for text in TRAIN[:20]]
    budget = Budget.of(2, CONFIG, texts, words)
    assert budget.ids.tolist() == [token for text in TRAIN[:20] for token in text]
    assert budget.lengths.tolist() == [len(text) for text in TRAIN[:20]]


def test_rare_types_stand_in_for_each_other() -> None:
    # Types by the number of texts: 10 in all four, 11 and 12 in two, 13, 14 and 15 in one.
    texts = [[10, 11, 13, 13], [10, 11, 12], [10, 12, 14], [10, 15]]
    budget = Budget.of(2, CONFIG, texts)
    exits = np.full(CONFIG.vocab_size, 6)
    exits[[13, 14, 15]] = 1
    # As new texts: 13, 14, 15 are unseen; the four places of 11 and 12 go to types of one text.
    as_new = budget._ids_as_new
    assert as_new[budget.ids == 10].tolist() == [10] * 4
    assert set(as_new[np.isin(budget.ids, [13, 14, 15])]) == {-1}
    assert sorted(as_new[np.isin(budget.ids, [11, 12])]) == [13, 13, 14, 15]
    expected = hashee.count_flops(CONFIG, [[10, 1, 6, 6], [10, 1, 1], [10, 1, 6], [10, 6]], toy_table())
    assert budget.speedup_of(exits, 6, counted=True) == pytest.approx(expected.speedup)
    plain = hashee.count_flops(CONFIG, texts, ExitTable.from_tensor(exits, 6))
    assert budget.speedup_of(exits, 6, counted=False) == pytest.approx(plain.speedup)


def test_a_sample_knows_how_rare_types_are_in_the_whole_corpus() -> None:
    texts_with = np.zeros(CONFIG.vocab_size, dtype=np.int64)
    texts_with[[10, 11, 12, 13]] = 1000, 40, 2, 1
    texts = [[10, 11, 13], [10, 12, 12]]
    as_new = Budget.of(2, CONFIG, texts, texts_with=texts_with)._ids_as_new
    # 13 is unseen but for its own text, 12 is then as rare as 13; 11 is in one of these texts but in many others.
    assert as_new.tolist() == [10, 11, -1, 10, 13, 13]
    assert Budget.of(2, CONFIG, texts)._ids_as_new.tolist() == [11, -1, -1, 12, -1, -1]
    with pytest.raises(InputError, match="texts_with has 13 tokens, but token id 13"):
        Budget.of(2, CONFIG, texts, texts_with=texts_with[:13])


def toy_table() -> ExitTable:
    """Return a table in which id 1 exits at layer 1 and all others never."""
    exits = np.full(CONFIG.vocab_size, 6)
    exits[1] = 1
    return ExitTable.from_tensor(exits, 6)
