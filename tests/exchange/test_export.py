"""A model in the forms of other runtimes: it answers there as here, and says what it needs."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import torchcaps
from torchcaps.exchange import onnx_file, packages
from torchcaps.exchange.check import TOLERANCE
from torchcaps.exchange.export import export
from torchcaps.exchange.onnx_file import runner
from torchcaps.exchange.program import trace
from torchcaps.models import CapsNet, create_model, save
from torchcaps.ops.dispatch import requested, using


def batch(B):
    return torch.rand(B, 2, 14, 16, generator=torch.Generator().manual_seed(B))


@pytest.mark.parametrize("B", [1, 2, 17])
def test_onnx_answers_for_any_batch(B, small, exported):
    session = onnxruntime.InferenceSession(exported("onnx").path, providers=["CPUExecutionProvider"])
    out = torchcaps.load(small)(batch(B))
    lengths, drawn = session.run(["lengths", "reconstruction"], {"images": batch(B).numpy()})
    np.testing.assert_allclose(lengths, out.lengths.detach(), atol=1e-5, rtol=0)
    np.testing.assert_allclose(drawn, out.reconstruction.detach(), atol=1e-5, rtol=0)


def test_onnx_says_what_it_needs(exported):
    path, agreement = exported("onnx")
    assert agreement.examples == 12
    assert agreement.difference < 1e-5
    model = onnx.load(path)
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {
        "images": ["batch", 2, 14, 16],
        "lengths": ["batch", 3],
        "reconstruction": ["batch", 2, 14, 16],
    }
    about = {each.key: each.value for each in model.metadata_props}
    assert json.loads(about["class_names"]) == ["ant", "bee", "cow"]
    assert json.loads(about["image_shape"]) == [2, 14, 16]
    assert json.loads(about["preprocessing"]) == {
        "image_shape": [2, 14, 16],
        "resize_to": [16, 18],
        "scale": pytest.approx(1 / 255),
    }
    assert model.opset_import[0].version == 20
    assert {node.domain for node in model.graph.node} == {""}  # ONNX's own operators, and no others
    assert [path.name for path in path.parent.iterdir()] == ["small.onnx"]


def test_another_opset_and_weights_too_large_for_one_file(small, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "MAX_PROTOBUF_BYTES", 1000)
    path, agreement = export(str(small), "onnx", tmp_path / "deep" / "small.onnx", opset=21)
    assert onnx.load(path).opset_import[0].version == 21
    assert agreement.difference < 1e-5
    assert sorted(each.name for each in path.parent.iterdir()) == ["small.onnx", "small.onnx.data"]
    weights = sum(each.numel() for each in torchcaps.load(small).parameters())
    assert (path.parent / "small.onnx.data").stat().st_size > 4 * 0.9 * weights  # the smallest stay where they are
    with torch.no_grad():
        expected = torchcaps.load(small)(batch(2)).lengths
    torch.testing.assert_close(runner(path)([batch(2)])[0], expected, atol=1e-5, rtol=0)


def test_the_program_runs_without_torchcaps(small, exported, tmp_path):
    inputs, answers = tmp_path / "inputs.pt", tmp_path / "answers.pt"
    torch.save(batch(5), inputs)
    code = (
        f"import sys, torch; program = torch.export.load({str(exported('torch').path)!r}).module();"
        f"torch.save(program(torch.load({str(inputs)!r})), {str(answers)!r}); assert 'torchcaps' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    found = torch.load(answers)
    out = torchcaps.load(small)(batch(5))
    torch.testing.assert_close(found[0], out.lengths, atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1], out.reconstruction, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("TORCHCAPS_EVERY_EXPORT"), reason="half a minute of C++; `make exports` does it")
def test_the_compiled_package_answers_for_any_batch(exported, small):
    path, agreement = exported("aoti")
    assert agreement.difference < 1e-5
    run = torch._inductor.aoti_load_package(str(path))
    with torch.no_grad():
        for B in (1, 6):
            expected = torchcaps.load(small)(batch(B)).lengths
            torch.testing.assert_close(run(batch(B))[0], expected, atol=1e-5, rtol=0)


def test_without_a_compiler_aoti_says_so(small, call, tmp_path, monkeypatch):
    from torch._inductor import cpp_builder, exc

    def none():
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    code, _, complaint = call("export", small, "--to", "aoti", "--out", tmp_path / "x.pt2")
    assert code == 2
    assert "no compiler was found: install g++" in complaint
    assert list(tmp_path.iterdir()) == []


def test_a_failing_compiler_is_told(small, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("C++ compile error\nand a thousand lines")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    with pytest.raises(torchcaps.UserError, match="could not compile the model: C\\+\\+ compile error$"):
        packages.write_library(torchcaps.load(small), tmp_path / "x.pt2")


def test_hub_folders_are_read_by_load_and_from_pretrained(small, exported):
    folder = exported("hub").path
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    expected = torchcaps.load(small)(batch(3)).lengths
    assert torch.equal(torchcaps.load(folder)(batch(3)).lengths, expected)
    assert torch.equal(CapsNet.from_pretrained(folder)(batch(3)).lengths, expected)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: torchcaps\npipeline_tag: image-classification\n")
    assert "Classes: ant, bee, cow." in card
    assert "Nothing about its accuracy" in card


def test_cards_have_what_was_measured(small, tmp_path):
    card = (export("capsnet-digits", "hub", tmp_path / "hub").path / "README.md").read_text(encoding="utf-8")
    assert "\n# capsnet-digits\n" in card
    assert "error 0.2786% on 359 test images (1 wrong)" in card
    run = tmp_path / "run"
    save(torchcaps.load(small), run / "model")
    (run / "summary.json").write_text(json.dumps({"test_accuracy": 0.9871, "test_n": 1234, "recipe": "digits"}))
    card = (export(str(run), "hub", tmp_path / "again").path / "README.md").read_text(encoding="utf-8")
    assert "- test accuracy 98.71%\n- 1,234 test images\n- recipe `digits`" in card


def test_the_command_prints_where_and_how_well(small, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed, complaint = call("export", small, "--to", "hub")
    assert (code, complaint) == (0, "")
    assert printed == "small-hub\nchecked on 3 inputs: largest difference 0.0e+00\n"
    assert torchcaps.load(tmp_path / "small-hub").class_names == ("ant", "bee", "cow")


def test_mistakes_are_told_and_leave_nothing(small, call, tmp_path):
    (tmp_path / "file").touch()
    for arguments, message in (
        (["capsnet-digit"], "did you mean 'capsnet-digits'"),
        ([small, "--to", "onx"], "--to onx: did you mean 'onnx'"),
        ([small, "--to", "torch", "--opset", "20"], "--opset is for --to onnx"),
        ([small, "--opset", "11", "--out", tmp_path / "a.onnx"], "--opset 11: choose from 18 to"),
        ([small, "--opset", "99", "--out", tmp_path / "a.onnx"], "--opset 99: choose from 18 to"),
        ([small, "--out", tmp_path / "a.bin"], "give a file that ends in .onnx"),
        ([small, "--to", "aoti", "--out", tmp_path / "a.onnx"], "give a file that ends in .pt2"),
        ([small, "--out", tmp_path], "that is a folder"),
        ([small, "--to", "hub", "--out", tmp_path / "file"], "that is a file"),
        ([small, "--to", "hub", "--out", tmp_path / "file" / "x"], "file is a file, and nothing can be written"),
        (["not looked for yet", "--out", tmp_path / "file" / "deep" / "x.onnx"], f"{tmp_path / 'file'} is a file, and"),
    ):
        code, printed, complaint = call("export", *arguments)
        assert (code, printed) == (2, "")
        assert message in complaint
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_missing_package_is_named(small, call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    code, _, complaint = call("export", small, "--out", tmp_path / "x.onnx")
    assert code == 2
    assert "pip install 'torchcaps[export]'" in complaint
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "w.h5").touch()
    assert "pip install 'torchcaps[convert]'" in call("convert", tmp_path / "w.h5", "--from", "keras")[2]


def test_models_that_draw_by_dropout_cannot_be_exported():
    model = create_model("pix2pix_small", image_shape=(1, 16, 16), channels=4, noise="dropout")
    with pytest.raises(torchcaps.UserError, match="draws by dropout"):
        trace(model)


@pytest.mark.parametrize("before", ["chunked", None])
def test_exporting_leaves_the_backend_as_it_was(before, small, monkeypatch):
    if before:
        monkeypatch.setenv("TORCHCAPS_BACKEND", before)
    assert "torchcaps" not in str(trace(torchcaps.load(small)).program.graph)
    assert os.environ.get("TORCHCAPS_BACKEND") == before
    with using("reference"):
        assert requested(torch.zeros(1)) == "reference"
    assert os.environ.get("TORCHCAPS_BACKEND") == before


def test_a_difference_is_found_and_nothing_is_written(small, call, tmp_path, monkeypatch):
    original = onnx_file.runner

    def off(path):
        run = original(path)
        return lambda inputs: [run(inputs)[0] + 2 * TOLERANCE, *run(inputs)[1:]]

    monkeypatch.setattr(onnx_file, "runner", off)
    code, _, complaint = call("export", small, "--out", tmp_path / "new" / "x.onnx")
    assert code == 2
    assert "lengths differs from the model's by up to 0.0002" in complaint
    assert list(tmp_path.iterdir()) == []
