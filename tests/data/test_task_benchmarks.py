"""The registered tasks: as ELUE defines them, from every layout that their data come in."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from task_files import write, write_rows

from hashee.data import METRICS, TASKS, Kind, Layout, Recipe, Task, TaskData, load_task, register_task
from hashee.data import registry as registry_module
from hashee.errors import InputError

ROOT = Path(__file__).parents[2]
ELUE = ("sst2", "imdb", "snli", "scitail", "mrpc", "stsb")


def test_recipes_are_those_of_the_paper() -> None:
    recipes = {
        name: (recipe.learning_rate, recipe.batch_size, recipe.epochs, recipe.warmup_ratio, recipe.weight_decay)
        for name, recipe in ((name, TASKS[name].recipe) for name in ELUE)
    }
    large = (5e-5, 32, 3, 0.1, 0.01)
    assert recipes == {
        "sst2": (5e-5, 16, 3, 0.1, 0.1),
        "imdb": large,
        "snli": large,
        "scitail": large,
        "mrpc": (5e-5, 32, 4, 0.1, 0.01),
        "stsb": (5e-5, 16, 5, 0, 0.1),
    }


def test_metrics_are_those_of_elue() -> None:
    metrics = {name: TASKS[name].metric for name in ELUE}
    assert metrics == dict.fromkeys(ELUE, "accuracy") | {"mrpc": "accuracy_and_f1", "stsb": "pearson_and_spearman"}
    for task in TASKS.values():
        assert METRICS[task.metric].kind is task.kind
    assert [name for name in TASKS if TASKS[name].pair] == ["snli", "scitail", "mrpc", "stsb"]


def test_docs_list_every_task_and_metric() -> None:
    table = (ROOT / "docs" / "tasks.md").read_text()
    assert re.findall(r"^\| `([a-z0-9]+)` \|", table, flags=re.MULTILINE) == list(TASKS)
    assert set(re.findall(r"^- `([A-Za-z0-9_]+)`:", table, flags=re.MULTILINE)) == set(METRICS)


def test_a_task_is_added_by_one_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "TASKS", dict(TASKS))
    for name in ("hashee.data.loading.TASKS", "hashee.data.split_sources.TASKS"):
        monkeypatch.setattr(name, registry_module.TASKS)
    monkeypatch.setattr(registry_module, "_LAYOUTS", dict(registry_module._LAYOUTS))
    register_task(Task("cola", Kind.CLASSES, ("no", "yes"), "matthews", recipe=Recipe(epochs=9)), Layout("CoLA"))
    rows = [{"sentence": f"s{number}", "label": number % 2} for number in range(8)]
    write_rows(tmp_path / "CoLA" / "train.tsv", rows)
    loaded = load_task("CoLA", data=tmp_path)
    assert (loaded.task.metric, loaded.task.recipe.epochs, loaded.task.labels) == ("matthews", 9, ("no", "yes"))
    with pytest.raises(InputError, match="already"):
        register_task(loaded.task, Layout("CoLA"))
    with pytest.raises(InputError, match="'rte2', not 'RTE-2'"):
        register_task(Task("RTE-2", Kind.CLASSES, (), "accuracy"), Layout("RTE"))


# --- layouts ---


def splits_of(loaded: TaskData) -> dict[str, tuple[list[Any], list[Any] | None]]:
    parts = {"train": loaded.train, "dev": loaded.dev, "test": loaded.test}
    return {
        name: (list(part.texts), None if part.targets is None else list(part.targets))
        for name, part in parts.items()
        if part is not None
    }


@pytest.mark.parametrize("name", ["sst2", "SST-2", "sst_2", "Sst-2"])
def test_json_lines_in_the_folder_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for split, words in (("train", "abcd"), ("dev", "ef"), ("test", "gh")):
        rows = [{"text": word, "label": number % 2} for number, word in enumerate(words)]
        write_rows(tmp_path / "SST-2" / f"{split}.jsonl.gz", rows)
    monkeypatch.setenv("HASHEE_DATA", str(tmp_path))
    loaded = load_task(name)
    assert loaded.task is TASKS["sst2"]
    assert splits_of(loaded) == {
        "train": (["a", "b", "c", "d"], [0, 1, 0, 1]),
        "dev": (["e", "f"], [0, 1]),
        "test": (["g", "h"], [0, 1]),
    }
    assert "train has 4 examples; by the benchmark's definition it has 8,544" in loaded.notes
    assert load_task(name, data=tmp_path).fingerprint == load_task(name, data=tmp_path / "SST-2").fingerprint


def test_without_data_the_error_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HASHEE_DATA", raising=False)
    with pytest.raises(
        InputError, match=r"HASHEE_DATA names, which is not set; set it to .*SST-2/train.jsonl.gz.*data="
    ):
        load_task("sst2")
    for folder in (tmp_path, tmp_path / "missing"):
        monkeypatch.setenv("HASHEE_DATA", str(folder))
        with pytest.raises(InputError, match="has no folder SST-2"):
            load_task("sst2")


def test_elue_files(tmp_path: Path) -> None:
    write(
        tmp_path / "SST-2" / "train.tsv",
        'sentence\tlabel\n"say ""no"""\t0\nfine\t1\n"an open quote\t0\n"good"\t1\n"a "" b" c"\t0\n',
    )
    write(tmp_path / "SST-2" / "dev.tsv", "sentence\tlabel\nx\t1\n")
    write(tmp_path / "SST-2" / "test.tsv", "index\tsentence\n0\ty\n")
    loaded = load_task("sst2", data=tmp_path)
    texts = ['say "no"', "fine", '"an open quote', '"good"', '"a "" b" c"']
    assert splits_of(loaded) == {"train": (texts, [0, 1, 0, 1, 0]), "dev": (["x"], [1]), "test": (["y"], None)}
    write(tmp_path / "SST-2" / "test_full.tsv", "sentence\tlabel\ny\t1\n")
    assert splits_of(load_task("sst2", data=tmp_path))["test"] == (["y"], [1])


