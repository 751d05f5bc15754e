"""Kill bulk jobs at random moments, locally and on Ray, and compare every byte with a job that nobody killed.

    python benchmarks/bulk_kills.py --local 15 --driver 6 --actors 6 --node 1

Each local kill, and each kill of a driver, is a `kill -9` of `hashee predict --resume`, which is started again at once;
kills of actors hit a process that scores while its job goes on. `--node`: a node of a two-node cluster is lost.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

os.environ.setdefault("RAY_worker_niceness", "0")  # other work on this machine must not starve the jobs
WORDS = [
    "the",
    "a",
    "of",
    "film",
    "story",
    "good",
    "bad",
    "plot",
    "actor",
    "never",
    "always",
    "house",
    "river",
    "market",
    "price",
    "energy",
    "light",
    "green",
    "small",
]


def write_texts(path: Path, rows: int) -> None:
    """Write texts of 3 to 40 words, with a line that is no JSON among every hundred."""
    chance = random.Random(0)
    lines = [json.dumps({"text": " ".join(chance.choices(WORDS, k=chance.randint(3, 40)))}) for _ in range(rows)]
    lines[50::100] = ["{"] * len(lines[50::100])
    path.write_text("\n".join(lines) + "\n")


def command(model: str, texts: Path, output: Path, part_rows: int, *options: str) -> list[str]:
    """Return the command of a job that goes on with what is there."""
    fixed = ["--part-rows", str(part_rows), "--threads", "1", "--resume"]
    return [sys.executable, "-m", "hashee", "predict", model, str(texts), str(output), *fixed, *options]


def parts(folder: Path) -> int:
    """Return how many parts are there."""
    return len(list(folder.glob("part-*")))


def wait_for_more(folder: Path, process: subprocess.Popen[bytes], seconds: float = 900) -> bool:
    """Wait until a job has written a part more; False if it has ended."""
    before, deadline = parts(folder), time.monotonic() + seconds
    while parts(folder) == before and process.poll() is None:
        assert time.monotonic() < deadline, "the job does not move"
        time.sleep(0.005)
    return process.poll() is None


def kill_driver(arguments: list[str], folder: Path, chance: random.Random, moments: list[str]) -> bool:
    """Start a job and kill it at a random moment; False if it ended before."""
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0.5, 8))  # also while it starts
    elif not wait_for_more(folder, process):
        return False
    else:
        time.sleep(chance.uniform(0, 0.3))
    if process.poll() is not None:
        return False
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    moments.append(f"{parts(folder)} parts")
    psutil.wait_procs(family, timeout=30)
    return True


def kill_actors(arguments: list[str], folder: Path, kills: int, chance: random.Random) -> int:
    """Run a job to its end and kill processes that score on the way; return how many were killed."""
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
    killed = 0
    while killed < kills and wait_for_more(folder, process):
        time.sleep(chance.uniform(0, 0.2))
        for each in psutil.Process(process.pid).children(recursive=True):
            if "PartScorer" in " ".join(each.cmdline()):
                os.kill(each.pid, signal.SIGKILL)
                killed += 1
                break
    process.wait()
    return killed


def finish(arguments: list[str]) -> None:
    """Run a job to its end."""
    subprocess.run(arguments, stderr=subprocess.DEVNULL, check=True)


def compare(folder: Path, whole: Path) -> dict[str, int]:
    """Count rows that are lost or doubled, and files that differ."""
    texts = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    expected = {path.name: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    rows, wanted = (
        Counter(json.loads(line)["line"] for path in each.glob("part-*") for line in path.open())
        for each in (folder, whole)
    )
    return {
        "lost": sum((wanted - rows).values()),
        "doubled": sum((rows - wanted).values()),
        "files that differ": sum(texts.get(name) != expected.get(name) for name in {*texts, *expected}),
    }


def lose_a_node(model: str, texts: Path, output: Path, part_rows: int) -> None:
    """Run a job on a cluster of two nodes, one of which is lost on the way."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    options = ("--engine", "ray", "--address", cluster.address, "--actors", "2")
    process = subprocess.Popen(command(model, texts, output, part_rows, *options))
    while parts(output) < 10 and process.poll() is None:
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)
    print(f"lost a node after {parts(output)} parts", flush=True)
    assert process.wait() == 0
    cluster.shutdown()


def main() -> None:
    """Run everything and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    for name, value in (("local", 15), ("driver", 6), ("actors", 6), ("node", 1), ("rows", 4000), ("part-rows", 50)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="bulk-kills-"))
    texts, whole, chance = place / "rows.jsonl", place / "whole", random.Random(1)
    write_texts(texts, asked.rows)
    finish(command(asked.model, texts, whole, asked.part_rows))
    print(f"{asked.rows} rows in {parts(whole)} parts", flush=True)
    ray = ("--engine", "ray", "--actors", "2")
    for name, kills, options in (("local", asked.local, ()), ("driver", asked.driver, ray)):
        output, moments = place / name, list[str]()
        arguments = command(asked.model, texts, output, asked.part_rows, *options)
        while len(moments) < kills and kill_driver(arguments, output, chance, moments):
            pass
        finish(arguments)
        print(f"{name}: {len(moments)} kills, at {', '.join(moments)}: {compare(output, whole)}", flush=True)
    output = place / "actors"
    if asked.actors:
        arguments = command(asked.model, texts, output, asked.part_rows, *ray)
        killed = kill_actors(arguments, output, asked.actors, chance)
        finish(arguments)
        print(f"actors: {killed} kills: {compare(output, whole)}", flush=True)
    if asked.node:
        lose_a_node(asked.model, texts, place / "node", asked.part_rows)
        print(f"node: {compare(place / 'node', whole)}", flush=True)
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
