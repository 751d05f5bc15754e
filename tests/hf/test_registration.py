"""Start-up is light, and converted folders open whatever is imported first, in fresh processes and in threads."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForSequenceClassification

import hashee
from architectures import make_model
from hashee.families import FAMILIES, PREFIX
from hashee.families.adapters import ADAPTERS

TEXTS = ["the film is good", "a dull plot", "the cat"]


def run_python(code: str, *arguments: object) -> str:
    """Run code in a fresh process and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted classifier with its tokenizer."""
    dense = make_model("bert", AutoModelForSequenceClassification, vocab_size=len(tokenizer))
    table = hashee.ExitTable.by_frequency(tokenizer, TEXTS, num_layers=4, progress=False)
    path = tmp_path_factory.mktemp("converted")
    hashee.convert(dense, table, tokenizer=tokenizer).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


LIGHT = "heavy = {'torch', 'transformers', 'numpy', 'rich'} & set(sys.modules); assert not heavy, heavy"


def test_importing_hashee_imports_neither_torch_nor_transformers() -> None:
    run_python(f"import sys, hashee; {LIGHT}")
    run_python(f"import sys; from hashee import HasheeError, __version__; dir(__import__('hashee')); {LIGHT}")


CONFIG = "assert type(AutoConfig.from_pretrained(path)).__name__ == 'HasheeBertConfig'"
TOKENIZER = "assert AutoTokenizer.from_pretrained(path)('the film')['input_ids']"
MODEL = "assert type(AutoModelForSequenceClassification.from_pretrained(path)).__module__ == 'hashee.hf.classes'"
PIPELINE = "assert pipeline('text-classification', model=path)('the film')[0]['score'] > 0"
EMBED = "assert SentenceTransformer(path).encode(['the film']).shape == (1, 24)"
MODULES = "from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, pipeline"
ORDERS = {
    "config": f"import hashee; from transformers import AutoConfig; {CONFIG}",
    "tokenizer": f"import hashee; from transformers import AutoTokenizer; {TOKENIZER}",
    "model": f"import hashee; from transformers import AutoModelForSequenceClassification; {MODEL}",
    "pipeline": f"import hashee; from transformers import pipeline; {PIPELINE}",
    "transformers first": f"import transformers, hashee; {MODULES}; {CONFIG}; {TOKENIZER}; {MODEL}; {PIPELINE}",
    "config first": f"from transformers import AutoConfig; import hashee; {CONFIG}",
    "modelling module first": f"import transformers.models.bert.modeling_bert, hashee; {MODULES}; {MODEL}",
    "pipeline first": f"from transformers import pipeline; import hashee; {PIPELINE}",
    "Trainer between": f"import hashee; from transformers import Trainer; {MODULES}; {TOKENIZER}; {CONFIG}",
    "families first": f"import hashee.hf.classes; {MODULES}; {CONFIG}",
    "sentence-transformers": f"import hashee; from sentence_transformers import SentenceTransformer; {EMBED}",
    "sentence-transformers first": f"from sentence_transformers import SentenceTransformer; import hashee; {EMBED}",
    "no folder": "import hashee; from transformers import AutoConfig; "
    "assert type(AutoConfig.for_model('elasticbert')).__module__ == 'hashee.families.elasticbert'; "
    "assert AutoConfig.for_model('hashee-bert', vocab_size=9).vocab_size == 9",
    "reload": f"import importlib, hashee; {MODULES}; {CONFIG}; importlib.reload(hashee); {CONFIG}",
}


@pytest.mark.parametrize("order", ORDERS)
def test_converted_folders_open_whatever_is_imported_first(order: str, folder: Path) -> None:
    if "sentence" in order:
        pytest.importorskip("sentence_transformers")
    run_python(f"import sys; path = sys.argv[1]; {ORDERS[order]}", folder)


THREADS = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import transformers  # alone: two threads that import it at once break it, with or without hashee

barrier = threading.Barrier(4)

def work(number):
    barrier.wait()
    if number == 3:
        import hashee
        return type(hashee.load(sys.argv[1])).__name__
    import hashee
    from transformers import AutoModelForSequenceClassification
    return type(AutoModelForSequenceClassification.from_pretrained(sys.argv[1])).__name__

with ThreadPoolExecutor(4) as pool:
    assert set(pool.map(work, range(4))) == {"HasheeBertForSequenceClassification"}
"""


def test_threads_may_import_and_open_at_the_same_time(folder: Path) -> None:
    run_python(THREADS, folder)


def test_a_config_that_is_read_while_another_thread_registers_has_its_model(folder: Path) -> None:
    # One thread is held up in the midst of registering; the other must wait for it, not see half of the classes.
    run_python(
        """
import sys, threading, time
import hashee
from transformers import AutoModelForSequenceClassification, AutoTokenizer
register = AutoTokenizer.register
def slowly(*arguments, **options):
    time.sleep(0.05)
    register(*arguments, **options)
AutoTokenizer.register = slowly
thread = threading.Thread(target=lambda: __import__("hashee.hf.classes"))
thread.start()
while "hashee.hf.classes" not in sys.modules:
    time.sleep(0.01)
time.sleep(0.3)
for _ in range(5):
    AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
thread.join()
""",
        folder,
    )


def test_pickled_models_are_found_by_name_in_a_fresh_process(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pickle"
    path.write_bytes(pickle.dumps(AutoModelForSequenceClassification.from_pretrained(folder)))
    code = "import pickle, sys; print(type(pickle.load(open(sys.argv[1], 'rb'))).__name__)"
    assert run_python(code, path).strip() == "HasheeBertForSequenceClassification"


def test_every_family_has_a_stand_in() -> None:
    ours = {name for name in ADAPTERS if ADAPTERS[name].config_class.__module__.startswith("hashee.")}
    assert {family.model_type for family in FAMILIES if not family.is_in_transformers} == ours
    for name in ADAPTERS:
        assert type(AutoConfig.for_model(PREFIX + name)).__module__ == "hashee.hf.classes"


def test_every_public_name_is_listed_and_found() -> None:
    assert set(hashee.__all__) <= set(dir(hashee))
    for name in hashee.__all__:
        assert getattr(hashee, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        hashee.no_such_name  # noqa: B018
