"""Folders of converted models in other processes: with hashee they answer the same, without it they do not answer."""

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, pipeline

import hashee
from architectures import FAMILIES, converted, make_exits, make_ids, make_model, targets
from hashee.embedded import minilm_folder

TEXT = "The film is overlong, and its jokes are older than its audience."


def run_script(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, which knows nothing of this one."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_a_process_without_hashee_stops(tmp_path: Path) -> None:
    # The model type is hashee's own, so that transformers alone does not run the model at full depth.
    converted(make_model("bert"), make_exits("random exits")).save_pretrained(tmp_path / "converted")
    make_model("bert").save_pretrained(tmp_path / "dense")
    script = """
import sys
import torch
from transformers import AutoModel
for folder in sys.argv[1:]:
    AutoModel.from_pretrained(folder)(torch.tensor([[5, 6, 7]]))
    print("answered", folder.split("/")[-1], "hashee" in sys.modules)
"""
    stopped = run_script(script, tmp_path / "dense", tmp_path / "converted")
    assert "answered dense False" in stopped.stdout and "answered converted" not in stopped.stdout, stopped.stderr
    assert stopped.returncode != 0
    # transformers would advise to upgrade itself; the folder brings what opens it instead.
    assert "trust_remote_code=True" in stopped.stderr and "upgrade transformers" not in stopped.stderr


def test_a_folder_names_hashee_to_scripts_that_do_not_import_it(tmp_path: Path) -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    model.save_pretrained(tmp_path / "converted")
    save_file({"ids": make_ids(), "states": model(make_ids()).last_hidden_state.detach()}, tmp_path / "answers")
    script = """
import sys
from pathlib import Path
from safetensors.torch import load_file
from transformers import AutoModel
root = Path(sys.argv[1])
if sys.argv[2] == "missing":
    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "hashee":
                raise ImportError("No module named 'hashee'")
    sys.meta_path.insert(0, Missing())
model = AutoModel.from_pretrained(root / "converted", trust_remote_code=True)
answers = load_file(root / "answers")
assert (model(answers["ids"]).last_hidden_state - answers["states"]).abs().max() <= 1e-5
assert type(model).__module__ == "hashee.hf.classes"
model.save_pretrained(root / "again")
assert sorted(path.name for path in (root / "again").glob("*.py")) == ["open_with_hashee.py"]
"""
    opened = run_script(script, tmp_path, "installed")
    assert opened.returncode == 0, opened.stderr
    assert AutoModel.from_pretrained(tmp_path / "again").exit_table == model.exit_table
    missing = run_script(script, tmp_path, "missing")
    assert missing.returncode != 0 and "pip install hashee" in missing.stderr


@pytest.mark.parametrize("first", ["import hashee, transformers", "import transformers, hashee"])
def test_another_process_gives_the_same_answers(first: str, tmp_path: Path) -> None:
    ids, expected = make_ids(), {}
    for family in FAMILIES:
        model = converted(make_model(family), make_exits("random exits", layers=2), layers=2)
        model.save_pretrained(tmp_path / family)
        expected[family] = model(ids, **targets(model, ids)).last_hidden_state.detach()
    save_file({"ids": ids}, tmp_path / "ids")
    script = f"""
import sys
assert "hashee" not in sys.modules and "transformers" not in sys.modules
{first}
from pathlib import Path
from safetensors.torch import load_file, save_file
root, *families = sys.argv[1:]
ids = load_file(Path(root) / "ids")["ids"]
models = {{family: transformers.AutoModel.from_pretrained(Path(root) / family) for family in families}}
decoded = {{"marian": {{"decoder_input_ids": ids}}, "t5": {{"decoder_input_ids": ids}}}}
answers = {{
    family: model(ids, **decoded.get(family, {{}})).last_hidden_state.detach() for family, model in models.items()
}}
save_file(answers, Path(root) / "answers")
"""
    done = run_script(script, tmp_path, *FAMILIES)
    assert done.returncode == 0, done.stderr
    answers = load_file(tmp_path / "answers")
    assert answers.keys() == expected.keys()
    for family, states in expected.items():
        # In other memory torch may sum in another order.
        assert (answers[family] - states).abs().max() <= 1e-6 * max(1.0, float(states.abs().max())), family


def test_another_process_opens_a_folder_with_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    table = hashee.ExitTable.never(tokenizer, num_layers=6)
    hashee.convert(AutoModel.from_pretrained(minilm_folder()), table, tokenizer=tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    script = """
import sys
import hashee
from transformers import pipeline
extract = pipeline("feature-extraction", model=sys.argv[1])
print(type(extract.model).__name__, extract.model.exit_table.method, *extract(sys.argv[2])[0][0][:3])
"""
    done = run_script(script, tmp_path, TEXT)
    assert done.returncode == 0, done.stderr
    name, method, *values = done.stdout.split()
    assert (name, method) == ("HasheeBertModel", "never")
    theirs = pipeline("feature-extraction", model=str(minilm_folder()))(TEXT)[0][0][:3]
    assert [float(value) for value in values] == pytest.approx(theirs, abs=1e-5)
