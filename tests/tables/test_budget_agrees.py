"""A table for a speed-up has it by `count_flops`, on the texts and for the model that the budget was given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoTokenizer, BertConfig, PreTrainedTokenizerBase

import hashee
from architectures import FAMILIES, converted, make_exits, make_model
from hashee.data.texts import read_texts
from hashee.embedded import minilm_folder
from hashee.families.adapters import ADAPTERS
from hashee.hf.flops import count_flops
from hashee.tables.budget import Budget, Seen
from hashee.tables.counting import count_tokens
from hashee.tables.measuring import measure_movement
from hashee.tables.table import ExitTable
from made_up_texts import CONFIG, NEW, TRAIN, WAYS, Build, Ids, builders, counts_of, made_up_importance

FIRST_ROW, ALL_ROWS = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"


@pytest.fixture(scope="module")
def build(words: PreTrainedTokenizerBase) -> dict[str, Build]:
    return builders(words)


@pytest.fixture(scope="module")
def models(words: PreTrainedTokenizerBase) -> dict[tuple[str, bool], Any]:
    """Models by their head, and whether they are converted."""
    dense = {head: getattr(transformers, head).from_config(CONFIG) for head in (FIRST_ROW, ALL_ROWS)}
    table = ExitTable.at_random(words, 6, vocab_size=CONFIG.vocab_size)
    hashed = {head: hashee.convert(model, table, tokenizer=words) for head, model in dense.items()}
    return {(head, is_hashed): kind[head] for is_hashed, kind in enumerate((dense, hashed)) for head in kind}


def as_texts(words: PreTrainedTokenizerBase, ids: Ids) -> list[str]:
    return [" ".join(words.convert_ids_to_tokens(text)) for text in ids]


@pytest.mark.parametrize("is_converted", [False, True], ids=["dense", "converted"])
@pytest.mark.parametrize("head", [FIRST_ROW, ALL_ROWS])
@pytest.mark.parametrize("way", WAYS)
def test_what_was_asked_for_is_what_count_flops_says(
    build: dict[str, Build], models: Any, words: PreTrainedTokenizerBase, way: str, head: str, is_converted: bool
) -> None:
    model, texts = models[head, is_converted], as_texts(words, NEW)
    for speedup in (1.8, 2.5, 4):
        table = build[way](Budget.of(speedup, model, texts, words), min_exit=0)
        assert count_flops(model, texts, table, words).speedup == pytest.approx(speedup, rel=0.01)
        # Nobody has to say that these are other texts than those that the table was made from.
        assert table == build[way](Budget.of(speedup, model, texts, words, held_out=True), min_exit=0)


@pytest.mark.parametrize("way", ["importance", "frequency", "mutual information"])
def test_on_its_own_texts_a_table_allows_for_tokens_of_new_ones(build: dict[str, Build], way: str) -> None:
    table = build[way](Budget.of(2.5, CONFIG, TRAIN))
    assert count_flops(CONFIG, TRAIN, table).speedup > 1.02 * 2.5
    assert count_flops(CONFIG, NEW, table).speedup == pytest.approx(2.5, rel=0.02)
    assert table == build[way](Budget.of(2.5, CONFIG, TRAIN, held_out=False))


def test_a_budget_knows_the_corpus_of_a_table_when_it_sees_it(words: PreTrainedTokenizerBase) -> None:
    counts, importance = counts_of(words, TRAIN), made_up_importance(words, TRAIN)
    words_only = np.flatnonzero(counts.occurrences)
    by_text = Seen(words_only, counts.occurrences[words_only], counts.num_texts)
    by_ids = Seen(words_only, importance.counts[words_only], importance.corpus.num_texts)
    shuffled = [TRAIN[place] for place in np.random.default_rng(0).permutation(len(TRAIN))]
    for seen in (by_text, by_ids):
        for same in (TRAIN, shuffled):
            assert Budget.of(2, CONFIG, same).is_corpus(seen)
        one_word_changed = [[*TRAIN[0][:-2], (TRAIN[0][-2] + 1) % 4000 + 4, TRAIN[0][-1]], *TRAIN[1:]]
        for other in (NEW, NEW + NEW, TRAIN[:-1], TRAIN[:1], one_word_changed):
            assert not Budget.of(2, CONFIG, other).is_corpus(seen)
        # Somebody who knows better is believed.
        assert Budget.of(2, CONFIG, NEW, held_out=False).is_corpus(seen)
        assert not Budget.of(2, CONFIG, TRAIN, held_out=True).is_corpus(seen)
        texts_with = np.ones(CONFIG.vocab_size, dtype=np.int64)
        assert Budget.of(2, CONFIG, TRAIN[:9], texts_with=texts_with).is_corpus(seen)
    # A table of the whole vocabulary knows all tokens of all texts.
    assert not Budget.of(2, CONFIG, TRAIN, held_out=False).is_corpus(None)


def test_a_corpus_is_known_though_the_model_cuts_its_texts(words: PreTrainedTokenizerBase) -> None:
    counts = counts_of(words, TRAIN)
    ids = np.flatnonzero(counts.occurrences)
    seen = Seen(ids, counts.occurrences[ids], counts.num_texts)
    short = BertConfig(**CONFIG.to_dict() | {"max_position_embeddings": 16})
    budget = Budget.of(2, short, as_texts(words, TRAIN), words)
    assert budget.lengths.max() == 16 < max(map(len, TRAIN))
    assert budget.is_corpus(seen)
    assert not Budget.of(2, short, as_texts(words, 2 * NEW), words).is_corpus(seen)
    # Texts that nothing was cut from and that are shorter all the same are others.
    assert not Budget.of(2, CONFIG, [text[:4] for text in TRAIN]).is_corpus(seen)


def test_the_depth_that_counts_is_that_of_the_model(words: PreTrainedTokenizerBase) -> None:
    counts = counts_of(words, TRAIN)
    table = ExitTable.by_frequency(
        words, counts, 3, budget=Budget.of(4, CONFIG, NEW), min_exit=0, vocab_size=CONFIG.vocab_size
    )
    assert table.num_layers == 3
    assert count_flops(CONFIG, NEW, table).speedup == pytest.approx(4, rel=0.01)


# --- what heads read ---


class OwnForSequenceClassification(transformers.BertForSequenceClassification):
    """Somebody's own head, which reads all positions, under a name like that of a head that reads one."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **inputs: Any) -> Any:
        states = self.bert(input_ids, attention_mask=attention_mask, **inputs).last_hidden_state
        return self.classifier(states.mean(dim=1))


