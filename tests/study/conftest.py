"""Backbones that the tests of the study share."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from fitting_data import make_backbone, make_data


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with dropout and four layers."""
    return make_backbone(tmp_path_factory.mktemp("backbone") / "tiny", layers=4)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of labelled texts, which processes on other machines can read as well."""
    folder, data = tmp_path_factory.mktemp("data") / "tiny", make_data(train=32)
    folder.mkdir()
    for name, examples in (("train", data.train), ("dev", data.dev), ("test", data.test)):
        assert examples is not None and examples.targets is not None
        rows = zip(examples.texts, examples.targets, strict=True)
        lines = [json.dumps({"text": str(text), "label": ("bad", "good")[target]}) for text, target in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder
