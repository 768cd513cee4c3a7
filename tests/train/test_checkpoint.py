"""Checkpoints: whole or not at all, the one before kept, damage seen."""

import errno
import json
import os
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from torchcaps.data import load_data
from torchcaps.errors import UserError
from torchcaps.io import tensors
from torchcaps.train import checkpoint
from torchcaps.train.checkpoint import LAST, PREVIOUS, load_checkpoint, never_saved, save_checkpoint, saved_step
from torchcaps.train.recipe import load_recipe
from torchcaps.train.setup import make_state
from torchcaps.train.state import seeded

SETTINGS = ["data.image_size=12", "data.limit=16", "model.channels=2", "model.types=2", "model.hidden=[4,4]"]


def state(seed=0, **figures):
    recipe = load_recipe("digits", [*SETTINGS, f"train.seed={seed}"])
    with seeded(seed, torch.device("cpu")):
        made, _ = make_state(recipe, load_data(**recipe.data.model_dump()).train, torch.device("cpu"))
    for name, value in figures.items():
        setattr(made, name, value)
    return made


def weights(of):
    return torch.cat([parameter.detach().flatten() for parameter in of.model.parameters()])


@pytest.fixture
def two(tmp_path):
    """Checkpoints of step 1, with the weights of seed 1, and of step 2, with those of seed 2."""
    save_checkpoint(state(1, step=1), tmp_path)
    save_checkpoint(state(2, step=2), tmp_path)
    return tmp_path


def test_the_last_two_are_kept_and_the_newest_is_taken(two):
    save_checkpoint(state(3, step=3), two)
    assert sorted(os.listdir(two)) == [LAST, PREVIOUS]
    found = state()
    assert load_checkpoint(found, two) == []
    assert found.step == saved_step(two) == 3
    assert torch.equal(weights(found), weights(state(3)))
    (two / LAST).unlink()
    load_checkpoint(found, two)
    assert found.step == 2


