"""CPT reads the authors' checkpoints, is a BertModel under a BartDecoder, and generates what it was trained to."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    BertTokenizer,
)
from transformers.models.bart.modeling_bart import BartDecoder

from hashee.errors import CheckpointError, UnsupportedModel
from hashee.families.cpt import (
    CptConfig,
    CptForConditionalGeneration,
    CptForSequenceClassification,
    CptModel,
    load_cpt,
    register,
)

DEPTH, DECODER, WIDTH, INNER, VOCABULARY, POSITIONS = 4, 1, 16, 24, 40, 20
SHARED = DEPTH - DECODER
FIELDS = {
    "d_model": WIDTH,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "encoder_layers": DEPTH,
    "encoder_ffn_dim": INNER,
    "encoder_attention_heads": 2,
    "decoder_layers": DECODER,
    "decoder_ffn_dim": 2 * INNER,
    "decoder_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 3,
    "forced_eos_token_id": 3,
    "activation_dropout": 0.1,
    "attention_dropout": 0.1,
}
BERT_FIELDS = {
    "hidden_size": WIDTH,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": 2,
    "intermediate_size": INNER,
}
IDS = torch.tensor([[2, 7, 9, 4, 11, 3], [2, 8, 5, 3, 0, 0]])
MASK = (IDS != 0).long()
TARGETS = torch.tensor([[2, 9, 6, 3], [2, 5, 3, 0]])


def linear(name: str, outputs: int, inputs: int) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.randn(outputs, inputs) * 0.3, f"{name}.bias": torch.randn(outputs) * 0.3}


def norm(name: str) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.rand(WIDTH) + 0.5, f"{name}.bias": torch.randn(WIDTH) * 0.3}


def authors_weights(prefix: str = "", encoder_positions: int = POSITIONS) -> dict[str, Tensor]:
    """Return a checkpoint with the names that the authors' CPTModel saves; a fine-tuned one has the prefix `model.`."""
    words = torch.randn(VOCABULARY, WIDTH)
    weights = {
        "shared.weight": words,
        "encoder.embeddings.word_embeddings.weight": words.clone(),
        "encoder.embeddings.position_ids": torch.arange(encoder_positions)[None],
        "encoder.embeddings.position_embeddings.weight": torch.randn(encoder_positions, WIDTH),
        "encoder.embeddings.token_type_embeddings.weight": torch.randn(2, WIDTH),
        **norm("encoder.embeddings.LayerNorm"),
        "decoder.embed_tokens.weight": words.clone(),
        "decoder.embed_positions.weight": torch.randn(POSITIONS + 2, WIDTH),
        **norm("decoder.layernorm_embedding"),
    }
    for number in range(DEPTH):
        layer = f"encoder.encoder.layer.{number}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            weights |= linear(f"{layer}.{name}", WIDTH, WIDTH)
        weights |= linear(f"{layer}.intermediate.dense", INNER, WIDTH) | linear(f"{layer}.output.dense", WIDTH, INNER)
        weights |= norm(f"{layer}.attention.output.LayerNorm") | norm(f"{layer}.output.LayerNorm")
    for number in range(DECODER):
        layer = f"decoder.layers.{number}"
        for attention in ("self_attn", "encoder_attn"):
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                weights |= linear(f"{layer}.{attention}.{name}", WIDTH, WIDTH)
            weights |= norm(f"{layer}.{attention}_layer_norm")
        weights |= linear(f"{layer}.fc1", 2 * INNER, WIDTH) | linear(f"{layer}.fc2", WIDTH, 2 * INNER)
        weights |= norm(f"{layer}.final_layer_norm")
    return {prefix + key: value for key, value in weights.items()}


def write(folder: Path, weights: dict[str, Tensor], **fields: object) -> Path:
    """Write a folder as the authors did: BART's model type, and settings for generation among those of the model."""
    config = FIELDS | {
        "model_type": "bart",
        "architectures": ["CPTForConditionalGeneration"],
        "num_hidden_layers": 12,  # stale, as in BART files; `encoder_layers` decides
        "early_stopping": True,
        "num_beams": 4,
        "no_repeat_ngram_size": 3,
        "transformers_version": "4.4.1",
    }
    (folder / "config.json").write_text(json.dumps(config | fields))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms near one keep the source visible in what is generated; everything else is centred.
            centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            parameter.copy_(centre + 0.3 * torch.randn_like(parameter))
    return model.eval()


