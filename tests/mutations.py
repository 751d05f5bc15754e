"""Damage done to saved folders, by a seed: bits, lengths, JSON values, names, and files of other folders."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

HUGE = (2**31, 2**63, 10**30, -1, 0, 1e308, -(2**31))
OTHER = (None, [], {}, "", "x", True, False, 1.5, [None], {"a": 1}, "sys", ["sys"], "../../etc", "\ud800")


def mutate(folder: Path, other: Path, seed: int) -> str:
    """Damage one file of a folder in one way and return what was done. other: a folder of the same kind."""
    chance = random.Random(seed)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    path = chance.choice(paths)
    kinds: list[Callable[..., str]] = [flip_bits, truncate, zero, swap, rename, remove, repeat]
    if path.suffix == ".json":
        kinds += 3 * [change_json]
    kind = chance.choice(kinds)
    return f"{kind.__name__} {path.name}: {kind(path, other / path.name, chance)}"


def flip_bits(path: Path, other: Path, chance: random.Random) -> str:
    """Flip one to eight bits."""
    content = bytearray(path.read_bytes())
    places = [chance.randrange(len(content) * 8) for _ in range(chance.choice((1, 1, 2, 8)))]
    for place in places:
        content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    return str(places)


def truncate(path: Path, other: Path, chance: random.Random) -> str:
    """Keep the beginning only, or nothing."""
    size = chance.choice((0, 1, 8, chance.randrange(path.stat().st_size), path.stat().st_size - 1))
    path.write_bytes(path.read_bytes()[:size])
    return str(size)


def zero(path: Path, other: Path, chance: random.Random) -> str:
    """Put zero bytes where a page of the disk was lost."""
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    length = chance.choice((1, 64, 4096))
    content[start : start + length] = bytes(len(content[start : start + length]))
    path.write_bytes(content)
    return f"{length} from {start}"


def repeat(path: Path, other: Path, chance: random.Random) -> str:
    """Write a part of the file twice."""
    content = path.read_bytes()
    start = chance.randrange(len(content))
    path.write_bytes(content[:start] + content[start : start + 64] + content[start:])
    return str(start)


def swap(path: Path, other: Path, chance: random.Random) -> str:
    """Take the file of the same name from another folder."""
    if not other.exists():
        return remove(path, other, chance)
    shutil.copyfile(other, path)
    return "from the other folder"


def rename(path: Path, other: Path, chance: random.Random) -> str:
    """Give the file another name, perhaps that of another file."""
    names = [file.name for file in path.parent.iterdir() if file != path]
    name = chance.choice([*names, f"{path.name}.bak", "pytorch_model.bin", "adapter_config.json"])
    path.replace(path.parent / name)
    return name


def remove(path: Path, other: Path, chance: random.Random) -> str:
    """Lose the file."""
    path.unlink()
    return "removed"


def change_json(path: Path, other: Path, chance: random.Random) -> str:
    """Change one value of a JSON file: gone, of another type, huge, swapped, or another document altogether."""
    document = json.loads(path.read_text(encoding="utf-8"))
    holders = _holders(document)
    if not holders or chance.random() < 0.05:
        text = chance.choice(("[]", "null", "{}", "1", '"x"', "[" * 100_000, '{"a":' * 50_000, "", "NaN"))
        path.write_text(text)
        return shortened(text)
    # Every holder alike: a vocabulary is one of them, however long it is.
    holder = chance.choice(holders)
    key = chance.choice(list(holder) if isinstance(holder, dict) else list(range(len(holder))))
    done = _change(holder, key, chance)
    path.write_text(json.dumps(document))
    return f"{shortened(key)} {done}"


def _change(holder: Any, key: Any, chance: random.Random) -> str:
    kind = chance.choice(("delete", "type", "huge", "near", "swap", "rename"))
    if kind == "delete":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder[f"{key}_"] = holder.pop(key)
    elif kind == "swap":
        second = chance.choice(list(holder) if isinstance(holder, dict) else list(range(len(holder))))
        holder[key], holder[second] = holder[second], holder[key]
        return f"swapped with {shortened(second)}"
    elif kind == "near":
        holder[key] = _near(holder[key], chance)
        return f"now {shortened(holder[key])}"
    else:
        holder[key] = chance.choice(HUGE if kind == "huge" else OTHER)
        return f"now {shortened(repr(holder[key]))}"
    return kind


def _near(value: Any, chance: random.Random) -> Any:
    """Return a value that looks as good as the one that is there."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + chance.choice((-1, 1, 2))
    if isinstance(value, float):
        return value * chance.choice((10, 0.1, -1))
    if isinstance(value, str):
        return chance.choice((value[::-1], value.upper(), value[:-1], f"{value} "))
    return chance.choice(OTHER)


def _holders(document: Any) -> list[Any]:
    """Return all objects and lists of a document that hold anything."""
    found = []
    if isinstance(document, dict | list) and document:
        found.append(document)
        for value in document.values() if isinstance(document, dict) else document:
            found += _holders(value)
    return found


def shortened(value: object) -> str:
    text = str(value)
    return text if len(text) < 40 else f"{text[:40]}..."
