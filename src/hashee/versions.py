"""Private parts of torch and transformers that hashee stands on, in one place, and what happens where one is gone.

The public range is in pyproject.toml, what was run in docs/versions.md, which has this table too; a test compares all.
"""

from collections.abc import Mapping
from typing import Any

from hashee.errors import HasheeError

NEEDED_BY_MODELS: Mapping[str, tuple[str, ...]] = {
    "torch.nn.Module": (
        "_parameters",
        "_buffers",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_load_from_state_dict",
    ),
    "transformers.PreTrainedModel": ("_tied_weights_keys", "_keys_to_ignore_on_load_unexpected", "_init_weights"),
    "transformers.PreTrainedConfig": ("_attn_implementation",),
    "transformers.AutoModel": ("_model_mapping",),
}
"""Checked when the model families are imported."""
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "torch": ("_make_per_channel_quantized_tensor",),
    "torch.ops.quantized": ("linear_prepack", "linear_with_input_q_dq_qweight_dq_output_fp32"),
    "torch.ops.aten": ("gelu_",),
    "torch.Tensor": ("_is_hf_initialized",),
    "transformers.PreTrainedModel": ("_hf_peft_config_loaded",),
    "transformers.GradientCheckpointingLayer": ("_gradient_checkpointing_func",),
    "transformers.TrainingArguments": ("_n_gpu",),
}
"""Used where they are there, or only by an option that is named in the docs."""


def check_private(library: Any, needed: Mapping[str, tuple[str, ...]]) -> None:
    """Raise if an installed library lacks a private part that hashee needs. library: its module."""
    for owner, names in needed.items():
        root, *path = owner.split(".")
        if root != library.__name__:
            continue
        found: Any = library
        for step in path:
            found = getattr(found, step, None)
        # Some are made by the constructor.
        instance = found() if owner == "torch.nn.Module" and found is not None else found
        missing = [name for name in names if not hasattr(instance, name)]
        if missing:
            raise HasheeError(
                f"{root} {library.__version__} has no {owner}.{missing[0]}, on which hashee stands; install a version "
                "that it was run with (docs/versions.md)"
            )