def assert_equal(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, atol=1e-6, rtol=0)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def full() -> CptModel:
    return randomised(CptModel(CptConfig(**FIELDS)))


@pytest.fixture
def model() -> CptForConditionalGeneration:
    return randomised(CptForConditionalGeneration(CptConfig(**FIELDS)))


@pytest.mark.parametrize("prefix", ["", "model."])
def test_the_authors_folder_arrives_whole(tmp_path: Path, prefix: str) -> None:
    weights = authors_weights(prefix)
    model = load_cpt(write(tmp_path, weights))
    state, stored = model.state_dict(), {"model." + key.removeprefix(prefix): weights[key] for key in weights}
    assert state.keys() - stored.keys() == {"lm_head.weight", "final_logits_bias"}
    assert all(torch.equal(state[key], stored[key]) for key in state.keys() & stored.keys())
    unread = {"model.encoder.embeddings.position_ids"} | {key for key in stored if f"encoder.layer.{SHARED}." in key}
    assert stored.keys() - state.keys() == unread
    assert torch.equal(model.lm_head.weight, weights[f"{prefix}shared.weight"])
    assert not model.final_logits_bias.any()
    assert model.generation_config.num_beams == 4


def test_a_pickled_folder_loads(tmp_path: Path) -> None:
    weights = authors_weights()
    write(tmp_path, weights)
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert torch.equal(load_cpt(tmp_path).model.shared.weight, weights["shared.weight"])


def test_the_first_release_has_fewer_encoder_positions(tmp_path: Path) -> None:
    weights = authors_weights(encoder_positions=10)
    model = load_cpt(write(tmp_path, weights))
    positions = model.model.encoder.embeddings.position_embeddings.weight
    assert torch.equal(positions, weights["encoder.embeddings.position_embeddings.weight"])
    model.save_pretrained(tmp_path / "again")
    again = load_cpt(tmp_path / "again")
    assert again.config.encoder_positions == 10
    assert_equal(again(IDS, MASK).logits, model(IDS, MASK).logits)


@pytest.mark.parametrize(
    "missing",
    [
        "decoder.layers.0.encoder_attn.k_proj.bias",
        "encoder.encoder.layer.2.output.dense.weight",
        "encoder.embeddings.token_type_embeddings.weight",
    ],
)
def test_a_missing_weight_is_an_error_that_names_it(tmp_path: Path, missing: str) -> None:
    weights = authors_weights()
    del weights[missing]
    with pytest.raises(CheckpointError, match=f"1 weights are missing.*{missing}") as error:
        load_cpt(write(tmp_path, weights))
    assert "\n" not in str(error.value)


