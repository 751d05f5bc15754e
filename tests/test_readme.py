"""What README and docs show runs as it stands there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


def test_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = python_blocks(ROOT / "README.md")
    exec(compile(example, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "masterpiece" in out and "LABEL_" in out and "12-layer BERT-base" in out
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_readme_commands_are_the_commands_there_are() -> None:
    from hashee.cli import app

    shown = "".join(re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL))
    lines = re.findall(r"^hashee (.*?)(?:\s+#.*)?$", shown, flags=re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        words = line.split()
        command = app
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command = command.load()
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_links_in_the_docs_lead_somewhere() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            assert target.startswith("https://") or (path.parent / target).exists(), f"{path.name}: {target}"
