"""What the HashEE paper (Sun et al., Findings of ACL 2022) reports: its tables as data, to set ours beside them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

TASKS = {
    "sst2": "SST-2",
    "imdb": "IMDb",
    "snli": "SNLI",
    "scitail": "SciTail",
    "mrpc": "MRPC",
    "stsb": "STS-B",
}
"""ELUE's tasks as the paper writes them."""


@dataclass(frozen=True)
class Source:
    """A table of the paper, by its label in the source."""

    label: str
    caption: str


ELUE = Source("tab:ELUE", "Main results on the ELUE benchmark")
HASHES = Source("tab:hash", "Comparison of different hash functions")
BUCKETS = Source("tab:bucket", "Comparison of different numbers of model layers and buckets")
MAX_SPEED = Source("tab:max_speed", "Maximal number of samples per second on a single RTX 3090 GPU")
SAVED_MACS = Source("tab:flops", "Saved MACs in one Transformer encoder layer")
DIFFICULTY = Source("tab:model_difficulty", "Results on model-defined difficulty")
SUMMARIZATION = Source("tab:summ", "Results on summarization datasets")


# --- tab:ELUE ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reported:
    """What a system reached on a task."""

    quality: float
    """In percent; MRPC: mean of accuracy and F1, STS-B: of Pearson's and Spearman's correlation."""
    speedup: float
    """FLOPs of 12-layer BERT-base / the system's."""


@dataclass(frozen=True)
class System:
    """A row of the paper's main table."""

    name: str
    group: str
    method: str
    """What the study calls the method."""
    reported: Mapping[str, Reported | None]
    """By task; None where the method does not apply."""
    elue_score: float | None
    backbone: str = ""
    """Which of a method's rows it is, where the paper has several: part of the backbone's name."""


def _system(name: str, group: str, method: str, cells: str, *, elue_score: float | None, backbone: str = "") -> System:
    """Read a row: for each task the quality and the speed-up, or a dash."""
    pairs = [cell.split() for cell in cells.split(",")]
    reported = {
        task: None if pair == ["-"] else Reported(float(pair[0]), float(pair[1]))
        for task, pair in zip(TASKS, pairs, strict=True)
    }
    return System(name, group, method, reported, elue_score, backbone)


_PLM, _STATIC, _DYNAMIC = "Pre-trained language models", "Static models", "Dynamic models"

SYSTEMS = (
    _system(
        "BERT-3L", _PLM, "first-layers", "79.3 4.0, 88.4 4.0, 87.1 4.0, 84.3 4.0, 76.0 4.0, 75.8 4.0", elue_score=-3.70
    ),
    _system(
        "ALBERT-3L",
        _PLM,
        "first-layers",
        "82.4 3.6, 90.7 3.9, 87.8 3.7, 87.5 3.9, 80.0 3.6, 79.1 3.9",
        elue_score=-1.59,
        backbone="albert",
    ),
    _system(
        "RoBERTa-3L",
        _PLM,
        "first-layers",
        "81.8 4.1, 90.7 4.2, 88.0 3.8, 84.9 3.9, 75.6 3.9, 67.5 3.9",
        elue_score=-2.17,
        backbone="roberta",
    ),
    _system(
        "ElasticBERT-3L",
        _PLM,
        "first-layers",
        "84.1 4.0, 91.8 4.0, 89.3 4.0, 91.9 4.0, 83.1 4.0, 83.5 4.0",
        elue_score=0.00,
        backbone="elastic",
    ),
    _system(
        "DistilBERT",
        _STATIC,
        "distilbert",
        "84.8 2.0, 92.0 2.0, 89.2 2.0, 89.7 2.0, 83.8 2.0, 81.7 2.0",
        elue_score=-2.55,
    ),
    _system(
        "TinyBERT", _STATIC, "tinybert", "85.3 2.0, 89.0 2.0, 89.3 2.0, 90.0 2.0, 84.7 2.0, 85.0 2.0", elue_score=-2.20
    ),
    _system(
        "HeadPrune",
        _STATIC,
        "head-prune",
        "84.8 1.3, 84.7 1.5, 87.8 1.5, 88.3 1.5, 77.8 1.5, 74.8 1.5",
        elue_score=-6.85,
    ),
    _system(
        "BERT-of-Theseus",
        _STATIC,
        "theseus",
        "84.4 2.0, 90.7 2.0, 89.4 2.0, 92.1 2.0, 82.4 2.0, 85.0 2.0",
        elue_score=-2.55,
    ),
    _system("DeeBERT", _DYNAMIC, "deebert", "78.9 3.4, 79.5 4.1, 48.1 3.6, 71.9 3.4, 79.1 3.5, -", elue_score=None),
    _system("FastBERT", _DYNAMIC, "fastbert", "82.7 3.7, 92.5 3.5, 88.8 3.5, 89.0 3.6, 80.3 4.2, -", elue_score=None),
    _system("PABEE", _DYNAMIC, "pabee", "83.1 2.9, 91.6 3.4, 88.7 3.1, 90.7 3.3, 75.2 3.5, 80.1 3.2", elue_score=-1.31),
    _system(
        "CascadeBERT", _DYNAMIC, "cascadebert", "82.4 3.8, 91.8 3.7, 89.0 3.6, 91.7 3.8, 78.8 3.8, -", elue_score=None
    ),
    _system(
        "BERxiT w/ BERT",
        _DYNAMIC,
        "berxit",
        "71.8 2.2, 85.0 2.8, 88.4 3.6, 80.3 3.4, 74.9 4.0, 57.8 4.0",
        elue_score=-6.12,
    ),
    _system(
        "BERxiT w/ ElasticBERT",
        _DYNAMIC,
        "berxit",
        "72.6 4.4, 91.2 4.0, 84.7 3.9, 91.0 4.0, 78.6 4.3, 81.5 4.0",
        elue_score=-3.90,
        backbone="elastic",
    ),
    _system(
        "HashEE",
        "Ours",
        "hash-frequency",
        "85.5 4.8, 92.4 6.2, 89.6 4.4, 92.3 5.1, 84.0 4.8, 84.3 4.6",
        elue_score=1.20,
    ),
)
"""In the order of the table."""
HASHEE = SYSTEMS[-1]


