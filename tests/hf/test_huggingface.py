"""Converted models live in the Hugging Face ecosystem as ordinary models do."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    pipeline,
)

import hashee
from architectures import (
    FAMILIES,
    LAYERS,
    SEQ2SEQ,
    VOCABULARY,
    converted,
    make_config,
    make_exits,
    make_ids,
    make_mask,
    make_model,
    padded,
    targets,
)
from hashee.embedded import minilm_folder, rotten_tomatoes
from hashee.engine.reference import run_reference
from hashee.families.adapters import ADAPTERS
from hashee.hf.classes import AUTO_CLASSES

TOLERANCE = 1e-5
HEADS = [
    (family, name)
    for family in FAMILIES
    for name in AUTO_CLASSES
    if getattr(transformers, name)._model_mapping.get(ADAPTERS[family].config_class, None) is not None
]


def head_inputs(family: str, auto_name: str) -> dict[str, Any]:
    """Return right-padded inputs for a head; multiple choice takes a third dimension."""
    config, mask = make_config(family), make_mask("mixed lengths")
    ids = padded(make_ids(), mask, config)
    if family in ("bart", "mbart", "t5"):
        # BART's classifier reads the end-of-text token, of which each row needs equally many.
        ids[:, 0] = config.eos_token_id
    inputs = {"input_ids": ids, "attention_mask": mask}
    return {name: value[:4].view(2, 2, -1) for name, value in inputs.items()} if "Choice" in auto_name else inputs


def with_targets(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Add the target to the inputs of a model that does not make it up from the source."""
    return inputs | targets(model, inputs["input_ids"])


def answers(output: Any, mask: Any) -> list[torch.Tensor]:
    """Return the parts of an output that mean something: those of padding positions do not."""
    kept = []
    for name, value in output.items():
        if isinstance(value, torch.Tensor) and name != "past_key_values":
            per_token = value.ndim >= 2 and value.shape[:2] == mask.shape and not name.startswith("decoder")
            kept.append(value[mask.bool()] if per_token else value)
    return kept


@pytest.mark.parametrize(("family", "auto_name"), HEADS)
def test_every_head_equals_the_reference(family: str, auto_name: str) -> None:
    model = make_model(family, getattr(transformers, auto_name))
    inputs = with_targets(model, head_inputs(family, auto_name))
    exits = make_exits("random exits")
    with_exits = converted(model, exits)
    assert isinstance(with_exits, type(model)), "still a model of the same class"
    if "Choice" in auto_name:
        ids = inputs["input_ids"].flatten(0, 1)
        from hashee.engine.reference import exits_by_hooks

        with exits_by_hooks(model, exits, ids):
            theirs = model(**inputs)
    else:
        theirs = run_reference(model, exits, **inputs)
    ours = with_exits(**inputs)
    assert type(ours).__name__.split("And")[0] == type(theirs).__name__.split("And")[0] or ours.keys() == theirs.keys()
    mask = inputs["attention_mask"].flatten(0, -2)
    compared = list(zip(answers(ours, mask), answers(theirs, mask), strict=True))
    assert compared
    for mine, other in compared:
        assert (mine - other).abs().max() <= TOLERANCE


def test_heads_cover_what_the_library_promises() -> None:
    families = {name: {family for family, head in HEADS if head == name} for name in AUTO_CLASSES}
    assert families["AutoModel"] == set(FAMILIES)
    seq2seq = set(SEQ2SEQ)
    assert families["AutoModelForSeq2SeqLM"] >= seq2seq
    for name in ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MaskedLM"):
        # transformers has no heads for question answering in these families.
        missing = {"eurobert", "gte", "nomic_bert"} if name == "QuestionAnswering" else set()
        assert families[f"AutoModelFor{name}"] >= set(FAMILIES) - seq2seq - missing, name


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification", "regression"])
def test_losses_of_every_kind_of_label(problem: str) -> None:
    labels = {
        "single_label_classification": torch.tensor([0, 1, 2, 1, 0]),
        "multi_label_classification": torch.rand(5, 3).round(),
        "regression": torch.rand(5),
    }[problem]
    num_labels = 1 if problem == "regression" else 3
    model = make_model("bert", AutoModelForSequenceClassification, problem_type=problem, num_labels=num_labels)
    with_exits = converted(model, make_exits("full depth"))
    inputs = head_inputs("bert", "AutoModelForSequenceClassification")
    ours, theirs = with_exits(**inputs, labels=labels).loss, model(**inputs, labels=labels).loss
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_models_come_back_equal(family: str, tmp_path: Path) -> None:
    auto_class = AutoModelForSeq2SeqLM if family in SEQ2SEQ else AutoModelForSequenceClassification
    # Saved after truncation, so that what comes back must not need the layers that were dropped.
    model = converted(make_model(family, auto_class), make_exits("random exits", layers=2), layers=2)
    model.save_pretrained(tmp_path)
    loaded = auto_class.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    assert loaded.exit_table == model.exit_table
    assert loaded.config.num_hidden_layers == 2
    inputs = with_targets(model, head_inputs(family, auto_class.__name__))
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)


