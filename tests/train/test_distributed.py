"""Several processes: together they take the step that one would take; one that dies ends the run, which goes on with
another number of them. The processes are real."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from torchcaps.errors import UserError
from torchcaps.train import run
from torchcaps.train.checkpoint import saved_step
from torchcaps.train.distributed import Distributed, make_fabric, torchrun_world_size
from torchcaps.train.fsdp import shard_state
from torchcaps.train.recipe import load_recipe

STEPS = 100
SETTINGS = [
    *("data.image_size=12", "data.limit=50", "data.validation=20", "train.read_test=no", "augment.shift=1"),
    *("model.channels=4", "model.types=2", "model.hidden=[16]", "train.ema=0.9", "optim.clip=1"),
    *(f"train.epochs={STEPS // 2}", "train.batch_size=47", "train.save_every=0"),  # and a second batch of three
]
TRAIN = ["-m", "torchcaps", "train", "--device", "cpu"]


def dist(rank, size):
    return Distributed(SimpleNamespace(global_rank=rank, world_size=size))


@pytest.mark.parametrize(("examples", "size"), [(7, 1), (7, 2), (8, 3), (2, 3), (1, 4)])
def test_parts_make_up_the_batch_and_their_weighted_means_its_mean(examples, size):
    batch = torch.arange(examples) + 1.0, None, torch.arange(examples)
    parts = [dist(rank, size).shard_batch(batch) for rank in range(size)]
    assert torch.cat([part.values[0] for part in parts if part.counted]).equal(batch[0])
    assert all(part.values[1] is None and part.values[2].equal(part.values[0].long() - 1) for part in parts)
    assert sum(part.weight * part.values[0].mean() for part in parts) / size == pytest.approx(batch[0].mean())
    assert all(part.weight == 0 for part in parts if not part.counted)


def test_what_torchrun_started_is_taken_up(monkeypatch):
    assert torchrun_world_size() is None
    for name, value in {"LOCAL_WORLD_SIZE": 2, "WORLD_SIZE": 6, "RANK": 3, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert torchrun_world_size() == (2, 3)


def test_an_error_that_has_nothing_to_do_with_others_stays_what_it_is():
    with pytest.raises(RuntimeError, match="shapes"), dist(0, 2).report_lost_rank():
        raise RuntimeError("shapes")
    with pytest.raises(UserError, match="another process of this run has ended"), dist(0, 2).report_lost_rank():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2345")
    with pytest.raises(RuntimeError, match="peer"), dist(0, 1).report_lost_rank():
        raise RuntimeError("Connection closed by peer")


def test_more_devices_than_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="--devices 2: this machine has 1"):
        make_fabric("cuda", "fp32", devices=2)


def test_one_process_in_a_job_of_several_tasks_is_alone(monkeypatch):
    for name, value in {"SLURM_NTASKS": 2, "SLURM_JOB_ID": 1, "SLURM_PROCID": 1, "SLURM_LOCALID": 1}.items():
        monkeypatch.setenv(name, str(value))
    fabric = make_fabric("cpu", "fp32")
    fabric.launch()
    assert (fabric.world_size, fabric.global_rank, str(fabric.device)) == (1, 0, "cpu")


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def started(*arguments, also=None, **more):
    words = [sys.executable, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(also or {})}
    return subprocess.Popen(
        words,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **more,
    )


def ended(process, within):
    """The process's output and exit code; the rest of its session is ended too."""
    try:
        words, _ = process.communicate(timeout=within)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return words, process.returncode


def wait_until(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.02)


FRAIL = """
import atexit, os

atexit.register(lambda: "MASTER_ADDR" in os.environ and os.abort())
"""


@pytest.fixture(scope="module")
def frail(tmp_path_factory):
    """An environment in which one of several processes aborts when Python takes itself down, as Gloo's threads may."""
    folder = tmp_path_factory.mktemp("frail")
    (folder / "sitecustomize.py").write_text(FRAIL)
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("one") / "whole"
    return run.start_run(load_recipe("digits", SETTINGS), out=folder, device="cpu")