def system_of(method: str, backbone: str) -> System | None:
    """Return the paper's row of a method: with the same family of backbone where there are several, BERT's else."""
    rows = [system for system in SYSTEMS if system.method == method]
    # RoBERTa and ALBERT end in the name of BERT, so their own rows are asked first.
    named = [row for row in rows if row.backbone and row.backbone in backbone.lower()]
    return next(iter([*named, *rows]), None)


# --- tab:hash and tab:bucket -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with its standard deviation, None for a single run."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class HashResult:
    """What tokens that exit by one table reached: speed-up over the three tasks, quality on each."""

    layers: int
    buckets: int
    hash: str
    speedup: float
    quality: Mapping[str, Spread]


THREE_TASKS = ("sst2", "snli", "mrpc")
"""What the tables of hash functions and buckets are measured on."""


def _table(layers: int, buckets: int, name: str, speedup: float, cells: str) -> HashResult:
    """Read a row: for each task the mean, and the standard deviation where there were several runs."""
    pairs = [cell.split("±") for cell in cells.split()]
    spreads = {task: Spread(*map(float, pair)) for task, pair in zip(THREE_TASKS, pairs, strict=True)}
    return HashResult(layers, buckets, name, speedup, spreads)


HASH_FUNCTIONS = (
    _table(6, 6, "rand-incons", 3.0, "85.5±0.53 89.7 85.0±0.22"),
    _table(6, 6, "rand-cons", 3.0, "85.7±0.45 90.1 86.3±0.67"),
    _table(6, 6, "frequency", 4.9, "85.5±0.41 89.6 84.0±0.27"),
    _table(6, 6, "mi", 3.3, "85.5±0.49 90.0 86.0±0.23"),
    _table(6, 6, "clustered", 3.0, "85.7±0.50 90.2 86.3±0.47"),
    _table(12, 12, "rand-incons", 1.6, "85.7±0.38 89.6 86.6±0.45"),
    _table(12, 12, "rand-cons", 1.5, "86.5±0.37 90.2 87.4±0.34"),
    _table(12, 12, "frequency", 2.8, "85.6±0.37 89.8 84.4±0.17"),
    _table(12, 12, "mi", 1.8, "86.6±0.17 90.1 87.2±0.66"),
    _table(12, 12, "clustered", 1.5, "87.0±0.54 90.1 87.3±0.48"),
)
"""tab:hash, with ElasticBERT of 6 and 12 layers."""

LAYERS_AND_BUCKETS = (
    _table(12, 12, "frequency", 2.8, "85.6±0.37 89.8 84.4±0.17"),
    _table(12, 6, "frequency", 2.9, "84.9±0.69 89.7 83.7±0.26"),
    _table(12, 4, "frequency", 3.0, "85.2±0.43 89.6 83.7±0.15"),
    _table(12, 3, "frequency", 3.0, "85.3±0.37 89.7 82.9±0.29"),
    _table(12, 2, "frequency", 3.1, "85.2±0.19 89.7 82.8±0.40"),
    _table(6, 6, "frequency", 4.9, "85.5±0.41 89.6 84.0±0.27"),
    _table(6, 3, "frequency", 5.0, "85.2±0.42 89.5 83.5±0.54"),
    _table(6, 2, "frequency", 5.1, "85.4±0.33 89.6 83.6±0.19"),
)
"""tab:bucket."""


# --- tab:max_speed and tab:flops ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Fastest:
    """How many texts a second a system gets through at its best batch size."""

    name: str
    method: str
    texts: str
    quality: float
    speedup: float
    texts_per_second: float