def test_two_tables_one_for_training_one_for_inference(tmp_path: Path) -> None:
    dense = make_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tables = [hashee.ExitTable.at_random(VOCABULARY, num_layers=LAYERS, seed=seed) for seed in (0, 1)]
    model = hashee.convert(dense, tables[0], train_table=tables[1])
    model.save_pretrained(tmp_path)
    ids = make_ids()
    for candidate in (model, AutoModel.from_pretrained(tmp_path)):
        for table, mode in zip(tables, (False, True), strict=True):
            theirs = run_reference(dense, table.exit_layers, input_ids=ids).last_hidden_state
            assert (candidate.train(mode)(ids).last_hidden_state - theirs).abs().max() <= TOLERANCE
    assert model.train_exit_table == tables[1] and model.exit_table == tables[0]


def test_conversion_leaves_the_original_alone_and_shares_its_parameters() -> None:
    dense = make_model("bert", AutoModelForSequenceClassification)
    dense.classifier.weight.requires_grad_(False)
    ids = make_ids()
    before = dense(ids).logits
    model = converted(dense, make_exits("random exits", layers=2), layers=2)
    assert torch.equal(dense(ids).logits, before)
    assert dense.config.num_hidden_layers == LAYERS and dense.config.model_type == "bert"
    assert model.classifier.weight is dense.classifier.weight and not model.classifier.weight.requires_grad
    assert model.bert.embeddings.word_embeddings.weight is dense.bert.embeddings.word_embeddings.weight


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = converted(make_model("bert", AutoModelForMaskedLM), make_exits("random exits"))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


def test_deep_copies_are_independent() -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    ids = make_ids()
    before = model(ids).last_hidden_state
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(model(ids).last_hidden_state, before)
    assert other(ids).last_hidden_state.abs().max() == 0


def test_new_tokens_go_to_the_last_layer(tmp_path: Path) -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    model.resize_token_embeddings(VOCABULARY + 3)
    assert len(model.exit_table.exit_layers) == VOCABULARY + 3
    assert model.exit_table.exit_layers[-3:].tolist() == [LAYERS] * 3
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    ids = torch.tensor([[5, VOCABULARY + 2]])
    assert torch.equal(loaded(ids).last_hidden_state, model(ids).last_hidden_state)


@pytest.mark.parametrize("family", SEQ2SEQ)
def test_generate_equals_the_reference(family: str) -> None:
    model = make_model(family, AutoModelForSeq2SeqLM)
    inputs = head_inputs(family, "AutoModelForSeq2SeqLM")
    exits = make_exits("random exits")
    options = {"max_new_tokens": 8, "num_beams": 2, "do_sample": False}
    from hashee.engine.reference import exits_by_hooks

    with exits_by_hooks(model, exits, inputs["input_ids"]):
        theirs = model.generate(**inputs, **options)
    ours = converted(model, exits).generate(**inputs, **options)
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, model.generate(**inputs, **options)), "exits must make a difference here"


# --- real weights --------------------------------------------------------------------------------------------

TEXTS = [
    "a quiet masterpiece",
    "The film is overlong, and its jokes are older than its audience.",
    "Never has a sequel been less wanted .",
    "ok",
]


@pytest.fixture(scope="module")
def minilm_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(minilm_folder())


@pytest.fixture(scope="module")
def frequency_table(minilm_tokenizer: Any) -> hashee.ExitTable:
    texts = (text for text, _ in rotten_tomatoes())
    return hashee.ExitTable.by_frequency(minilm_tokenizer, texts, num_layers=6, progress=False)