def test_elue_pairs_and_scores(tmp_path: Path) -> None:
    write(tmp_path / "STS-B" / "train.tsv", "sentence1\tsentence2\tlabel\na\tb\t5.000\nc\td\t0\n")
    write(tmp_path / "STS-B" / "dev.tsv", "sentence1\tsentence2\tlabel\ne\tf\t2.615\n")
    write(tmp_path / "STS-B" / "test.tsv", "index\tsentence1\tsentence2\n0\tg\th\n")
    assert splits_of(load_task("STS-B", data=tmp_path)) == {
        "train": ([("a", "b"), ("c", "d")], [5.0, 0.0]),
        "dev": ([("e", "f")], [2.615]),
        "test": ([("g", "h")], None),
    }


def test_glue_stsb(tmp_path: Path) -> None:
    head = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
    about = "main\tMSRvid\t2012\t1\tnone\tnone"
    write(tmp_path / "train.tsv", f"{head}\tscore\n0\t{about}\ta\tb\t5.000\n1\t{about}\tc\td\t1.5\n")
    write(tmp_path / "dev.tsv", f"{head}\tscore\n0\t{about}\te\tf\t3\n")
    write(tmp_path / "test.tsv", f"{head}\n0\t{about}\tg\th\n")
    assert splits_of(load_task("stsb", data=tmp_path)) == {
        "train": ([("a", "b"), ("c", "d")], [5.0, 1.5]),
        "dev": ([("e", "f")], [3.0]),
        "test": ([("g", "h")], None),
    }


def test_glue_mrpc_and_its_original_files(tmp_path: Path) -> None:
    head = "#1 ID\t#2 ID\t#1 String\t#2 String\n"
    train = f'Quality\t{head}1\t7\t8\ta "quoted" one\tb\n0\t9\t5\tc\td\n1\t1\t2\te\tf\n'
    glue, original = tmp_path / "glue", tmp_path / "original" / "MRPC"
    write(glue / "train.tsv", "\ufeff" + train)
    write(glue / "msr_paraphrase_train.txt", train)
    write(glue / "dev.tsv", f"Quality\t{head}1\t7\t8\tu\tv\n")
    write(glue / "test.tsv", f"index\t{head}0\t7\t8\tg\th\n")
    texts = [('a "quoted" one', "b"), ("c", "d"), ("e", "f")]
    assert splits_of(load_task("MRPC", data=glue)) == {
        "train": (texts, [1, 0, 1]),
        "dev": ([("u", "v")], [1]),
        "test": ([("g", "h")], None),
    }
    write(original / "msr_paraphrase_train.txt", train)
    write(original / "msr_paraphrase_test.txt", f"Quality\t{head}0\t7\t8\tg\th\n")
    loaded = load_task("mrpc", data=original.parent)
    assert splits_of(loaded)["test"] == ([("g", "h")], [0])
    assert any("cut off train" in note for note in loaded.notes)


