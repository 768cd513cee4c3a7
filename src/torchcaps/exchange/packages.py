"""Models as PyTorch's own packages: a program to be run by PyTorch, or compiled to a library of machine code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.exchange.check import Agreement, Run, check
from torchcaps.exchange.program import facts_about, metadata, quiet, trace
from torchcaps.models import ImageModel

METADATA = "torchcaps.json"  # extra file of a program


def write_program(model: ImageModel, path: Path) -> Agreement:
    """Write what torch.export makes of the model: `torch.export.load(path).module()` runs it, without torchcaps.

    The extra file `torchcaps.json` holds what the metadata of an ONNX file say.
    """
    traced = trace(model)
    torch.export.save(traced.program, path, extra_files={METADATA: json.dumps(facts_about(traced.answers))})
    return check(traced.answers, _called(torch.export.load(path).module()))


def write_library(model: ImageModel, path: Path) -> Agreement:
    """Write what AOTInductor makes of the model: machine code for this kind of processor, run from Python or C++.

    `torch._inductor.aoti_load_package(path)` runs it, without torchcaps; `get_metadata()` of what it returns gives the
    same metadata as an ONNX file has.
    """
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    check_compiler()
    traced = trace(model)
    with quiet(), torch.no_grad():
        try:
            configs = {"aot_inductor.metadata": metadata(traced.answers)}
            aoti_compile_and_package(traced.program, package_path=str(path), inductor_configs=configs)
        except RuntimeError as error:  # of the compiler, or of the tools around it
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"AOTInductor could not compile the model: {reason}") from error
        return check(traced.answers, _called(aoti_load_package(str(path))))


def check_compiler() -> None:
    """AOTInductor writes C++, so something must compile it."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, RuntimeError) as error:
        raise UserError(
            "--to aoti compiles C++, and no compiler was found: install g++ or clang, or name one in the environment "
            "variable CXX; --to onnx and --to torch need none"
        ) from error


def _called(module: object) -> Run:
    def run(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            return module(*inputs)  # type: ignore[operator]

    return run