@pytest.fixture(scope="module")
def full_depth_folder(minilm_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real MiniLM converted with a table by which nothing exits."""
    folder = tmp_path_factory.mktemp("full-depth")
    table = hashee.ExitTable.never(minilm_tokenizer, num_layers=6)
    hashee.convert(AutoModel.from_pretrained(minilm_folder()), table, tokenizer=minilm_tokenizer).save_pretrained(
        folder
    )
    minilm_tokenizer.save_pretrained(folder)
    return folder


def test_minilm_that_never_exits_gives_the_same_embeddings_in_pipeline(full_depth_folder: Path) -> None:
    ours = pipeline("feature-extraction", model=str(full_depth_folder))
    theirs = pipeline("feature-extraction", model=str(minilm_folder()))
    for text in TEXTS:
        assert (torch.tensor(ours(text)) - torch.tensor(theirs(text))).abs().max() <= TOLERANCE


def test_minilm_that_never_exits_gives_the_same_logits_in_pipeline(minilm_tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense = AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=3).eval()
    table = hashee.ExitTable.never(minilm_tokenizer, num_layers=6)
    hashee.convert(dense, table, tokenizer=minilm_tokenizer).save_pretrained(tmp_path)
    minilm_tokenizer.save_pretrained(tmp_path)
    options = {"top_k": None, "function_to_apply": "none", "batch_size": 3}
    ours = pipeline("text-classification", model=str(tmp_path), **options)(TEXTS)
    theirs = pipeline("text-classification", model=dense, tokenizer=minilm_tokenizer, **options)(TEXTS)
    for mine, other in zip(ours, theirs, strict=True):
        scores = {entry["label"]: entry["score"] for entry in other}
        assert len(scores) == 3
        for entry in mine:
            assert entry["score"] == pytest.approx(scores[entry["label"]], abs=TOLERANCE)


def test_pipeline_accepts_converted_models_without_complaint(full_depth_folder: Path, caplog: Any) -> None:
    transformers.logging.enable_propagation()
    try:
        pipeline("feature-extraction", model=str(full_depth_folder))("fine")
    finally:
        transformers.logging.disable_propagation()
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def test_token_classification_pipeline_runs(minilm_tokenizer: Any, frequency_table: hashee.ExitTable) -> None:
    dense = AutoModelForTokenClassification.from_pretrained(minilm_folder(), num_labels=3)
    model = hashee.convert(dense, frequency_table, tokenizer=minilm_tokenizer)
    tagged = pipeline("token-classification", model=model, tokenizer=minilm_tokenizer)(TEXTS[1])
    assert [entry["word"] for entry in tagged][:3] == ["the", "film", "is"]


def test_sentence_transformers_uses_it_as_its_transformer(full_depth_folder: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules as models

    encoder = models.Transformer(str(full_depth_folder))
    assert type(encoder.auto_model).__name__ == "HasheeBertModel"
    pooling = models.Pooling(encoder.get_embedding_dimension())
    ours = st.SentenceTransformer(modules=[encoder, pooling, models.Normalize()], device="cpu")
    theirs = st.SentenceTransformer(str(minilm_folder()), device="cpu")
    difference = ours.encode(TEXTS, convert_to_tensor=True) - theirs.encode(TEXTS, convert_to_tensor=True)
    assert difference.abs().max() <= TOLERANCE


def test_sentence_transformers_saves_and_loads_it(full_depth_folder: Path, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules as models

    encoder = models.Transformer(str(full_depth_folder))
    model = st.SentenceTransformer(modules=[encoder, models.Pooling(384)], device="cpu")
    model.save(str(tmp_path / "st"))
    again = st.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    assert type(again[0].auto_model).__name__ == "HasheeBertModel"
    assert (again.encode(TEXTS) == model.encode(TEXTS)).all()


def sentiment_data(tokenizer: Any, rows: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{**tokenizer(text, truncation=True), "labels": label} for text, label in rows]


def sentiment_rows(count: int) -> list[tuple[str, int]]:
    """Return equally many positive and negative real sentences."""
    rows = list(rotten_tomatoes())
    by_label = [[row for row in rows if row[1] == label] for label in (0, 1)]
    return [row for pair in zip(*by_label, strict=True) for row in pair][:count]


def train(model: Any, tokenizer: Any, folder: Path, steps: int) -> tuple[float, float]:
    """Train with the ordinary Trainer on real sentences; return the loss on held-out ones before and after."""
    rows = sentiment_rows(32 * steps + 200)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=2e-4,
        warmup_steps=4,
        lr_scheduler_type="constant_with_warmup",
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        seed=0,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=sentiment_data(tokenizer, rows[200:]),  # type: ignore[arg-type]
        eval_dataset=sentiment_data(tokenizer, rows[:200]),  # type: ignore[arg-type]
        processing_class=tokenizer,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    trainer.save_model(str(folder / "final"))
    return before, after


def test_trainer_trains_it(minilm_tokenizer: Any, frequency_table: hashee.ExitTable, tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense = AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)
    model = hashee.convert(dense, frequency_table, tokenizer=minilm_tokenizer)
    before, after = train(model, minilm_tokenizer, tmp_path, steps=30)
    assert after < before - 0.03
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "final")
    assert loaded.exit_table == frequency_table
    inputs = minilm_tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert torch.allclose(loaded(**inputs).logits, model.eval()(**inputs).logits, atol=1e-6)


def test_lora_trains_on_it(minilm_tokenizer: Any, frequency_table: hashee.ExitTable, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    dense = AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2)
    model = hashee.convert(dense, frequency_table, tokenizer=minilm_tokenizer).eval()
    inputs = minilm_tokenizer(TEXTS, padding=True, return_tensors="pt")
    plain = model(**inputs).logits
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
    wrapped = peft.get_peft_model(model, config)
    assert torch.allclose(wrapped.eval()(**inputs).logits, plain, atol=1e-6)
    wrapped.train()
    wrapped(**inputs, labels=torch.tensor([1, 0, 0, 1])).loss.backward()
    touched = {
        name.split(".lora_")[0].split(".")[-1]
        for name, p in wrapped.named_parameters()
        if p.grad is not None and "lora_B" in name and p.grad.abs().max() > 0
    }
    assert touched == {"query", "value"}
    optimizer = torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=1.0)
    optimizer.step()
    wrapped.eval()
    adapted = wrapped(**inputs).logits
    assert (adapted - plain).abs().max() > 1e-4
    wrapped.save_pretrained(tmp_path)
    merged = wrapped.merge_and_unload()
    assert torch.allclose(merged(**inputs).logits, adapted, atol=1e-5)
