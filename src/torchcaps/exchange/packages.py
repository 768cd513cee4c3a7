"""Export models as torch.export programs, and compiled to libraries of machine code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.exchange.check import Agreement, Run, check
from torchcaps.exchange.program import model_metadata, quiet, text_metadata, trace
from torchcaps.models import ImageModel

METADATA = "torchcaps.json"  # name of the extra file in a program


def write_program(model: ImageModel, path: Path) -> Agreement:
    """Write a torch.export program: `torch.export.load(path).module()` runs it without torchcaps.

    Its extra file `torchcaps.json` holds the metadata of an ONNX file.
    """
    traced = trace(model)
    torch.export.save(traced.program, path, extra_files={METADATA: json.dumps(model_metadata(traced.wrapper))})
    return check(traced.wrapper, _runner(torch.export.load(path).module()))


def write_library(model: ImageModel, path: Path) -> Agreement:
    """Compile the model by AOTInductor to machine code for this kind of processor, for Python or C++.

    `torch._inductor.aoti_load_package(path)` runs it without torchcaps; `get_metadata()` of the result returns the
    metadata of an ONNX file.
    """
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    check_compiler()
    traced = trace(model)
    with quiet(), torch.no_grad():
        try:
            configs = {"aot_inductor.metadata": text_metadata(traced.wrapper)}
            aoti_compile_and_package(traced.program, package_path=str(path), inductor_configs=configs)
        except RuntimeError as error:  # of the compiler or its tools
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"AOTInductor could not compile the model: {reason}") from error
        return check(traced.wrapper, _runner(aoti_load_package(str(path))))


def check_compiler() -> None:
    """Raise a UserError if there is no C++ compiler for the code that AOTInductor writes."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError) as error:
        raise UserError(
            "--to aoti compiles C++, and no compiler was found: install g++ or clang, or name one in the environment "
            "variable CXX; --to onnx and --to torch need none"
        ) from error


def _runner(module: object) -> Run:
    def run(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            return module(*inputs)  # type: ignore[operator]

    return run
