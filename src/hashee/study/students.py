"""Shallower models made of another's layers: which layers they take, and the models themselves."""

from collections.abc import Sequence
from typing import Any

from hashee.families.layers import copy_layers, refuse_unlike_layers
from hashee.training.backbone import Backbone


def depth_at(share: float, layers: int) -> int:
    """Return how many layers are a share of all, at least one."""
    return max(1, round(share * layers))


def student_of(teacher: Backbone, chosen: Sequence[int], seed: int) -> Any:
    """Return a dense model of some of a teacher's layers, numbered from 1, with the teacher's embeddings and head."""
    refuse_unlike_layers(teacher.config, teacher.source)
    student = teacher.load(seed, len(chosen))
    copy_layers(student, teacher.load(seed, teacher.layers), chosen)
    return student
