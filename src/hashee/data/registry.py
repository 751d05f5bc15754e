"""The benchmark tasks that are known by name; adding one is one call of `register_task`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hashee.data.task import SUMMARY_RECIPE, Kind, Recipe, Task
from hashee.errors import InputError


@dataclass(frozen=True)
class Layout:
    """How the files of a benchmark task are stored in a folder of datasets, and how they differ from others."""

    folder: str
    """Name of the task's folder; upper and lower case and dashes do not matter."""
    evaluation_folder: str | None = None
    """Where dev and test are instead, if that folder is there."""
    prefixes: tuple[str, ...] = ()
    """What may stand before train, dev or test in the names of the files that the makers published."""
    header: tuple[str, ...] = ()
    """Columns of the makers' `.tsv` files, where these have no header line."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """What files call a label -> its name."""
    dev_share: float = 0.1
    """How much of train becomes dev where the makers have none."""
    sizes: tuple[int, int, int] | None = None
    """Examples in train, dev and test by the benchmark's definition."""
    train_split: str = "train"
    """The split that is trained on, where the makers' train cannot be had."""
    submits_names: bool = True
    """Whether predictions are handed in as names rather than numbers."""


TASKS: dict[str, Task] = {}
"""Every registered task by name."""

_LAYOUTS: dict[str, Layout] = {}


def register_task(task: Task, layout: Layout) -> None:
    """Make a task known by name; with empty `labels`, the classes are those found in train."""
    key = plain_name(task.name)
    if key != task.name:
        raise InputError(f"the name of a task is lower case without dashes: {key!r}, not {task.name!r}")
    if key in TASKS:
        raise InputError(f"there is a task {key!r} already; choose another name")
    TASKS[key] = task
    _LAYOUTS[key] = layout


def registered(name: str) -> str | None:
    """Return the key in `TASKS` of a task however its name is written (`SST-2`, `sst2`), or None."""
    key = plain_name(name)
    return key if key in TASKS else None


def layout_of(task: Task) -> Layout | None:
    """Return where a registered task's files are, or None for other tasks, even if they are called the same."""
    known = TASKS.get(task.name)
    if known is None or task.kind is not known.kind or (known.labels and task.labels != known.labels):
        return None
    return _LAYOUTS[task.name]


def plain_name(name: str) -> str:
    """Return a name in lower case without dashes, underscores and spaces."""
    return re.sub(r"[-_ ]", "", name).lower()


# --- ELUE: Liu et al., NAACL 2022; recipes and sizes: appendix of the HashEE paper -------------------------

_SENTIMENT = ("negative", "positive")

register_task(
    Task("sst2", Kind.CLASSES, _SENTIMENT, "accuracy", recipe=Recipe(batch_size=16, weight_decay=0.1)),
    Layout("SST-2", sizes=(8_544, 1_101, 2_208), submits_names=False),
)
register_task(
    Task("imdb", Kind.CLASSES, _SENTIMENT, "accuracy"),
    Layout(
        "IMDb",
        synonyms={"neg": "negative", "pos": "positive"},
        dev_share=0.2,
        sizes=(20_000, 5_000, 25_000),
        submits_names=False,
    ),
)
register_task(
    Task("snli", Kind.CLASSES, ("entailment", "neutral", "contradiction"), "accuracy", pair=True),
    # ELUE took its dev and test from a tokenized copy of SNLI, without the pairs that the annotators disagree on.
    Layout("SNLI", evaluation_folder="SNLI-ELUE", prefixes=("snli_1.0_",), sizes=(549_367, 9_842, 9_824)),
)
register_task(
    Task("scitail", Kind.CLASSES, ("neutral", "entailment"), "accuracy", pair=True),
    Layout(
        "SciTail",
        prefixes=("scitail_1.0_",),
        header=("premise", "hypothesis", "label"),
        synonyms={"entails": "entailment"},
        sizes=(23_596, 1_304, 2_126),
    ),
)
register_task(
    Task(
        "mrpc",
        Kind.CLASSES,
        ("not_equivalent", "equivalent"),
        "accuracy_and_f1",
        pair=True,
        recipe=Recipe(epochs=4.0),
    ),
    Layout("MRPC", prefixes=("msr_paraphrase_",), sizes=(3_668, 408, 1_725), submits_names=False),
)
register_task(
    Task(
        "stsb",
        Kind.SCORE,
        (),
        "pearson_and_spearman",
        pair=True,
        recipe=Recipe(batch_size=16, epochs=5.0, warmup_ratio=0.0, weight_decay=0.1),
    ),
    Layout("STS-B", sizes=(5_749, 1_500, 1_379)),
)

# --- beyond ELUE: tagging, and many classes; the recipe is the paper's for its larger tasks -----------------

_ENTITIES = ("corporation", "creative-work", "group", "location", "person", "product")

register_task(
    Task("wnut17", Kind.TAGS, ("O", *(f"{part}-{name}" for name in _ENTITIES for part in "BI")), "span_f1"),
    Layout("WNUT17", sizes=(3_394, 1_009, 1_287)),
)
# The names of its 77 classes are read from train.
register_task(Task("banking77", Kind.CLASSES, (), "accuracy"), Layout("Banking77"))

# --- summaries: what is read is a document, what is written its summary, subject line or title ---------------

for _name, _layout in {
    "aeslc": Layout("AESLC", sizes=(14_436, 1_960, 1_906)),
    "amazonfoodsummary": Layout("AmazonFood-summary", sizes=(5_499, 500, 500)),
    "scitldra": Layout("SciTLDR-A", sizes=(1_992, 619, 618)),
    "xsum": Layout("XSum", sizes=(204_045, 11_332, 11_334)),
    "reddittifu": Layout("RedditTIFU", sizes=(41_675, 645, 645)),
    "cnndailymail": Layout("CNN-DailyMail", sizes=(287_113, 13_368, 11_490)),
    "csl": Layout("CSL", train_split="dev", sizes=(20_000, 3_000, 3_000)),
}.items():
    register_task(Task(_name, Kind.SUMMARIES, (), "rouge1", recipe=SUMMARY_RECIPE), _layout)
