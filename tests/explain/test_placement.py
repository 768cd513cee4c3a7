import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps import explain
from torchcaps.capsules import length
from torchcaps.errors import UserError
from torchcaps.explain.placement import POSE_SWEEP, runner_up
from torchcaps.explain.placement_charts import place_on, pose_words
from torchcaps.geometry import Affine, Lattice, view
from torchcaps.models import Placement, PoseCaps, create_model
from torchcaps.predict import explain_file

SCALES = (0.8, 1.0, 1.25)


def make(image_shape=(1, 12, 14), num_classes=3, **options) -> PoseCaps:
    """A small model whose views disagree about the pose."""
    small = {"class_dim": 4, "turn": 30.0, "turn_step": 15.0, "scales": (1.0,), **options}
    model = create_model("posecaps_small", image_shape=image_shape, num_classes=num_classes, **small)
    torch.nn.init.normal_(model.offset.weight, std=2.0)
    return model.eval()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return make(scales=SCALES)


@pytest.fixture(scope="module")
def image():
    return torch.rand(1, 12, 14, generator=torch.Generator().manual_seed(1))


def words(figure) -> list[str]:
    import matplotlib.text

    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def test_models_are_told_apart_by_what_they_offer(model):
    assert explain.has_placement(model)
    assert not explain.has_placement(create_model("capsnet_small", image_shape=(1, 14, 14)))
    assert not explain.has_placement(create_model("strong_cnn", image_shape=(1, 12, 12), width=8))


def test_lattice_lengths_are_those_of_the_pose_at_that_place(model, image):
    lengths = explain.lattice_lengths(model.train(), image)
    assert model.training  # as it was
    model.eval()
    assert lengths.shape == (5, 3, 3)
    for a, s in ((0, 2), (3, 0)):
        angle, scale = torch.tensor([model.lattice.angles[a]]), torch.tensor([model.lattice.scales[s]])
        with torch.no_grad():
            seen = model.encode_views(image[None], Affine.of(angle=angle, scale=scale))
        torch.testing.assert_close(lengths[a, s], length(seen.capsules)[0, 0])


def test_stretches_and_shears_are_reduced_to_the_largest_length():
    model = make((1, 12, 12), search="full", stretches=(0.8, 1.0, 1.25), shears=(-0.2, 0.2))
    image = torch.rand(1, 12, 12)
    with torch.no_grad():
        every = length(model.encode(image[None]).capsules)[0]
    torch.testing.assert_close(explain.lattice_lengths(model, image), every.view(5, 1, 6, 3).amax(2))
    assert set(explain.sweep_pose(model, image)) == set(POSE_SWEEP)


def test_poses_are_read_as_forward_reads_them_in_any_number(model, monkeypatch):
    monkeypatch.setattr("torchcaps.explain.placement.BATCH", 2)
    images = torch.rand(5, 1, 12, 14)
    read = explain.read_poses(model, images)
    with torch.no_grad():
        out = model(images)
    torch.testing.assert_close((read.lengths, read.capsules), (out.lengths, out.poses))
    torch.testing.assert_close(read.placement[:5], out.placement[:5])
    assert read.placement.stretch is None
    reading = explain.read_placements(model, images, torch.tensor([0, 1, 2, 0, 1]))
    torch.testing.assert_close(reading.placement.angle[2], out.placement.angle[2, 2])
    torch.testing.assert_close(explain.read_placements(model, images).classes, out.lengths.argmax(-1))


def test_drawings_stand_where_the_model_puts_them(model, image):
    reading = explain.read_placements(model, image[None])
    with torch.no_grad():
        torch.testing.assert_close(explain.draw_placed(model, reading), model(image[None]).reconstruction)
    upright = reading._replace(placement=Placement(*(torch.tensor([v]) for v in (6.5, 5.5, 0.0, 1.0, 0.0))))
    torch.testing.assert_close(explain.draw_placed(model, upright), explain.draw_upright(model, reading))
    torch.testing.assert_close(explain.canonical_views(model, upright)[0], image)


