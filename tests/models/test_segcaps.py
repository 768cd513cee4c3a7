"""SegCaps: the paper's size, images of any size, one class and several, what a shift does."""

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.losses import IGNORED, mask_cross_entropy
from torchcaps.models import create_model, load, save
from torchcaps.models.segcaps import SegCaps
from torchcaps.models.segmentation import to_mask

SMALL = {"channels": 4, "width": 0.5}


def test_the_papers_network_has_its_parameters():
    assert create_model("segcaps").parameter_count() == 1_425_649
    assert create_model("segcaps", routing="r1").parameter_count() == 1_425_649


def test_r1_routes_once_where_the_size_stays():
    iterations = {
        name: layer.iterations for name, layer in create_model("segcaps", routing="r1", **SMALL).capsule_layers
    }
    assert {name for name, each in iterations.items() if each == 3} == {
        "to_quarter", "to_eighth", "back_to_quarter", "back_to_half", "back_to_full"
    }  # fmt: skip
    iterations = {name: layer.iterations for name, layer in create_model("segcaps", **SMALL).capsule_layers}
    assert {name for name, each in iterations.items() if each == 1} == {"primary"}


@pytest.mark.parametrize("size", [(1, 1), (3, 17), (8, 16), (20, 13)])
@pytest.mark.parametrize(("colours", "classes", "maps"), [(1, 2, 1), (3, 4, 4)])
def test_any_size_any_number_of_classes(size, colours, classes, maps):
    model = SegCaps((colours, 32, 32), classes, **SMALL)
    output = model(torch.rand(2, colours, *size))
    assert output.probabilities.shape == (2, maps, *size)
    assert output.poses.shape == (2, maps, 4, *size)
    assert output.reconstruction.shape == (2, colours, *size)
    assert ((output.probabilities >= 0) & (output.probabilities < 1)).all()
    found = to_mask(output.probabilities)
    assert found.shape == (2, *size)
    assert set(found.unique().tolist()) <= set(range(classes))


def test_the_decoder_sees_positive_capsules_only():
    model = SegCaps((1, 16, 16), 3, **SMALL).eval()
    images = torch.rand(1, 1, 16, 16)
    masks = torch.zeros(1, 16, 16, dtype=torch.long)
    masks[:, 2:5], masks[:, 5:7], masks[:, 9:] = 1, 2, IGNORED
    drawn = model(images, masks).reconstruction
    blank = model.decoder(torch.zeros(1, 12, 1, 1))
    outside = (masks == 0) | (masks == IGNORED)
    torch.testing.assert_close(drawn[:, 0][outside], blank.expand(1, 1, 16, 16)[:, 0][outside])
    assert (drawn[:, 0][~outside] - blank[0, 0, 0, 0]).abs().max() > 1e-4


def test_shifting_the_image_by_the_total_stride_shifts_the_mask():
    model = SegCaps((1, 96, 96), 2, **SMALL, decoder=False).eval()
    image = torch.rand(1, 1, 96, 96)
    with torch.no_grad():
        before, after = (model(x).probabilities for x in (image, image.roll(8, -1)))
    edge = 46  # what the layers see to either side, and the roll
    torch.testing.assert_close(after[..., edge:-edge], before.roll(8, -1)[..., edge:-edge])
    assert (after - before)[..., edge:-edge].abs().max() > 1e-3


def test_saturated_capsules_have_no_length_beyond_1_under_autocast():
    model = SegCaps((1, 16, 16), 2, **SMALL)
    with torch.no_grad():
        model.classes.bias.fill_(200.0)  # long beyond what half precision can tell from 1
    with torch.autocast("cpu", torch.bfloat16):
        output = model(torch.rand(4, 1, 16, 16))
    assert output.probabilities.dtype == torch.float32
    assert output.probabilities.max() <= 1 + 1e-6
    loss = mask_cross_entropy(output.probabilities, torch.zeros(4, 16, 16, dtype=torch.long)).sum()
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_saved_and_loaded_it_answers_the_same(tmp_path):
    model = SegCaps((1, 16, 16), 2, **SMALL).eval()
    save(model, tmp_path / "model")
    images = torch.rand(1, 1, 24, 16)
    torch.testing.assert_close(load(tmp_path / "model")(images).probabilities, model(images).probabilities)


def test_wrong_settings_and_images_are_named():
    with pytest.raises(UserError, match="routing must be 'r1' or 'r3'"):
        SegCaps(routing="r2")
    with pytest.raises(UserError, match="at least 2, got 1"):
        SegCaps(num_classes=1)
    with pytest.raises(ValueError, match=r"expected images of shape \(B, 1, H, W\)"):
        SegCaps(**SMALL)(torch.rand(1, 3, 8, 8))