def test_words_are_found_under_any_of_their_names(tmp_path: Path) -> None:
    weights = authors_weights()
    words = weights.pop("shared.weight")
    del weights["decoder.embed_tokens.weight"]
    assert torch.equal(load_cpt(write(tmp_path, weights)).lm_head.weight, words)
    del weights["encoder.embeddings.word_embeddings.weight"]
    with pytest.raises(CheckpointError, match="missing"):
        load_cpt(write(tmp_path, weights))


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_cpt(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="model of type bert"):
        load_cpt(write(tmp_path, authors_weights(), model_type="bert"))
    with pytest.raises(CheckpointError, match=r"another shape.*decoder\.embed_positions\.weight"):
        load_cpt(write(tmp_path, authors_weights()), max_position_embeddings=POSITIONS + 1)
    BartForConditionalGeneration(BartConfig(**FIELDS)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.encoder\.embeddings"):
        load_cpt(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_cpt(tmp_path)


def test_the_encoder_is_a_bert_model(full: CptModel) -> None:
    bert = BertModel(BertConfig(**BERT_FIELDS, num_hidden_layers=DEPTH), add_pooling_layer=False).eval()
    bert.load_state_dict(full.encoder.state_dict())
    ours = full(IDS, MASK, output_hidden_states=True)
    theirs = bert(IDS, MASK, token_type_ids=torch.ones_like(IDS), output_hidden_states=True)
    assert isinstance(full.encoder, BertModel)
    assert full.get_encoder() is full.encoder
    assert_equal(ours.encoder_last_hidden_state, theirs.last_hidden_state)
    for left, right in zip(ours.encoder_hidden_states, theirs.hidden_states, strict=True):
        assert_equal(left, right)


def test_the_decoder_is_barts_and_reads_the_shared_layers(full: CptModel) -> None:
    decoder = BartDecoder(BartConfig(**FIELDS)).eval()
    decoder.load_state_dict(full.decoder.state_dict())
    ours = full(IDS, MASK, decoder_input_ids=TARGETS, output_hidden_states=True)
    read = ours.encoder_hidden_states[SHARED]
    theirs = decoder(input_ids=TARGETS, encoder_hidden_states=read, encoder_attention_mask=MASK)
    assert_equal(ours.last_hidden_state, theirs.last_hidden_state)
    assert len(ours.decoder_hidden_states) == DECODER + 1
    assert_equal(full(IDS, MASK, decoder_input_ids=TARGETS, return_dict=False)[0], ours.last_hidden_state)


def test_generation_builds_no_understanding_layers_and_loses_nothing(full: CptModel, tmp_path: Path) -> None:
    full.save_pretrained(tmp_path)
    model = load_cpt(tmp_path)
    assert len(model.get_encoder().encoder.layer) == model.config.encoder_layers == SHARED
    ours, whole = model(IDS, MASK, decoder_input_ids=TARGETS), full(IDS, MASK, decoder_input_ids=TARGETS)
    assert_equal(ours.logits, whole.last_hidden_state @ full.shared.weight.T)
    assert_equal(ours.encoder_last_hidden_state, full(IDS, MASK).encoder_hidden_states[SHARED])


@pytest.mark.parametrize(("depth", "decoder", "shared"), [(4, 1, 3), (3, 1, 2), (2, 1, 1), (1, 1, 0)])
def test_a_shallower_model_takes_the_lower_layers(tmp_path: Path, depth: int, decoder: int, shared: int) -> None:
    full, _ = CptModel.from_pretrained(
        write(tmp_path, authors_weights(), model_type="cpt", num_hidden_layers=DEPTH), output_loading_info=True
    )
    model, report = CptForConditionalGeneration.from_pretrained(
        tmp_path, encoder_layers=depth, decoder_layers=decoder, output_loading_info=True
    )
    assert not any(report.values())
    state = full(IDS, MASK, output_hidden_states=True).encoder_hidden_states[shared]
    assert_equal(model(IDS, MASK).encoder_last_hidden_state, state)


def test_an_encoder_cannot_be_all_understanding_and_more() -> None:
    with pytest.raises(UnsupportedModel, match="2 encoder layers cannot hold 3"):
        CptForConditionalGeneration(CptConfig(**FIELDS | {"encoder_layers": 2, "decoder_layers": 3}))
    assert CptConfig().shared_layers == 10


def test_every_source_is_one_segment_even_for_another_encoder(model: CptForConditionalGeneration) -> None:
    logits, expected = model(IDS, MASK).logits, model.generate(IDS, attention_mask=MASK, max_new_tokens=4)
    other = BertModel(model.get_encoder().config, add_pooling_layer=False).eval()
    other.load_state_dict(model.get_encoder().state_dict())
    model.set_submodule("model.encoder", other)
    assert model.get_encoder() is other
    seen: list[Tensor] = []
    other.embeddings.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["token_type_ids"]), with_kwargs=True
    )
    zeros = torch.zeros_like(IDS)
    assert_equal(model(IDS, MASK, token_type_ids=zeros).logits, logits)
    for inputs in ((IDS,), ()):
        named = {} if inputs else {"input_ids": IDS}
        generated = model.generate(*inputs, **named, attention_mask=MASK, token_type_ids=zeros, max_new_tokens=4)
        assert torch.equal(generated, expected)
    assert_equal(
        model(inputs_embeds=other.embeddings.word_embeddings(IDS), attention_mask=MASK, labels=IDS).logits, logits
    )
    assert len(seen) == 4
    assert all(bool((types == 1).all()) for types in seen)


