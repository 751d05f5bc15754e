"""Fits a small task in a process of its own: `run_fit.py EXAMPLES '{"output": ...}'`, alone or under torchrun."""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]
    import torch
    from fitting_data import make_data

    import hashee.training

    torch.set_num_threads(1)
    hashee.training.fit(task=make_data(train=int(sys.argv[1])), **json.loads(sys.argv[2]))