READ_ONE_ROW = {FIRST_ROW, "AutoModelForMultipleChoice", "AutoModelForNextSentencePrediction"}
READ_ALL_ROWS = {ALL_ROWS, "AutoModel", "AutoModelForQuestionAnswering", "AutoModelForMaskedLM"}
BY_DECODER = {"bart", "encoder-bart", "marian", "mbart", "t5"}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_heads_of_a_family_read(family: str) -> None:
    adapter, checked = ADAPTERS[family], 0
    for name in sorted(READ_ONE_ROW | READ_ALL_ROWS):
        if getattr(transformers, name)._model_mapping.get(adapter.config_class, None) is None:
            continue
        model = make_model(family, getattr(transformers, name))
        one_row = name in READ_ONE_ROW and family not in BY_DECODER
        if (family, name) == ("modernbert", "AutoModelForMultipleChoice"):
            one_row = False  # it reads the first token, which may come after padding
        if family == "eurobert":
            one_row = False  # its head reads the first position only where the config says so
        for kind in (type(model), type(converted(model, make_exits("random exits")))):
            assert adapter.reads_first_row(kind) is one_row, kind
            checked += 1
    assert checked >= (2 if family in ("encoder-bart", "marian") else 4)


def test_heads_of_somebody_else_read_all_rows() -> None:
    bert = ADAPTERS["bert"]
    dense = make_model("bert", transformers.AutoModelForSequenceClassification)
    hashed = type(converted(dense, make_exits("random exits")))
    same_name = type("BertForSequenceClassification", (transformers.BertForSequenceClassification,), {})
    claims = type(
        "BertForSequenceClassification",
        (transformers.BertForSequenceClassification,),
        {"__module__": transformers.BertForSequenceClassification.__module__},
    )
    on_top = type("MineForSequenceClassification", (hashed,), {})
    for kind in (OwnForSequenceClassification, same_name, claims, on_top):
        assert not bert.reads_first_row(kind)


def test_budgets_and_counts_read_a_head_alike() -> None:
    ids = [text[:10] for text in NEW[:20]]
    table = ExitTable.never(CONFIG.vocab_size, 6)
    first, every = (
        count_flops(CONFIG, ids, table, reads_first_row=first_only).executed_macs for first_only in (True, False)
    )
    assert first < every
    own = OwnForSequenceClassification(CONFIG)
    classifier = transformers.BertForSequenceClassification(CONFIG)
    for model, macs in ((classifier, first), (own, every), (own.bert, every), (CONFIG, every)):
        assert Budget.of(2, model, ids).reads_first_row is (macs == first)
        assert count_flops(model, ids, table).executed_macs == macs
    # A converted model may be told that its head reads more.
    hashed = hashee.convert(classifier, table)
    assert count_flops(hashed, ids).executed_macs == first
    hashed.hashed_encoder.reads_first_row = False
    assert count_flops(hashed, ids).executed_macs == every
    assert not Budget.of(2, hashed, ids).reads_first_row


# --- real texts ---


@pytest.mark.data
def test_four_times_is_four_times_on_real_dev_texts(data_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(minilm_folder()).eval()
    train, dev = (list(read_texts(data_dir / "SST-2" / f"{split}.jsonl.gz"))[:600] for split in ("train", "dev"))
    batches = [
        tokenizer(train[start : start + 50], padding=True, return_tensors="pt") for start in range(0, len(train), 50)
    ]
    importance = measure_movement(model, batches, tokenizer=tokenizer, progress=False)
    counts = count_tokens(tokenizer, train)
    hashed = hashee.convert(model, ExitTable.never(tokenizer, 6), tokenizer=tokenizer)
    for kind in (model, hashed):
        budget = Budget.of(4, kind, dev, tokenizer)
        for table in (
            ExitTable.from_importance(tokenizer, importance, budget),
            ExitTable.by_frequency(tokenizer, counts, 6, budget=budget, min_exit=0),
            ExitTable.at_random(tokenizer, 6, budget=budget, min_exit=0),
        ):
            reached = count_flops(kind, dev, table, tokenizer).speedup
            assert reached == pytest.approx(4, rel=0.01), table.method
