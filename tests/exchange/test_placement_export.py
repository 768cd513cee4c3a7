"""Models that say how classes stand: in other runtimes they say it, too."""

import json
import os

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import torchcaps
from torchcaps.exchange.check import compare
from torchcaps.exchange.export import export
from torchcaps.exchange.onnx_file import write_onnx
from torchcaps.exchange.packages import METADATA
from torchcaps.exchange.program import export_wrapper
from torchcaps.models import create_model

POSE = ("x", "y", "angle", "scale", "spread")
PLAIN = ("lengths", "reconstruction", *POSE, "familiarity")
SMALL = {"image_shape": (1, 16, 16), "num_classes": 3}
SHEARED = {"stretches": (0.8, 1.0, 1.25), "shears": (-0.2, 0.0, 0.2), "search": "full", "decoder": "none"}


def posecaps(name="posecaps_small", **options):
    """One whose votes differ: untrained, every view says the same of every class."""
    torch.manual_seed(0)
    model = create_model(name, **options).eval()
    torch.nn.init.normal_(model.offset.weight)
    torch.nn.init.normal_(model.offset.bias)
    return model


def batch(B, shape=(1, 16, 16)):
    return torch.rand(B, *shape, generator=torch.Generator().manual_seed(B))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model = posecaps(**SMALL)
    model.none_below = 1.75
    return torchcaps.save(model, tmp_path_factory.mktemp("pose") / "pose")


def agrees(model, outputs, images):
    """Whether what a runtime answered is what the model does, all but rounding; angles up to whole turns."""
    out = model(images)
    expected = {"lengths": out.lengths, "reconstruction": out.reconstruction, **out.placement._asdict()}
    expected["familiarity"] = model.familiarity(images, out)
    for name, found in outputs.items():
        gap = np.abs(np.asarray(found) - expected[name].detach().numpy())
        assert gap.shape == expected[name].shape
        assert (np.minimum(gap, 360 - gap) if name == "angle" else gap).max() < 1e-3


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("posecaps_small", SMALL),
        pytest.param("posecaps", {}, marks=pytest.mark.slow),
        pytest.param(
            "posecaps_small", {"image_shape": (3, 28, 20), "num_classes": 2, **SHEARED}, marks=pytest.mark.slow
        ),
    ],
)
def test_onnx_says_how_classes_stand_for_any_batch(name, options, tmp_path):
    model = posecaps(name, **options)
    model.none_below = 1.75
    model.set_thickness_weight(torch.rand(model.num_classes, model.types * model.dim + 1))
    assert write_onnx(model, tmp_path / "x.onnx").difference < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    drawn, more = ((), ("stretch", "shear")) if "shears" in options else (("reconstruction",), ())
    assert tuple(names) == ("lengths", *drawn, *POSE, *more, "thickness", "familiarity")
    assert json.loads(session.get_modelmeta().custom_metadata_map["none_below"]) == 1.75
    shapes = {each.name: tuple(each.shape) for each in session.get_outputs()}
    assert {shapes[name] for name in POSE} == {("batch", model.num_classes)}
    assert shapes["familiarity"] == ("batch",)
    assert {node.domain for node in onnx.load(tmp_path / "x.onnx").graph.node} == {""}
    for B in (1, 3, 7):
        images = batch(B, model.image_shape)
        agrees(model, dict(zip(names, session.run(None, {"images": images.numpy()}))), images)


def test_the_program_says_it_too(saved, tmp_path):
    path, agreement = export(str(saved), "torch", tmp_path / "pose.pt2")
    assert agreement.difference < 1e-5
    about = {METADATA: ""}
    program, model = torch.export.load(path, extra_files=about).module(), torchcaps.load(saved)
    assert json.loads(about[METADATA])["none_below"] == 1.75
    with torch.no_grad():
        for B in (1, 3, 7):
            agrees(model, dict(zip(PLAIN, program(batch(B)))), batch(B))


def test_hub_folders_keep_it(saved, tmp_path):
    folder = export(str(saved), "hub", tmp_path / "hub").path
    ours, theirs = (torchcaps.load(each)(batch(3)).placement for each in (saved, folder))
    assert torch.equal(ours.angle, theirs.angle)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("TORCHCAPS_EVERY_EXPORT"), reason="half a minute of C++; `make exports` does it")
