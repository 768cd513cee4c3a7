"""The commands `export` and `convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchcaps.commands.common import Model, out, say


def export(
    model: Model,
    to: Annotated[
        str, typer.Option("--to", help="onnx, torch (.pt2), aoti (compiled .pt2) or hub (a folder).")
    ] = "onnx",
    out_: Annotated[
        Path | None, typer.Option("--out", help="File, or folder with --to hub; named after the model by default.")
    ] = None,
    opset: Annotated[int | None, typer.Option(help="ONNX opset; 20 by default.")] = None,
) -> None:
    """Export a model to another runtime. The file is kept only if its outputs match the model's."""
    from torchcaps.exchange.export import export as export_model

    path, (examples, difference) = export_model(model, to, out_, opset)
    say(path)
    out.print(f"checked on {examples} inputs: largest difference {difference:.1e}", highlight=False)


def convert(
    file: Annotated[Path, typer.Argument(help="Weights of another repository: a Keras .h5, or a PyTorch state dict.")],
    source: Annotated[str, typer.Option("--from", help="keras (CapsNet-Keras) or pytorch (CapsNet ports).")],
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder for the model; named after the file by default.")
    ] = None,
    iterations: Annotated[int, typer.Option(help="Routing iterations: the weights do not record them.", min=1)] = 3,
) -> None:
    """Convert weights trained by other code, and print which tensor became which."""
    from torchcaps.exchange.convert import convert_file

    folder, layout, mapped = convert_file(file, source, out_, iterations)
    say(f"{layout}:")
    for line in mapped:
        say(f"  {line}")
    say(folder)
