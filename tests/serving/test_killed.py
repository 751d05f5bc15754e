"""Processes are killed at random while clients send, and every request is accounted for; in short, here.

`benchmarks/serve_kill.py` is the long version.
"""

import asyncio
from pathlib import Path

from running import TEXTS
from serve_kill import KillSettings, kill_at_random, summary
from serve_load import offline

import hashee


def test_whatever_is_killed_every_request_is_answered_rightly(folders: dict[str, Path]) -> None:
    workload, _ = offline(hashee.load(folders["embedder"]), TEXTS)
    # With this seed the second of the three hits the server, which is started again as a supervisor does it.
    settings = KillSettings(kills=3, of_server=0.4, pause=1.0, seconds=240, seed=6)
    outcome = asyncio.run(kill_at_random(folders["embedder"], workload, settings))
    assert dict(outcome.kills) == {"worker": 2, "server": 1}, summary(outcome)
    assert (outcome.lost, outcome.wrong, outcome.unexpected, outcome.orphans) == (0, 0, [], 0), summary(outcome)
    assert outcome.answered > 10
    assert outcome.restarts >= 1