FASTEST = (
    Fastest("BERT", "dense", "SNLI", 90.4, 1.0, 2093),
    Fastest("FastBERT", "fastbert", "SNLI", 88.8, 3.5, 4128),
    Fastest("PABEE", "pabee", "SNLI", 88.7, 3.1, 4596),
    Fastest("HashEE", "hash-frequency", "SNLI", 89.6, 4.4, 6779),
    Fastest("BERT", "dense", "IMDb", 93.0, 1.0, 177),
    Fastest("FastBERT", "fastbert", "IMDb", 92.5, 3.5, 553),
    Fastest("PABEE", "pabee", "IMDb", 91.6, 3.4, 571),
    Fastest("HashEE", "hash-frequency", "IMDb", 92.4, 6.2, 976),
)
MEAN_LENGTHS = {"SNLI": 27, "IMDb": 278}
"""Tokens of a text, as the table's head says."""


@dataclass(frozen=True)
class Saving:
    """What a layer that updates m of n tokens saves in one module; width d, inner width d_ff, h heads."""

    module: str
    formula: str


SAVINGS = (
    Saving("SelfAttn LinearProj", "(n-m)d^2"),
    Saving("SelfAttn MultiHeadAttn", "2n(n-m)(h+d)"),
    Saving("SelfAttn OutProj", "(n-m)d^2"),
    Saving("SelfAttn LayerNorm", "2(n-m)d"),
    Saving("FFN FFN", "2(n-m)d d_ff"),
    Saving("FFN LayerNorm", "2(n-m)d"),
)


# --- tab:model_difficulty and tab:summ ---------------------------------------------------------------------


@dataclass(frozen=True)
class Difficulty:
    """How well a model predicts at which layers an instance is wrong, over the negative label, in percent."""

    level: str
    """Of what: sentence or token."""
    model: str
    precision: float | None
    recall: float | None
    f1: float | None


DIFFICULTIES = (
    Difficulty("sentence", "Majority", 60.5, 36.7, 45.7),
    Difficulty("sentence", "Linear-M", 54.8, 42.1, 47.6),
    Difficulty("sentence", "Linear-B", 52.9, 45.3, 48.8),
    Difficulty("sentence", "BiLSTM", 54.5, 45.2, 49.4),
    Difficulty("sentence", "BERT", 61.1, 49.9, 54.9),
    # Always predicts the positive class, so there is nothing to count over the negative one.
    Difficulty("token", "Majority", None, None, None),
    Difficulty("token", "Linear-B", 56.6, 38.7, 46.0),
    Difficulty("token", "BiLSTM", 46.8, 39.9, 43.0),
    Difficulty("token", "BERT", 65.6, 44.6, 53.1),
)

HUMAN_ACCURACY = 60.0
"""What BERT reaches on the test set of human-defined difficulty, about, in percent (text and fig:human_difficulty)."""

Rouge: TypeAlias = tuple[float, float, float]
"""ROUGE-1, ROUGE-2 and ROUGE-L."""


@dataclass(frozen=True)
class Summarizer:
    """A row of the table of summarization: speed-ups over BART or CPT of base size, and ROUGE by dataset."""

    name: str
    method: str
    """Ours that it is set beside."""
    family: str
    encoder: float
    decoder: float
    total: float
    rouge: Mapping[str, Rouge]
    """Datasets that are not reported are left out."""


SUMMARIZERS = (
    Summarizer(
        "BART",
        "dense",
        "BART",
        1.0,
        1.0,
        1.0,
        {
            "Reddit": (29.71, 9.91, 23.43),
            "CNN/DM": (44.16, 21.28, 40.90),
            "CSL": (64.49, 52.48, 61.81),
            "TTNews": (53.84, 38.09, 49.85),
        },
    ),
    Summarizer("DAT", "dat", "BART", 1.0, 0.5, 0.8, {"Reddit": (27.02, 8.89, 22.68), "CNN/DM": (40.30, 17.77, 37.53)}),
    Summarizer(
        "BART-6L",
        "shallow-seq2seq",
        "BART",
        2.0,
        1.4,
        1.8,
        {"Reddit": (26.22, 6.82, 21.05), "CNN/DM": (40.02, 16.60, 36.82)},
    ),
    Summarizer(
        "HashEE w/ BART",
        "hash-frequency",
        "BART",
        3.3,
        1.0,
        1.8,
        {"Reddit": (28.77, 8.52, 21.97), "CNN/DM": (41.04, 18.41, 37.65)},
    ),
    Summarizer("CPT", "dense", "CPT", 1.0, 1.0, 1.0, {"CSL": (65.49, 53.82, 62.96), "TTNews": (53.48, 37.59, 49.82)}),
    Summarizer(
        "CPT-6L",
        "shallow-seq2seq",
        "CPT",
        2.0,
        1.2,
        1.9,
        {"CSL": (52.29, 39.35, 50.06), "TTNews": (50.89, 33.75, 45.42)},
    ),
    Summarizer(
        "HashEE w/ CPT",
        "hash-frequency",
        "CPT",
        2.3,
        1.0,
        2.2,
        {"CSL": (62.42, 49.96, 59.15), "TTNews": (52.67, 35.31, 46.97)},
    ),
)
