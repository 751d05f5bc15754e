"""`hashee export onnx`: a converted model for other runtimes."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def export_onnx(
    model: Annotated[Path, typer.Argument(help="Folder of a converted model.")],
    output: Annotated[Path, typer.Argument(help="Folder to write to.")],
    opset: Annotated[int, typer.Option(help="ONNX opset, 17 to 22.")] = 17,
    int8: Annotated[bool, typer.Option("--int8", help="Layers in int8; needs no calibration.")] = False,
) -> None:
    """Write a converted model as one ONNX file with the exits inside, and its tokenizer."""
    from transformers.utils import logging

    import hashee
    from hashee.export import export_onnx as export

    logging.disable_progress_bar()
    loaded = hashee.load(model)
    folder = export(loaded, output, tokenizer=loaded.tokenizer, opset=opset, int8=int8)
    Console().print(f"saved to {folder}", markup=False, highlight=False, soft_wrap=True)
