"""What every test starts from: the same seed, the default backend, an empty data folder, one thread a worker."""

from __future__ import annotations

import os

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("torchcaps", deadline=None, max_examples=30, derandomize=True, database=None)
hypothesis.settings.load_profile("torchcaps")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton
if os.environ.get("PYTEST_XDIST_WORKER"):
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_start(monkeypatch, tmp_path_factory):
    monkeypatch.delenv("TORCHCAPS_BACKEND", raising=False)
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path_factory.mktemp("data")))
    torch.manual_seed(0)
