"""Programs for the browser give what the models give."""

import numpy as np
import pytest
import torch
from torch import nn

from torchcaps.errors import UserError
from torchcaps.exchange.onnx_file import runner
from torchcaps.explain.placement import lattice_lengths
from torchcaps.explain.votes import routing_trace
from torchcaps.models import create_model
from torchcaps.site import programs
from torchcaps.site.programs import Program, programs_of, write_program

SMALL = {"channels": 4, "types": 2, "hidden": (8, 16)}


@pytest.fixture(autouse=True)
def few_iterations(monkeypatch):
    monkeypatch.setattr(programs, "MAX_ITERATIONS", 2)  # each takes its time to trace


def run(program, path, *inputs):
    write_program(program, path)
    return dict(zip(program.outputs, runner(path)(inputs)))


@pytest.mark.parametrize("variant", ["paper", "authors"])
def test_routing_is_that_of_the_trace(variant, tmp_path):
    torch.manual_seed(0)
    model = create_model("capsnet_small", variant=variant, iterations=2, leaky=variant == "authors", **SMALL).eval()
    model.classes.weight.data.mul_(30)
    images = torch.rand(2, 1, 28, 28)
    found = run(programs_of(model)["encode"], tmp_path / "encode.onnx", images)
    for index, image in enumerate(images):
        expected = routing_trace(model, image, 2)
        torch.testing.assert_close(found["parts"][index], expected.parts)
        torch.testing.assert_close(found["votes"][index], expected.votes)
        for name in ("couplings", "poses", "lengths"):
            torch.testing.assert_close(found[name][:, index], getattr(expected, name), atol=1e-5, rtol=1e-4)


def test_views_of_pose_capsules_are_those_of_the_lattice(tmp_path):
    torch.manual_seed(0)
    model = create_model("posecaps_small", width=4, types=2, hidden=8).eval()
    image = torch.rand(1, 1, 28, 28)
    program = programs_of(model)["encode"]
    found = run(program, tmp_path / "encode.onnx", image, model.search_linear)
    output = model(image)
    torch.testing.assert_close(found["lengths"], output.lengths)
    torch.testing.assert_close(found["scale"], output.placement.scale)
    views = model.lattice.poses().linear.float()[: len(model.search_linear)]
    in_views = runner(tmp_path / "encode.onnx")([image, views])[2]
    expected = lattice_lengths(model, image[0]).flatten(0, 1)[: len(views)]
    torch.testing.assert_close(in_views[0], expected, atol=1e-5, rtol=1e-4)


class Halves(Program):
    """Weights of which some lose something in half precision."""

    inputs, outputs = ("x",), ("y",)

    def __init__(self, exact):
        super().__init__()
        values = torch.arange(2048.0).view(32, 64) / 2048
        self.weight = nn.Parameter(values if exact else values / 3)

    def forward(self, x):
        return (x @ self.weight,)

    def example(self, batch):
        return (torch.rand(batch, 32),)


@pytest.mark.parametrize("exact", [True, False])
def test_weights_are_halved_where_that_loses_nothing(exact, tmp_path):
    program, path = Halves(exact), tmp_path / "program.onnx"
    x = torch.rand(3, 32)
    found = run(program, path, x)["y"]
    torch.testing.assert_close(found, program(x)[0])
    assert (path.stat().st_size < 3 * 2048) == exact


def test_a_program_that_differs_from_its_model_is_not_accepted(tmp_path):
    program, path = Halves(True), tmp_path / "program.onnx"
    write_program(program, path)
    program.weight.data[0, 0] += 0.01
    with pytest.raises(UserError, match="the exported program's y differs from the model's by up to"):
        programs.compare(program, path)
    program.weight.data[0, 0] = np.nan
    with pytest.raises(UserError, match="nan"):
        programs.compare(program, path)


def test_models_that_cannot_be_traced_are_refused(tmp_path):
    class Undecided(Halves):
        def forward(self, x):
            return (x if x.sum() > 3 else -x,)

    with pytest.raises(UserError, match="cannot be exported for a browser"):
        write_program(Undecided(True), tmp_path / "program.onnx")
    model = create_model("capsnet_small", **SMALL)
    model.none_below, model.familiarity = 0.5, lambda images, output: output.lengths[:, 0]
    with pytest.raises(UserError, match="remove none_below"):
        programs_of(model)