def test_the_canonical_view_undoes_the_pose(model):
    x, y = torch.meshgrid(torch.arange(14.0), torch.arange(12.0), indexing="xy")
    blob = torch.exp(-((x - 6.5).square() / 12 + (y - 5.5).square() / 4))[None]
    placement = Placement(*(torch.tensor([v]) for v in (7.5, 5.0, 30.0, 1.1, 0.0)))
    turned = view(blob[None], model.affine(placement).inverse()[None], (12, 14))[:, 0]
    reading = explain.read_placements(model, turned)._replace(placement=placement)
    torch.testing.assert_close(explain.canonical_views(model, reading)[0], blob, atol=0.1, rtol=0)


def test_a_sweep_by_ten_degrees_is_the_drawing_turned_by_ten_degrees(model, image):
    swept = explain.sweep_pose(model, image, 2, {"angle": (0.0, 10.0), "scale": (1.0, 1.1), "x": (0.0, 3.0)})
    reading = explain.read_placements(model, image[None], torch.tensor([2]))
    place = reading.placement
    for name, changed in (("angle", place.angle + 10), ("scale", 1.1 * place.scale), ("x", place.x + 3)):
        moved = explain.draw_placed(model, reading._replace(placement=place._replace(**{name: changed})))
        torch.testing.assert_close(swept[name], torch.cat([explain.draw_placed(model, reading), moved]))
    # The same by hand: the upright drawing through a pose of ten degrees more.
    pose = model.affine(place) @ Affine.of(angle=torch.tensor([10.0]))
    by_hand = view(explain.draw_upright(model, reading), pose.inverse()[None], (12, 14))[:, 0]
    torch.testing.assert_close(swept["angle"][1:], by_hand, atol=1e-5, rtol=0)


def test_dimensions_are_changed_by_shares_of_the_length(model, image):
    swept = explain.sweep_capsule(model, image, 1, (-0.25, 0.0, 0.25))
    assert swept.shape == (4, 3, 1, 12, 14)
    reading = explain.read_placements(model, image[None], torch.tensor([1]))
    torch.testing.assert_close(swept[3, 1], explain.draw_placed(model, reading)[0])
    changed = reading.capsules.clone()
    changed[0, 3] += 0.25 * reading.lengths[0]
    torch.testing.assert_close(swept[3, 2], explain.draw_placed(model, reading._replace(capsules=changed))[0])


def test_the_cross_marks_the_pose_that_was_read(model, image):
    reading = explain.read_placements(model, image.expand(2, -1, -1, -1), torch.tensor([2, 0]))
    lengths = explain.lattice_lengths(model, image)
    figure = explain.figure_lattice(lengths, model.lattice, reading, ["a", "b", "c"])
    for number, (axes, index) in enumerate(zip(figure.axes[1:3], (2, 0))):
        x, y = axes.lines[-1].get_xydata()[0]
        assert x == pytest.approx(float(reading.placement.angle[number]))
        assert np.exp(y) == pytest.approx(float(reading.placement.scale[number]))
        (mesh,) = axes.collections
        np.testing.assert_allclose(mesh.get_array().reshape(3, 5), lengths[..., index].T)
        assert [text.get_text() for text in axes.get_yticklabels()] == ["0.8", "1", "1.25"]
        assert [text.get_text() for text in axes.get_xticklabels()] == ["−30", "−15", "0", "15", "30"]
    assert any(text.startswith("c, length") for text in words(figure))


def test_a_pose_on_the_full_circle_lies_on_the_map():
    lattice = Lattice.regular(180, 15)
    assert place_on(lattice, -179.0, 1.0) == (181.0, 0.0)
    assert place_on(lattice, -170.0, 1.25) == (-170.0, pytest.approx(0.2231, abs=1e-4))
    assert place_on(Lattice.regular(30, 15), -179.0, 1.0)[0] == -179.0


def test_words_of_a_pose():
    placement = Placement(*(torch.tensor([v, w]) for v, w in ((3.04, -1), (2, 2), (-0.4, -12.6), (1.254, 1), (3.6, 0))))
    assert pose_words(placement, 0) == ["0° ± 4°", "× 1.25", "x 3.0, y 2.0"]
    assert pose_words(placement, 1) == ["−13° ± 0°", "× 1.00", "x −1.0, y 2.0"]
    assert runner_up(torch.tensor([0.1, 0.9, 0.3]), 1) == 2
    assert runner_up(torch.tensor([0.1, 0.9, 0.3]), 0) == 1
    assert runner_up(torch.tensor([0.9]), 0) is None