def test_the_compiled_package_says_it_too(saved, tmp_path):
    path, agreement = export(str(saved), "aoti", tmp_path / "pose.pt2")
    assert agreement.difference < 1e-4
    run, model = torch._inductor.aoti_load_package(str(path)), torchcaps.load(saved)
    assert json.loads(run.get_metadata()["none_below"]) == 1.75
    with torch.no_grad():
        for B in (1, 7):
            agrees(model, dict(zip(PLAIN, run(batch(B)))), batch(B))


class Given:
    """Answers that are the inputs."""

    outputs = ("lengths", "angle", "spread", "reconstruction")

    def __call__(self, *values):
        return values


def answer(angle=(10.0, 179.99999), spread=(5.0, 5.0), drawn=0.0):
    rows = torch.tensor([[0.9, 0.1]]), torch.tensor([angle]), torch.tensor([spread])
    return (*rows, torch.full((1, 1, 4, 4), drawn))


def test_angles_are_compared_up_to_whole_turns_and_in_radians():
    assert compare(Given(), lambda _: answer(angle=(370.0, -179.99999)), answer()) < 1e-6
    assert compare(Given(), lambda _: answer(angle=(10.005, 179.99999)), answer()) == pytest.approx(8.7e-5, rel=0.01)
    with pytest.raises(torchcaps.UserError, match="angle differs .* by up to 0.00017 radians"):
        compare(Given(), lambda _: answer(angle=(10.01, 179.99999)), answer())
    with pytest.raises(torchcaps.UserError, match="spread differ"):
        compare(Given(), lambda _: answer(spread=(5.01, 5.0)), answer())


def test_an_angle_that_the_views_leave_open_may_be_another():
    wide = {"spread": (104.0, 5.0)}  # of the class that is drawn
    assert compare(Given(), lambda _: answer(angle=(80.0, 179.99999), **wide, drawn=0.5), answer(**wide)) < 1e-6
    with pytest.raises(torchcaps.UserError, match="angle differ"):
        compare(Given(), lambda _: answer(angle=(float("nan"), 179.99999), **wide), answer(**wide))
    narrow = {"spread": (5.0, 104.0)}
    with pytest.raises(torchcaps.UserError, match="reconstruction differ"):
        compare(Given(), lambda _: answer(**narrow, drawn=0.5), answer(**narrow))


def test_another_familiarity_is_told_unless_two_classes_tie():
    class Scored(Given):
        outputs = ("lengths", "familiarity")

    def scored(second, familiarity):
        return torch.tensor([[0.9, second]]), torch.tensor([familiarity])

    assert compare(Scored(), lambda _: scored(0.1, 2.00005), scored(0.1, 2.0)) == pytest.approx(5e-5, rel=0.02)
    with pytest.raises(torchcaps.UserError, match="familiarity differs .* by up to 0.01,"):
        compare(Scored(), lambda _: scored(0.1, 2.01), scored(0.1, 2.0))
    assert compare(Scored(), lambda _: scored(0.9, 2.5), scored(0.9, 2.0)) == 0


def test_places_count_less_the_shorter_their_class():
    class Placed(Given):
        outputs = ("lengths", "x")

    def placed(x):
        return torch.tensor([[0.9, 0.02]]), torch.tensor([x])

    assert compare(Placed(), lambda _: placed((5.0, 3.0002)), placed((5.0, 3.0))) == pytest.approx(8e-5, rel=0.02)
    for wrong in ((5.0002, 3.0), (5.0, 3.001)):
        with pytest.raises(torchcaps.UserError, match="x differs .* pixels"):
            compare(Placed(), lambda _, wrong=wrong: placed(wrong), placed((5.0, 3.0)))


def test_models_without_a_placement_have_no_more_outputs():
    model = create_model("baseline_cnn", image_shape=(1, 16, 16), channels=(2, 2, 2), kernel=3, hidden=(4,))
    assert export_wrapper(model).outputs == ("lengths",)