def test_training_reaches_every_weight(model: CptForConditionalGeneration) -> None:
    model.train()
    loss = model(IDS, MASK, labels=TARGETS).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.gradient_checkpointing_enable()
    model(IDS, MASK, labels=TARGETS).loss.backward()


def test_words_are_shared_by_encoder_decoder_and_head(model: CptForConditionalGeneration, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    for one in (model, load_cpt(tmp_path)):
        one.resize_token_embeddings(VOCABULARY + 3)
        words = one.model.shared.weight
        assert one.lm_head.weight is words
        assert one.model.encoder.embeddings.word_embeddings.weight is words
        assert one.model.decoder.embed_tokens.weight is words
        assert one(IDS, MASK).logits.shape == (2, 6, VOCABULARY + 3)


def test_greedy_generation_is_the_argmax_without_cache(model: CptForConditionalGeneration) -> None:
    model.generation_config.forced_eos_token_id = None
    generated = model.generate(IDS, attention_mask=MASK, max_new_tokens=8, do_sample=False)
    expected = torch.full((2, 1), model.config.decoder_start_token_id)
    done = torch.zeros(2, dtype=torch.bool)
    while expected.shape[1] < 9 and not done.all():
        logits = model(IDS, MASK, decoder_input_ids=expected, use_cache=False).logits[:, -1]
        chosen = logits.argmax(dim=-1).masked_fill(done, model.config.pad_token_id)
        done |= chosen == model.config.eos_token_id
        expected = torch.cat([expected, chosen[:, None]], dim=1)
    assert torch.equal(generated, expected)
    assert not torch.equal(generated[0], generated[1])


def test_beam_search_does_not_mix_the_sources(model: CptForConditionalGeneration) -> None:
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5}
    both = model.generate(IDS, attention_mask=MASK, **options)
    assert both.shape[0] == 4
    for row in range(2):
        alone = model.generate(IDS[row : row + 1], attention_mask=MASK[row : row + 1], **options)
        assert torch.equal(both[2 * row : 2 * row + 2, : alone.shape[1]], alone)


def test_a_classifier_reads_the_first_token_of_the_whole_encoder(tmp_path: Path) -> None:
    head = linear("cls_head.dense", WIDTH, WIDTH) | linear("cls_head.out_proj", 3, WIDTH)
    write(tmp_path, authors_weights("model.") | head, model_type="cpt", num_hidden_layers=DEPTH, cls_mode=1)
    model, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert type(model) is CptForSequenceClassification
    assert not any(report.values())
    first = model.model(IDS, MASK).encoder_last_hidden_state[:, 0]
    inner = torch.tanh(first @ head["cls_head.dense.weight"].T + head["cls_head.dense.bias"])
    outputs = model(IDS, attention_mask=MASK, token_type_ids=torch.zeros_like(IDS), labels=torch.tensor([2, 0]))
    assert_equal(outputs.logits, inner @ head["cls_head.out_proj.weight"].T + head["cls_head.out_proj.bias"])
    assert_equal(outputs.loss, torch.nn.functional.cross_entropy(outputs.logits, torch.tensor([2, 0])))
    with pytest.raises(UnsupportedModel, match="cls_mode 3"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path, cls_mode=3)


def test_auto_classes_find_models_and_tokenizer(model: CptForConditionalGeneration, tmp_path: Path) -> None:
    register()  # a second time is no error
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(again) is CptForConditionalGeneration
    assert_equal(again(IDS, MASK).logits, model(IDS, MASK).logits)
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is CptModel
    assert_equal(base(IDS, MASK).last_hidden_state, model.model(IDS, MASK).last_hidden_state)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "北", "京"]))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(tokenizer, BertTokenizer)
    assert tokenizer("北京").input_ids == [2, 5, 6, 3]