def test_elue_mrpc_with_answers(tmp_path: Path) -> None:
    head = "#1 ID\t#2 ID\t#1 String\t#2 String\n"
    write(tmp_path / "train.tsv", f"Quality\t{head}" + "".join(f"{n % 2}\t-\t-\ta{n}\tb{n}\n" for n in range(8)))
    write(tmp_path / "test_full.tsv", f'label\t{head}1\t-\t-\t"He said : "" no . """\tx\n')
    assert splits_of(load_task("mrpc", data=tmp_path))["test"] == ([('He said : " no . "', "x")], [1])


def test_snli_drops_pairs_without_agreement(tmp_path: Path) -> None:
    head = "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\n"
    rows = "neutral\t( a )\ta\tb\n-\t( c )\tc\td\nentailment\t( e )\te\tf\ncontradiction\t( g )\tg\th\n"
    write(tmp_path / "SNLI" / "snli_1.0_train.txt", head + rows)
    write(tmp_path / "SNLI" / "snli_1.0_dev.txt", head + "-\t( i )\ti\tj\nneutral\t( k )\tk\tl\n")
    loaded = load_task("snli", data=tmp_path)
    expected = {"train": ([("a", "b"), ("e", "f"), ("g", "h")], [1, 0, 2]), "dev": ([("k", "l")], [1])}
    assert splits_of(loaded) == expected
    assert sum("no agreed label and are left out" in note for note in loaded.notes) == 2
    # The same in the other format that the makers publish.
    names = {"a": "neutral", "c": "-", "e": "entailment", "g": "contradiction"}
    lines = [{"gold_label": label, "sentence1": text, "sentence2": chr(ord(text) + 1)} for text, label in names.items()]
    write_rows(tmp_path / "SNLI" / "snli_1.0_train.jsonl", lines)
    assert splits_of(load_task("snli", data=tmp_path)) == expected


def test_snli_takes_elues_dev_and_test_if_they_are_there(tmp_path: Path) -> None:
    def rows(*words: str) -> list[dict[str, Any]]:
        return [{"premise": word, "hypothesis": "h", "label": number - 1} for number, word in enumerate(words)]

    write_rows(tmp_path / "SNLI" / "train.jsonl.gz", rows("no majority", "a", "b", "c"))
    write_rows(tmp_path / "SNLI" / "dev.jsonl.gz", rows("no majority", "d"))
    write_rows(tmp_path / "SNLI" / "test.jsonl.gz", rows("no majority", "e"))
    own = splits_of(load_task("snli", data=tmp_path))
    assert (own["dev"], own["test"]) == (([("d", "h")], [0]), ([("e", "h")], [0]))
    write_rows(tmp_path / "SNLI-ELUE" / "dev.jsonl.gz", rows("no majority", "D"))
    write_rows(tmp_path / "SNLI-ELUE" / "test.jsonl.gz", rows("no majority", "E"))
    loaded = load_task("snli", data=tmp_path)
    elue = splits_of(loaded)
    assert (elue["train"], elue["dev"], elue["test"]) == (own["train"], ([("D", "h")], [0]), ([("E", "h")], [0]))
    assert "taken from SNLI-ELUE: dev, test" in loaded.notes