def test_the_pose_is_drawn_on_the_image(model, image):
    """The dot lies at x and y, the arrow's tip above it as the angle says."""
    place = Placement(*(torch.tensor([v]) for v in (4.0, 7.0, 90.0, 2.0, 0.0)))
    reading = explain.read_placements(model, image[None])._replace(placement=place)
    axes = explain.figure_placed(model, reading, image[None], ["a", "b", "c"], true=torch.tensor([False])).axes[0]
    left, right, _, top = axes.images[0].get_extent()
    inch = (right - left) / 14
    dot = axes.lines[-1].get_xydata()[0]
    assert dot.tolist() == pytest.approx([left + 4.5 * inch, top + 7.5 * inch])
    (square,) = (patch for patch in axes.patches if type(patch).__name__ == "Polygon")
    corner = (square.get_xy()[0] - dot) / inch  # the upper left one, turned to the left and twice as large
    assert corner.tolist() == pytest.approx([-6, 6], abs=1e-4)


def test_histograms_count_each_pose_once():
    classes = torch.tensor([0, 0, 1, 1, 1])
    angles = torch.tensor([-10.0, 0.0, 5.0, 10.0, float("nan")])
    figure = explain.figure_read_poses(angles, torch.ones(5), classes, ["a", "b"], bins=4)
    counts = [sum(bar.get_height() for bar in axes.patches) for axes in figure.axes[:2]]
    assert counts == [4, 5]
    many = explain.figure_read_poses(angles, torch.ones(5), classes, [str(j) for j in range(50)])
    assert len(many.axes) == 2
    alike = explain.figure_read_poses(torch.tensor([30.0, 30.000002]), torch.ones(2), classes[:2], ["a", "b"])
    assert sum(bar.get_height() for bar in alike.axes[0].patches) == 2  # an untrained model says nearly the same of all


@pytest.mark.parametrize("decoder", [True, False])
def test_files_of_explain(decoder, tmp_path):
    torch.manual_seed(0)
    model = make((1, 12, 12), decoder="dense" if decoder else "none", class_names=["cat", "dog", "$\\bad{$"])
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 12), np.uint8)).save(tmp_path / "image.png")
    files = explain_file(model, tmp_path / "image.png", tmp_path / "why", "dog")
    drawings = ["reconstruction", "sweep"] if decoder else []
    assert [file.stem for file in files] == ["lengths", "lattice", "canonical", *drawings, "arrays"]
    assert all(np.asarray(Image.open(file).convert("L")).std() > 5 for file in files[:-1])
    arrays = np.load(files[-1])
    assert arrays["lattice_lengths"].shape == (5, 1, 3)
    assert arrays["angle"].shape == arrays["x"].shape == (3,)
    assert arrays["classes"][0] == 1
    assert arrays["canonical"].shape == (2, 1, 12, 12)
    assert ("sweep_angle" in arrays) == ("upright" in arrays) == decoder
    with pytest.raises(UserError, match="no such class"):
        explain_file(model, tmp_path / "image.png", tmp_path / "why", "cow")


def test_what_needs_a_decoder_says_so(image):
    model = make(decoder="none")
    with pytest.raises(UserError, match=r"sweep_pose: this PoseCaps has no decoder; .* model.decoder=dense"):
        explain.sweep_pose(model, image)


@pytest.mark.parametrize(
    "options", [{"image_shape": (3, 9, 15), "num_classes": 1, "turn": 0.0}, {"image_shape": (2, 15, 9), "turn": 180.0}]
)
def test_odd_shapes_and_lattices_can_be_shown(options):
    model = make(**options)
    figures, arrays = explain.show_placement(model, torch.rand(options["image_shape"]), None)
    assert len(arrays["classes"]) == min(2, model.num_classes)
    for figure in figures.values():
        assert len(explain.png_bytes(figure, 40)) > 1000