def same_curves(one, other):
    assert len(lines(other)) == len(lines(one)) == STEPS // 2
    for alone, several in zip(lines(one), lines(other)):
        assert several["step"] == alone["step"]
        assert several["train_accuracy"] == alone["train_accuracy"]  # every example once, the remainder included
        for name in ("train_loss", "val_loss"):
            assert several[name] == pytest.approx(alone[name], abs=1e-5)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run of two processes, one of which was killed."""
    if not Path("/proc").is_dir():
        pytest.skip("looks for a process by /proc")
    folder = tmp_path_factory.mktemp("two") / "run"
    settings = [f"--set={each}" for each in SETTINGS]
    process = started(*TRAIN, "digits", *settings, "--out", str(folder), "--devices", "2")
    wait_until(lambda: (saved_step(folder / "checkpoints") or 0) >= 6, process)
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    died = time.monotonic()
    words, code = ended(process, within=30)
    assert time.monotonic() - died < 30
    assert code != 0
    assert "another process of this run has ended" in words or code == -signal.SIGKILL, words
    assert not (folder / "summary.json").exists()
    return folder


@pytest.mark.slow
def test_two_processes_one_of_which_dies_then_three_and_one(whole, killed, frail, tmp_path):
    alone, three = tmp_path / "alone", tmp_path / "three"
    for folder in (alone, three):
        shutil.copytree(killed, folder)
    run.resume_run(alone, device="cpu")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    words, code = ended(started(*torchrun, *TRAIN, "--resume", str(three), also=frail), within=120)
    assert code == 0, words
    assert json.loads((three / "summary.json").read_text())["processes"] == 3
    for other in (alone, three):
        same_curves(whole, other)


@pytest.mark.slow
def test_tasks_of_slurm_are_ranks(whole, tmp_path):
    """With the variables that srun sets, a task for each process."""
    folder = tmp_path / "run"
    job = {"SLURM_NTASKS": 2, "SLURM_NTASKS_PER_NODE": 2, "SLURM_JOB_NAME": "caps", "SLURM_JOB_ID": 1234}
    job |= {"SLURM_NODEID": 0, "SLURM_NODELIST": "localhost"}
    settings = [f"--set={each}" for each in SETTINGS]
    tasks = []
    for rank in range(2):
        environment = {name: str(value) for name, value in {**job, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}.items()}
        command = [*TRAIN, "digits", *settings, "--out", str(folder), "--devices", "2"]
        tasks.append(started(*command, also=environment))
    for process in tasks:
        words, code = ended(process, within=120)
        assert code == 0, words
    assert json.loads((folder / "summary.json").read_text())["processes"] == 2
    same_curves(whole, folder)


@pytest.mark.slow
def test_weights_in_pieces_go_on_from_whole_ones_and_whole_ones_from_pieces(whole, killed, frail, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    before = saved_step(folder / "checkpoints")
    process = started(*TRAIN, "--resume", str(folder), "--devices", "2", "--shard", also=frail)
    wait_until(lambda: (saved_step(folder / "checkpoints") or 0) > before + 2, process)
    os.killpg(process.pid, signal.SIGTERM)
    words, code = ended(process, within=180)
    assert code == 130, words
    assert f"torchcaps train --resume {folder} --devices 2 --shard" in words
    assert "note" not in words
    run.resume_run(folder, device="cpu")
    same_curves(whole, folder)
    weights = [load_file(each / "model" / "model.safetensors") for each in (whole, folder)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-4)


SLOW_DISK = """
import os, time

real = os.fsync

def fsync(place):
    if ".last.safetensors" in os.readlink(f"/proc/self/fd/{place}") and os.path.exists(os.environ["SLOW"]):
        time.sleep(6)
    real(place)