def damages(content):
    """Ways in which a file may be spoiled, by name."""
    chance = random.Random(0)
    size = len(content)
    header = 8 + int.from_bytes(content[:8], "little")

    def flipped(place):
        return content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]

    yield from ((f"cut at {cut}", content[:cut]) for cut in (0, 1, 8, header // 2, header, size // 2, size - 1))
    yield from ((f"flipped at {place}", flipped(place)) for place in (0, 9, *chance.sample(range(8, header), 40)))
    yield from ((f"flipped at {place}", flipped(place)) for place in chance.sample(range(header, size), 40))
    yield "zeroes", bytes(size)
    yield "zeroes inside", content[: size // 2] + bytes(size // 8) + content[size // 2 + size // 8 :]
    yield "longer", content + b"\0" * 64
    yield "text", b"not a checkpoint"


def test_whatever_spoils_the_newest_the_one_before_is_taken_and_that_is_said(two):
    content, before = (two / LAST).read_bytes(), (two / PREVIOUS).read_bytes()
    expected, found = weights(state(1)), state()
    for name, spoiled in damages(content):
        (two / LAST).write_bytes(spoiled)
        (two / PREVIOUS).write_bytes(before)
        (told,) = load_checkpoint(found, two)
        assert LAST in told, name
        assert found.step == 1, name
        assert torch.equal(weights(found), expected), name
        assert (two / "last.damaged").read_bytes() == spoiled, name
        assert not (two / LAST).exists(), name


def test_a_spoiled_file_never_becomes_the_previous_one(two):
    (two / LAST).write_bytes(b"spoiled")
    found = state()
    load_checkpoint(found, two)
    save_checkpoint(state(4, step=4), two)
    (two / LAST).write_bytes(b"spoiled again")
    load_checkpoint(found, two)
    assert found.step == 1


def test_with_both_spoiled_there_is_an_error_that_names_them(two):
    for name in (LAST, PREVIOUS):
        (two / name).write_bytes(b"")
    with pytest.raises(UserError, match=rf"{LAST} cannot be read .*{PREVIOUS} cannot be read .*start a new run"):
        load_checkpoint(state(), two)


def test_without_any_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(UserError, match="nothing to resume"):
        load_checkpoint(state(), tmp_path)
    assert saved_step(tmp_path) is None


def rewritten(path, change):
    """The same file with other metadata."""
    with safe_open(path, framework="pt") as file:
        metadata, tensors = dict(file.metadata()), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(metadata, tensors)
    save_file(tensors, path, metadata)


def test_a_file_whose_format_was_changed_is_damaged(two):
    rewritten(two / LAST, lambda metadata, tensors: metadata.update(format="1"))
    found = state()
    assert len(load_checkpoint(found, two)) == 1
    assert found.step == 1


def test_a_file_of_a_later_version_asks_for_it(tmp_path):
    def later(metadata, tensors):
        metadata["format"] = "3"
        metadata["checksum"] = checkpoint.checksum(tensors, metadata)

    save_checkpoint(state(), tmp_path)
    rewritten(tmp_path / LAST, later)
    with pytest.raises(UserError, match="upgrade torchcaps"):
        load_checkpoint(state(), tmp_path)
    assert (tmp_path / LAST).exists()


@pytest.mark.parametrize("call", ["io.tensors.save_file", "io.atomic.os.fsync", "io.atomic.os.replace"])
def test_a_full_disk_leaves_what_was_there(two, monkeypatch, call):
    def full(*arguments, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = {name: (two / name).read_bytes() for name in (LAST, PREVIOUS)}
    with monkeypatch.context() as patch:
        patch.setattr(f"torchcaps.{call}", full)
        with pytest.raises(UserError, match="No space left on device"):
            save_checkpoint(state(7, step=7), two)
    assert {path.name: path.read_bytes() for path in two.iterdir()} == before


@pytest.mark.skipif(os.name == "nt", reason="files have no such modes there")
def test_whoever_may_read_other_files_may_read_a_checkpoint(tmp_path):
    before = os.umask(0o027)
    try:
        (tmp_path / "recipe.yaml").touch()
        save_checkpoint(state(), tmp_path)
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert modes == {"recipe.yaml": "0o640", LAST: "0o640"}


def test_a_power_cut_between_the_two_moves_leaves_the_previous_one(two, monkeypatch):
    real, moves = os.replace, []

    def cut(*arguments):
        if moves:
            raise KeyboardInterrupt
        moves.append(arguments)
        real(*arguments)

    monkeypatch.setattr("torchcaps.io.atomic.os.replace", cut)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(state(7, step=7), two)
    found = state()
    load_checkpoint(found, two)
    assert found.step == 2


def test_weights_that_are_no_numbers_do_not_replace_those_that_are(two):
    broken = state(8, step=8)
    with torch.no_grad():
        broken.model.conv.weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(UserError, match=r"model/conv\.weight is not finite in step 8"):
        save_checkpoint(broken, two)
    assert saved_step(two) == 2


def test_what_is_said_about_a_state_is_covered_by_the_checksum(two):
    def other_step(metadata, tensors):
        metadata["state"] = json.dumps(json.loads(metadata["state"]) | {"step": 999})

    rewritten(two / LAST, other_step)
    found = state()
    assert len(load_checkpoint(found, two)) == 1
    assert found.step == 1


def test_a_file_that_may_not_be_read_is_left_where_it_is(two, monkeypatch):
    def refuse(path, *rest, **more):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tensors, "safe_open", refuse)
    with pytest.raises(UserError, match=rf"{LAST} cannot be read: Permission denied\. Nothing was changed"):
        load_checkpoint(state(), two)
    monkeypatch.setattr(tensors, "safe_open", lambda *a, **k: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(UserError, match="too little memory"):
        load_checkpoint(state(), two)
    assert sorted(os.listdir(two)) == [LAST, PREVIOUS]


def test_what_was_found_damaged_is_named_and_does_not_count_as_a_new_run(two):
    for name in (LAST, PREVIOUS):
        (two / name).write_bytes(b"")
    for _ in range(2):
        with pytest.raises(
            UserError, match=r"start a new run \(the damaged files: .*last\.damaged, .*previous\.damaged"
        ):
            load_checkpoint(state(), two)
        assert not never_saved(two)


def test_figures_beyond_all_numbers_come_back(tmp_path):
    save_checkpoint(state(1, step=1, history=[{"epoch": 1, "val_loss": float("inf")}]), tmp_path)
    found = state()
    load_checkpoint(found, tmp_path)
    assert found.history == [{"epoch": 1, "val_loss": float("inf")}]


def test_one_of_a_gpu_goes_on_on_a_cpu_with_other_random_numbers(two, caplog):
    metadata, found = tensors.read_tensors(two / LAST)
    found |= {"random/augment": torch.zeros(16, dtype=torch.uint8), "random/cuda": torch.zeros(16, dtype=torch.uint8)}
    metadata["checksum"] = tensors.checksum(found, metadata)
    save_file(found, two / LAST, metadata)
    resumed = state()
    load_checkpoint(resumed, two)
    assert resumed.step == 2
    assert torch.equal(weights(resumed), weights(state(2)))
    assert "another type of device" in caplog.text


def test_what_killed_processes_had_begun_to_write_is_cleared_away(two):
    (two / "best").mkdir()
    begun = [two / f".{LAST}.123", two / "best" / ".model.safetensors.7"]
    for path in begun:
        path.write_bytes(b"half")
    (two / ".gitignore").write_text("*")
    checkpoint.clear(two)
    assert not any(path.exists() for path in begun)
    assert sorted(os.listdir(two)) == [".gitignore", "best", LAST, PREVIOUS]
