"""Two processes take the steps of one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting_data import make_data
from safetensors.torch import load_file

from hashee.training import fit


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over torchrun is tried on Unix")
def test_two_processes_come_to_the_result_of_one(plain_backbone: Path, tmp_path: Path) -> None:
    # Batches of 5 give the processes different numbers of examples, and the last of 41 only one of them any.
    settings: dict[str, Any] = {"hash": "frequency", "epochs": 1, "batch_size": 5, "tokens": 24, "distill": 0.3}
    settings |= {"backbone": str(plain_backbone), "quiet": True}
    fit(task=make_data(train=41), output=tmp_path / "one", **settings)
    script = str(Path(__file__).with_name("run_fit.py"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    done = subprocess.run(
        [*torchrun, "41", json.dumps(settings | {"output": str(tmp_path / "two")})],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "two"))
    assert two["hardware"]["processes"] == 2
    assert two["metrics"] == one["metrics"]
    assert two["dense"]["metrics"] == one["dense"]["metrics"]
    losses = [[row["loss"] for row in run["history"] if "loss" in row] for run in (one, two)]
    assert np.abs(np.array(losses[0]) - np.array(losses[1])).max() < 1e-3
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    # Softmax cancels the bias of keys: its gradient is rounding error, which AdamW blows up to full steps.
    names = [name for name in weights[0] if not name.endswith("key.bias")]
    assert max(float((weights[0][name] - weights[1][name]).abs().max()) for name in names) < 1e-3