os.fsync = fsync
"""


@pytest.mark.slow
def test_a_run_of_two_that_is_asked_to_stop_is_saved_however_long_that_takes(tmp_path):
    """Longer than Fabric waits before it kills the first process because another has ended."""
    if not Path("/proc").is_dir():
        pytest.skip("looks for a file by /proc")
    (tmp_path / "sitecustomize.py").write_text(SLOW_DISK)
    folder, slow = tmp_path / "run", tmp_path / "slow"
    settings = [f"--set={each}" for each in [*SETTINGS, "train.epochs=2000", "train.save_every=60"]]
    more = {"PYTHONPATH": str(tmp_path), "SLOW": str(slow)}
    process = started(*TRAIN, "digits", *settings, "--out", str(folder), "--devices", "2", also=more)
    wait_until(lambda: (saved_step(folder / "checkpoints") or 0) >= 2, process)
    slow.touch()
    before = saved_step(folder / "checkpoints")
    os.killpg(process.pid, signal.SIGTERM)
    words, code = ended(process, within=90)
    assert code == 130, words
    assert (saved_step(folder / "checkpoints") or 0) > before
    assert f"stopped after step {saved_step(folder / 'checkpoints')}" in words
    assert not list((folder / "checkpoints").glob(".last*"))


SLOW_TO_CLOSE = """
import time
from torch.utils.tensorboard import SummaryWriter
from torchcaps.cli import main

real = SummaryWriter.close

def close(board):
    time.sleep(6)
    real(board)

SummaryWriter.close = close
main()
"""


@pytest.mark.slow
def test_a_run_of_two_that_is_asked_to_stop_closes_its_files_however_long_that_takes(tmp_path):
    """As above, after the run was saved."""
    script, folder = tmp_path / "slow.py", tmp_path / "run"
    script.write_text(SLOW_TO_CLOSE)
    settings = [f"--set={each}" for each in [*SETTINGS, "train.epochs=2000"]]
    process = started(str(script), *TRAIN[2:], "digits", *settings, "--out", str(folder), "--devices", "2")
    wait_until(lambda: (saved_step(folder / "checkpoints") or 0) >= 2, process)
    os.killpg(process.pid, signal.SIGTERM)
    words, code = ended(process, within=90)
    assert code == 130, words


@pytest.mark.slow
def test_when_the_first_process_dies_another_says_so(tmp_path):
    folder = tmp_path / "run"
    settings = [f"--set={each}" for each in [*SETTINGS, "train.epochs=2000"]]
    process = started(*TRAIN, "digits", *settings, "--out", str(folder), "--devices", "2")
    wait_until(lambda: (saved_step(folder / "checkpoints") or 0) >= 6, process)
    os.kill(process.pid, signal.SIGKILL)
    words, code = ended(process, within=30)
    assert code == -signal.SIGKILL
    assert words.count("another process of this run has ended") == 1, words


SPOILED = """
import math, os, sys
from pathlib import Path
from torchcaps.train import run
from torchcaps.train.recipe import load_recipe
from torchcaps.train.tasks import base

real, calls = base.combine, []

def combine(*values):
    calls.append(1)
    loss = real(*values)
    return loss * math.nan if len(calls) == 2 and os.environ["RANK"] == "1" else loss

base.combine = combine
run.start_run(load_recipe("digits", sys.argv[2:]), out=Path(sys.argv[1]), device="cpu", shard=True)
"""


@pytest.mark.slow
def test_a_loss_that_is_no_number_in_one_process_ends_all_in_the_same_step(tmp_path):
    """In the last step of an epoch, after which they add up their sums: one that knew alone would wait for ever."""
    script = tmp_path / "spoiled.py"
    script.write_text(SPOILED)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    words, code = ended(started(*torchrun, str(tmp_path / "run"), *SETTINGS), within=60)
    assert code != 0
    assert words.count("UserError: the loss became NaN or infinite in step 2 (epoch 1)") == 2, words


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("digits", ["optim.name=muon"], "optim.name=muon needs whole weights"),
        ("digits", ["optim.sam_rho=0.1"], "optim.sam_rho needs whole weights"),
        ("capspix2pix", [], "--shard supports one network"),
    ],
)
def test_what_cannot_be_in_pieces(recipe, settings, message):
    chosen = load_recipe(recipe, settings)
    state = SimpleNamespace(discriminator=object() if recipe == "capspix2pix" else None)
    with pytest.raises(UserError, match=message):
        shard_state(state, chosen, SimpleNamespace())


def test_pieces_need_several_processes():
    with pytest.raises(UserError, match="--shard splits the weights among several processes"):
        make_fabric("cpu", "fp32", shard=True)
