"""Around a run: one at a time in a folder, disks that are full or gone, memory that is not enough."""

import errno
import json
import shutil

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.train import callbacks, run
from torchcaps.train.checkpoint import saved_step
from torchcaps.train.experiments.rerun import compare_runs
from torchcaps.train.failures import enough_memory, lock_folder, saved_state
from torchcaps.train.recipe import load_recipe
from torchcaps.train.tasks import classification

TINY = [
    *(
        "data.image_size=12",
        "data.limit=80",
        "data.validation=20",
        "train.read_test=no",
        "model.channels=2",
        "model.types=2",
    ),
    *("model.hidden=[4]", "train.batch_size=16", "train.epochs=3", "train.save_every=0"),
]


def failing(error):
    """A function that raises this."""

    def fail(*args, **more):
        raise error

    return fail


@pytest.fixture(autouse=True)
def _blank_report(monkeypatch):
    """Drawing one takes longer than all else here."""
    monkeypatch.setattr(classification.ClassificationTask, "write_report", lambda task, report, *rest: report.path)


def recipe(*more):
    return load_recipe("digits", [*TINY, *more])


@pytest.fixture
def each_epoch(monkeypatch):
    """Call this after every epoch, before anything of it is written."""
    real, calls = callbacks.RunCallback._write_epoch, []

    def write(self, state, line):
        for call in calls:
            call(self.folder, int(line["epoch"]))
        real(self, state, line)

    monkeypatch.setattr(callbacks.RunCallback, "_write_epoch", write)
    return calls.append


def test_a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on(tmp_path, each_epoch):
    told = []

    def again(folder, epoch):
        with pytest.raises(UserError, match="another run is training in") as error:
            run.resume_run(folder, device="cpu")
        told.append(str(error.value))

    each_epoch(again)
    run.start_run(recipe(), out=tmp_path / "run", device="cpu")
    assert len(told) == 3
    assert (tmp_path / "run" / "summary.json").is_file()


def test_the_folder_is_free_again_when_a_run_is_over(tmp_path):
    for _ in range(2):
        with lock_folder(tmp_path, "there is no way out"):
            pass


def test_a_folder_that_vanishes_ends_the_run_with_a_sentence(tmp_path, each_epoch):
    each_epoch(lambda folder, epoch: epoch == 2 and shutil.rmtree(folder))
    with pytest.raises(UserError, match=r"cannot write to .*run: No such file .* Nothing had been saved yet"):
        run.start_run(recipe(), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()  # it is not made again, with half a run in it


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_what_cannot_be_written_ends_the_run_and_what_was_saved_goes_on(tmp_path, each_epoch, monkeypatch, number):
    whole = run.start_run(recipe(), out=tmp_path / "whole", device="cpu")

    full = []
    real = callbacks.save_checkpoint

    def save(state, folder):
        if full:
            raise OSError(number, "said by the system")
        real(state, folder)

    monkeypatch.setattr(callbacks, "save_checkpoint", save)
    each_epoch(lambda folder, epoch: full.append(epoch) if epoch == 2 else None)
    with pytest.raises(UserError, match=r"said by the system. The state after step \d+ is saved; .* --resume"):
        run.start_run(recipe(), out=tmp_path / "run", device="cpu")
    monkeypatch.setattr(callbacks, "save_checkpoint", real)
    run.resume_run(tmp_path / "run", device="cpu")
    assert compare_runs(whole, tmp_path / "run")[0] == []


def test_a_report_that_cannot_be_written_can_be_made_up_for(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(classification.ClassificationTask, "write_report", failing(OSError(errno.ENOSPC, "no room")))
        with pytest.raises(UserError, match="no room.*resume with"):
            run.start_run(recipe("train.epochs=1"), out=tmp_path / "run", device="cpu")
    run.resume_run(tmp_path / "run", device="cpu")
    assert (tmp_path / "run" / "summary.json").is_file()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to"),
        MemoryError(),
    ],
    ids=["CUDA", "CPU", "Python"],
)
def test_too_little_memory_says_what_takes_less(tmp_path, monkeypatch, error):
    monkeypatch.setattr(run, "train", failing(error))
    with pytest.raises(UserError, match=r"too little memory for batches of 16: try train.batch_size=8, .*bf16"):
        run.start_run(recipe(), out=tmp_path / "run", device="cpu")


def test_too_little_memory_for_a_run_that_goes_on_does_not_offer_what_is_fixed(tmp_path, monkeypatch):
    folder = run.start_run(recipe("train.epochs=1"), out=tmp_path / "run", device="cpu")
    monkeypatch.setattr(run, "train", failing(MemoryError()))
    with pytest.raises(UserError, match=r"too little memory .*: resume on a device with more.*after step \d+ is saved"):
        run.resume_run(folder, ["train.epochs=2"], device="cpu")


def test_too_little_memory_for_the_report_is_told_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(classification.ClassificationTask, "write_report", failing(MemoryError()))
    with pytest.raises(UserError, match=r"too little memory .*resume with"):
        run.start_run(recipe("train.epochs=1"), out=tmp_path / "run", device="cpu")


def test_validation_takes_smaller_batches_where_memory_is_short(tmp_path, monkeypatch):
    sizes, usual = [], classification.ClassificationTask._evaluate_batches

    def narrow(task, model, dataset, views, size):
        sizes.append(size)
        if size > 64:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return usual(task, model, dataset, views, size)

    monkeypatch.setattr(classification.ClassificationTask, "_evaluate_batches", narrow)
    folder = run.start_run(recipe("train.epochs=1"), out=tmp_path / "run", device="cpu")
    assert sizes[:3] == [256, 128, 64]
    monkeypatch.undo()
    other = run.start_run(recipe("train.epochs=1"), out=tmp_path / "other", device="cpu")
    told = [json.loads((each / "summary.json").read_text())["test_accuracy"] for each in (folder, other)]
    assert told[0] == told[1]


def test_other_errors_are_not_taken_for_it(tmp_path):
    with pytest.raises(RuntimeError, match="shapes"), enough_memory(recipe(), tmp_path, False):
        raise RuntimeError("shapes do not match")


def test_what_is_kept_is_told(tmp_path):
    assert saved_state(tmp_path) == "Nothing had been saved yet"
    folder = run.start_run(recipe("train.epochs=1"), out=tmp_path / "run", device="cpu")
    assert f"after step {saved_step(folder / 'checkpoints')} is saved" in saved_state(folder)
