"""The compiled part of the package; everything else about it is in pyproject.toml."""

from setuptools import Extension, setup

FOLDER = "src/torchcaps/ops"

setup(
    ext_modules=[
        Extension(
            "torchcaps.ops._native",
            sources=[f"{FOLDER}/_native.c"],
            depends=[f"{FOLDER}/_native_template.h"],
            extra_compile_args=["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"],
            py_limited_api=True,
            optional=True,  # without a C compiler, by_votes.py does the same in PyTorch's operations
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
