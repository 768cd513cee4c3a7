"""The commands, as a user calls them: output and exit code; where it matters, of a real process."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import torchcaps
from torchcaps import cli
from torchcaps.commands import common
from torchcaps.models import create_model, save

LONG = ["train.epochs=5000", "data.limit=100", "data.image_size=12"]
TINY = ["model.channels=4", "model.types=2", "model.hidden=[16]", "train.epochs=1"]


def torchcaps_process(*arguments, cwd):
    command = [sys.executable, "-m", "torchcaps.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def torchcaps_command(*arguments, cwd):
    """The same without a process, whose imports would take most of the time."""
    before, out, err, code = os.getcwd(), io.StringIO(), io.StringIO(), None
    os.chdir(cwd)
    try:
        with (
            mock.patch.object(sys, "argv", ["torchcaps", *map(str, arguments)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default")
            cli.main()
    except SystemExit as end:
        code = end.code
    finally:
        os.chdir(before)
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def settings(*more):
    return [part for setting in (*TINY, *more) for part in ("--set", setting)]


def draw(path, kind, size, seed=0, mode="RGB"):
    """A picture of bars, down or across, in a size of its own."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 80, (size[1], size[0], 3), dtype=np.uint8)
    pixels[(slice(None), slice(None, None, 4)) if kind == "down" else (slice(None, None, 4),)] = 250
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """RGB JPEGs of mixed sizes, and one grey PNG, in two classes."""
    root = tmp_path_factory.mktemp("images")
    for kind in ("across", "down"):
        for index in range(12):
            draw(root / kind / f"{index}.jpg", kind, (20 + index, 40 - index), index)
    draw(root / "down" / "grey.png", "down", (33, 21), 99, mode="L")
    return root


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """A run of a capsule network on that folder, made by the command line alone."""
    cwd = tmp_path_factory.mktemp("work")
    arguments = ("train", "folder", "--data", folder, "--out", "run", *settings("train.epochs=6"))
    result = torchcaps_process(*arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    assert "test accuracy" in result.stdout
    assert "report" in result.stdout
    return cwd / "run"


def test_image_folder_trains_without_code(trained):
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["test_n"] > 0
    assert torchcaps.load(trained).class_names == ("across", "down")
    assert torchcaps.load(trained).image_shape == (3, 32, 32)


def test_a_folder_gets_a_check_up_a_recipe_and_opponents(folder, tmp_path):
    (folder / "down" / "phone.heic").write_bytes(b"x")
    try:
        arguments = ("train", "--data", folder, "--out", "run", "--epochs", "1", "--set", "model.width=4")
        result = torchcaps_command(*arguments, cwd=tmp_path)
    finally:
        (folder / "down" / "phone.heic").unlink()
    assert not result.returncode, result.stderr
    for told in (
        "ignored: 1 .heic (down/phone.heic)",
        "rare: fewer than 20",
        "chosen: strong_cnn at 32×32, up to 1 epochs",
    ):
        assert told in result.stdout
    assert "HOG + linear SVM" in result.stdout
    assert "Chance 50.00%" in result.stdout
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["baselines"]["chance"] == 0.5


def test_a_folder_is_not_a_recipe(tmp_path):
    (tmp_path / "pets").mkdir()
    result = torchcaps_command("train", "pets", cwd=tmp_path)
    assert result.returncode == 2
    assert "torchcaps train --data pets" in result.stderr


def test_eval(trained, folder, tmp_path):
    own = torchcaps_command("eval", trained, "--json", cwd=tmp_path)
    figures = json.loads(own.stdout)
    summary = json.loads((trained / "summary.json").read_text())
    assert figures["accuracy"] == summary["test_accuracy"]
    assert figures["n"] == summary["test_n"]
    everything = json.loads(torchcaps_command("eval", trained, "--data", folder, "--json", cwd=tmp_path).stdout)
    assert everything["n"] == 25
    assert "images right" in torchcaps_command("eval", trained, cwd=tmp_path).stdout


def test_eval_with_unknown_classes(trained, tmp_path):
    for kind in ("down", "sideways"):
        for index in range(3):
            draw(tmp_path / "data" / kind / f"{index}.png", "down", (20, 20), index)
    result = torchcaps_command("eval", trained, "--data", tmp_path / "data", cwd=tmp_path)
    assert result.returncode == 2
    assert "sideways" in result.stderr


def test_predict_answers_nine_of_ten_and_names_the_tenth(trained, folder, tmp_path):
    images = sorted((folder / "down").glob("*.jpg"))[:9]
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(images[0].read_bytes()[:100])
    result = torchcaps_command("predict", trained, *images, broken, "--json", cwd=tmp_path)
    assert result.returncode == 1
    answers = json.loads(result.stdout)
    assert len(answers) == 9
    assert "broken.jpg" in result.stderr
    assert "Traceback" not in result.stderr
    assert set(answers[0]) == {"file", "classes", "ranking"}
    assert {entry["class"] for entry in answers[0]["ranking"]} == {"across", "down"}


def test_file_names_are_printed_as_they_are(trained, folder, tmp_path):
    odd = tmp_path / "cat[old].jpg"
    odd.write_bytes((folder / "down" / "0.jpg").read_bytes())
    broken = tmp_path / "x[red].jpg"
    broken.write_text("no image")
    result = torchcaps_command("predict", trained, "cat[old].jpg", "x[red].jpg", cwd=tmp_path)
    assert result.returncode == 1
    assert "cat[old].jpg" in result.stdout
    assert "x[red].jpg" in result.stderr


def test_predict_rejects_short_capsules(trained, folder, tmp_path):
    image = folder / "down" / "0.jpg"
    result = torchcaps_command("predict", trained, image, "--reject", "1", cwd=tmp_path)
    assert result.returncode == 0
    assert "none of these" in result.stdout
    assert json.loads(torchcaps_command("predict", trained, image, "--json", cwd=tmp_path).stdout)[0]["classes"]


def test_explain_writes_figures_and_arrays(trained, folder, tmp_path):
    result = torchcaps_command("explain", trained, folder / "down" / "0.jpg", "--out", "why", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    written = {path.name for path in (tmp_path / "why").iterdir()}
    assert written == {"lengths.png", "reconstruction.png", "sweep.png", "routing.png", "arrays.npz"}
    arrays = np.load(tmp_path / "why" / "arrays.npz")
    assert arrays["sweep"].shape == (16, 11, 3, 32, 32)
    assert np.allclose(arrays["couplings"].sum(-1), 1, atol=1e-5)


def test_explain_a_class_by_name(trained, folder, tmp_path):
    image = folder / "down" / "0.jpg"
    good = torchcaps_command("explain", trained, image, "--out", "a", "--target", "across", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    bad = torchcaps_command("explain", trained, image, "--out", "b", "--target", "acros", cwd=tmp_path)
    assert bad.returncode == 2
    assert "did you mean 'across'" in bad.stderr
    assert not (tmp_path / "b").exists()


def test_explain_needs_capsules(folder, tmp_path):
    save(create_model("matched_cnn", image_shape=(3, 32, 32), parameters=100_000), tmp_path / "cnn")
    result = torchcaps_command("explain", "cnn", folder / "down" / "0.jpg", "--out", "why", cwd=tmp_path)
    assert result.returncode == 2
    assert not (tmp_path / "why").exists()


def test_list(tmp_path):
    text = torchcaps_command("list", cwd=tmp_path).stdout
    for word in ("digits", "capsnet_small", "dynamic", "fashion-mnist"):
        assert word in text


def test_version(tmp_path):
    assert torchcaps.__version__ in torchcaps_command("--version", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digit"], "did you mean 'digits'"),
        (["train", "--epochs", "-3"], "train.epochs"),
        (["train", "--precision", "fp8"], "train.precision"),
        (["train", "--device", "tpu"], "--device"),
        (["train", "--data", "nowhere"], "nowhere"),
        (["train", "--set", "train.epoch=3"], "did you mean 'epochs'"),
        (["train", "--resume", "nowhere"], "is not a run"),
        (["train", "digits", "--resume", "nowhere"], "omit RECIPE"),
        (["eval", "nothing"], "no model 'nothing'"),
        (["predict", "nothing", "a.png"], "no model 'nothing'"),
        (["train", "--data", "empty"], "empty"),
    ],
)
def test_mistake_exits_2_with_one_message_and_writes_nothing(tmp_path, arguments, message):
    (tmp_path / "empty").mkdir()
    result = torchcaps_command(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in torchcaps_process("train", "digit", "--debug", cwd=tmp_path).stderr


def test_a_process_ends_as_its_command_does(tmp_path):
    result = torchcaps_process("train", "digit", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "error: there is no recipe called 'digit': did you mean 'digits'?\n"


def test_folder_in_use_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("mine")
    result = torchcaps_command("train", "--out", "run", *settings(), cwd=tmp_path)
    assert result.returncode == 2
    assert "not empty" in result.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["precious.txt"]


def test_output_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    result = torchcaps_command("train", "--out", "file/run", *settings("data.limit=50"), cwd=tmp_path)
    assert result.returncode == 2
    assert "cannot write" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals work otherwise there")
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "torchcaps.cli", "train", "--out", "run", *settings(*LONG)]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # in the background it would be ignored
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "checkpoints" / "last.safetensors").exists():
        assert time.monotonic() < deadline, "the run did not start"
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "torchcaps train --resume run" in stdout
    assert "Traceback" not in stderr
    done = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    again = torchcaps_command("train", "--resume", "run", "--epochs", done + 1, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "run" / "report.html").exists()


def test_words_of_a_file_are_printed_as_they_are(capsys):
    odd = ":cat: [bold]x[/bold] " + 100 * "long"
    common.say(odd)
    common.show(("file",), [(":cat: [b]",)])
    said, _, row = capsys.readouterr().out.splitlines()
    assert (said, row.rstrip()) == (odd, ":cat: [b]")


def test_a_narrow_window_shortens_no_name(monkeypatch):
    printed = io.StringIO()
    monkeypatch.setattr(common, "out", Console(file=printed, width=24))
    common.show(["drawn by", "label found"], [["a-generator-with-a-long-name", "81.86%"]])
    assert "".join(printed.getvalue().split()).replace("81.86%", "").endswith("a-generator-with-a-long-name")


def test_threads_that_wait_sleep_unless_the_environment_says_otherwise(monkeypatch):
    for name in cli.OPENMP_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    code = "import os, sys; from torchcaps import cli; cli._let_waiting_threads_sleep(); "
    code += "print('torch' in sys.modules, os.environ.get('OMP_WAIT_POLICY'))"  # PyTorch reads it when it is loaded
    for chosen, expected in (
        ({}, "PASSIVE"),
        ({"GOMP_SPINCOUNT": "9"}, "None"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE"),
    ):
        found = subprocess.run([sys.executable, "-c", code], env=os.environ | chosen, capture_output=True, text=True)
        assert found.stdout.split() == ["False", expected]
