"""`hashee export onnx`: a converted model for other runtimes."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def export_onnx(
    model: Annotated[Path, typer.Argument(help="Folder of a converted model, an embedder or reranker among them.")],
    output: Annotated[Path, typer.Argument(help="Folder to write to.")],
    opset: Annotated[int, typer.Option(help="ONNX opset, 17 to 22.")] = 17,
    int8: Annotated[bool, typer.Option("--int8", help="Layers in int8; needs no calibration.")] = False,
) -> None:
    """Write a converted model as one ONNX file with the exits inside, and its tokenizer."""
    from hashee.export import export_onnx as export
    from hashee.hf.opening import open_converted
    from hashee.hf.pretrained import quiet_transformers
    from hashee.hf.text_models import open_text_model, sentence_class

    with quiet_transformers():
        if sentence_class(str(model)) is None:
            loaded = open_converted(model)
            tokenizer = loaded.tokenizer
        else:
            opened = open_text_model(model)
            loaded, tokenizer = opened.whole, opened.tokenizer
    folder = export(loaded, output, tokenizer=tokenizer, opset=opset, int8=int8)
    Console().print(f"saved to {folder}", markup=False, highlight=False, soft_wrap=True)
