"""A fingerprint of everything that a run has seen."""

import hashlib

from hashee.data.task import Examples, Task


def fingerprint_of(task: Task, train: Examples, dev: Examples, test: Examples | None) -> str:
    """Return the SHA-256 of the kind, the labels and, in order, the texts and targets of all splits."""
    digest = hashlib.sha256()

    def add(value: str) -> None:
        encoded = value.encode()
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        digest.update(b"%d " % len(encoded))
        digest.update(encoded)

    for value in (task.kind, str(len(task.labels)), *task.labels):
        add(value)
    for examples in (train, dev) if test is None else (train, dev, test):
        add(f"{len(examples)} {examples.targets is None}")
        for index, text in enumerate(examples.texts):
            parts = (text,) if isinstance(text, str) else text
            add(str(len(parts)))
            for part in parts:
                add(part)
            if examples.targets is not None:
                add(repr(examples.targets[index]))
    return digest.hexdigest()