def test_scitail_with_and_without_a_header(tmp_path: Path) -> None:
    lines = "p1\th1\tentails\np2\th2\tneutral\np3\th3\tentails\n"
    write(tmp_path / "makers" / "scitail_1.0_train.tsv", lines)
    write(tmp_path / "makers" / "scitail_1.0_dev.tsv", "p4\th4\tneutral\n")
    write(tmp_path / "elue" / "train.tsv", "premise\thypothesis\tlabel\np1\th1\t1\np2\th2\t0\np3\th3\t1\n")
    write(tmp_path / "elue" / "dev.tsv", "premise\thypothesis\tlabel\np4\th4\t0\n")
    makers = load_task("SciTail", data=tmp_path / "makers")
    assert splits_of(makers)["train"] == ([("p1", "h1"), ("p2", "h2"), ("p3", "h3")], [1, 0, 1])
    assert makers.fingerprint == load_task("scitail", data=tmp_path / "elue").fingerprint


def test_a_dataset_that_numbers_the_classes_otherwise() -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["contradiction", "neutral", "entailment"])
    features = datasets.Features(
        {"premise": datasets.Value("string"), "hypothesis": datasets.Value("string"), "label": names}
    )
    rows = {"premise": ["a", "b", "c", "d"], "hypothesis": ["x"] * 4, "label": [0, 1, 2, -1]}
    train = datasets.Dataset.from_dict(rows, features=features)
    dev = datasets.Dataset.from_dict({"premise": ["e"], "hypothesis": ["x"], "label": [0]}, features=features)
    hidden = datasets.Dataset.from_dict({"premise": ["f"], "hypothesis": ["x"], "label": [-1]}, features=features)
    loaded = load_task("snli", data={"train": train, "validation": dev, "test": hidden})
    assert splits_of(loaded) == {
        "train": ([("a", "x"), ("b", "x"), ("c", "x")], [2, 1, 0]),
        "dev": ([("e", "x")], [2]),
        "test": ([("f", "x")], None),
    }


def test_short_names_of_classes_are_known() -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    data = datasets.Dataset.from_dict({"text": list("abcdefghij"), "label": [0, 1] * 5}, features=features)
    loaded = load_task("imdb", data=data)
    assert loaded.task.labels == ("negative", "positive") and (len(loaded.train), len(loaded.dev)) == (8, 2)


def test_labels_that_a_benchmark_does_not_have(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", "sentence\tlabel\na\t0\nb\t1\nc\t2\n")
    with pytest.raises(InputError, match=r"has '2' in line 4, not labels of sst2 \(negative, positive\)"):
        load_task("sst2", data=path)
    write(tmp_path / "train.tsv", "sentence\tlabel\na\t-1\nb\t-1\n")
    with pytest.raises(InputError, match="no label in any row"):
        load_task("sst2", data=path)


# --- the real data ---

real_data = cache(load_task)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sizes", "fingerprint"),
    [
        ("sst2", (8_544, 1_101, 2_210), "c8b27374"),
        ("imdb", (20_000, 5_000, 25_000), "59cf3f05"),
        ("snli", (92_734, 9_842, 9_824), "e3808214"),
        ("scitail", (9_330, 1_304, 2_126), "29b0e47a"),
        ("mrpc", (3_668, 408, 1_725), "62ab434a"),
        ("stsb", (5_749, 1_500, 1_379), "c2ea8343"),
        ("wnut17", (3_394, 1_009, 1_287), "29783802"),
        ("banking77", (9_003, 1_000, 3_080), "1b245811"),
    ],
)
def test_real_data_load_as_they_are(data_dir: Path, name: str, sizes: tuple[int, int, int], fingerprint: str) -> None:
    loaded = real_data(name)
    assert loaded.test is not None
    assert (len(loaded.train), len(loaded.dev), len(loaded.test)) == sizes
    assert loaded.fingerprint.startswith(fingerprint)
    if loaded.task.kind is Kind.CLASSES:
        for part in (loaded.train, loaded.dev, loaded.test):
            assert set(part.targets or ()) == set(range(len(loaded.task.labels)))


@pytest.mark.data
def test_imdb_is_cut_as_elue_cuts_it_and_says_so(data_dir: Path) -> None:
    loaded = real_data("imdb")
    assert list(loaded.dev.targets or ()).count(1) == 2_500
    assert "there is no dev split: 5,000 rows were cut off train (seed 0)" in loaded.notes
