"""Backbones by name with a head of capsules, or a linear one."""

import sys
import types

import pytest
import torch
from torch import nn

import torchcaps
from torchcaps.errors import UserError
from torchcaps.explain.receptive_field import receptive_field
from torchcaps.explain.votes import routing_trace
from torchcaps.layers import ROUTINGS
from torchcaps.models import create_model, list_backbones, load, register_backbone, save
from torchcaps.models.backbones import BACKBONES, make_backbone
from torchcaps.models.files import write_model

SMALL = {"backbone_options": {"channels": (4, 8)}, "types": 2}


@pytest.mark.parametrize("name", list_backbones())
@pytest.mark.parametrize("head", ["backbone_caps", "backbone_linear"])
def test_every_backbone_and_both_heads(name, head, tmp_path):
    small = {"stem": {"width": 2}}.get(name, {"channels": (4, 8)})
    model = create_model(head, image_shape=(3, 20, 16), num_classes=3, backbone=name, backbone_options=small)
    images = torch.rand(2, 3, 20, 16)
    model.train()(images)  # settles no statistics: both are saved
    assert torch.equal(model.eval()(images).lengths, load(save(model, tmp_path))(images).lengths)


@pytest.mark.parametrize("side", [224, 512])
def test_large_images_make_no_large_head(side):
    options = {"image_shape": (3, side, side), "backbone_options": {"channels": (8, 8, 8, 64)}}
    model = create_model("backbone_caps", num_classes=10, **options).eval()
    assert max(model.grid) <= 4
    assert model.head.parameter_count() < 2_000_000
    assert model(torch.rand(1, 3, side, side)).lengths.shape == (1, 10)
    thousand = create_model("backbone_caps", num_classes=1000, **options)
    assert thousand(torch.rand(1, 3, side, side).expand(2, -1, -1, -1)).lengths.shape == (2, 1000)


@pytest.mark.parametrize("routing", sorted(ROUTINGS))
def test_every_routing(routing):
    model = create_model("backbone_caps", routing=routing, dim=4, class_dim=4, **SMALL)
    assert model.objective == ("spread" if routing == "em" else "margin")
    assert model(torch.rand(3, 1, 28, 28)).lengths.shape == (3, 10)


def test_the_decoder_draws_a_reduced_image():
    """The gradient of the reconstruction loss is that of a comparison with the reduced image, k² times."""
    model = create_model(
        "backbone_caps", image_shape=(1, 60, 44), decoder="dense", hidden=(8,), decoded_side=20, **SMALL
    )
    assert model.decoder.image_shape == (1, 60, 44)
    assert model.decoder.decoder.image_shape == (1, 20, 15)
    images, targets = torch.rand(2, 1, 60, 44), torch.tensor([1, 2])
    drawn = model(images, targets).reconstruction
    assert drawn.shape == images.shape
    assert model(images, each=torch.tensor([[1, 2], [3, 4]])).reconstruction.shape == (2, 2, 1, 60, 44)
    small = create_model("backbone_caps", image_shape=(1, 6, 6), decoder="dense", hidden=(8,), decoded_side=3, **SMALL)
    poses, image = torch.rand(1, 10, 16), torch.rand(1, 1, 6, 6)
    bias = small.decoder.decoder.layers[-1].bias
    whole = (small.reconstruct(poses) - image).square().sum()
    (gradient,) = torch.autograd.grad(whole, bias)
    reduced = (
        (small.decoder.decoder(torchcaps.layers.mask_capsules(poses)) - nn.functional.avg_pool2d(image, 2))
        .square()
        .sum()
    )
    torch.testing.assert_close(gradient, 4 * torch.autograd.grad(reduced, bias)[0])


def test_a_backbone_of_ones_own_is_saved_by_its_name(tmp_path):
    @register_backbone
    def halved(image_shape, width=4):
        return nn.Conv2d(image_shape[0], width, 2, 2)

    try:
        model = create_model("backbone_caps", backbone="halved", backbone_options={"width": 3}, types=2)
        assert load(save(model, tmp_path)).backbone.out_channels == 3
        BACKBONES["halved"], made = (lambda image_shape, width=4: nn.Conv2d(1, width, 3)), BACKBONES["halved"]
        with pytest.raises(UserError, match="does not fit the model it describes"):
            load(tmp_path)
        BACKBONES["halved"] = made
        with pytest.raises(UserError, match="backbone halved: .*'wide'; its options are width"):
            make_backbone("halved", (1, 8, 8), {"wide": 3})
    finally:
        BACKBONES.pop("halved")
    with pytest.raises(UserError, match="BackboneCaps that cannot be built: there is no backbone called 'halved'"):
        load(tmp_path)
    with pytest.raises(UserError, match="no backbone called 'halved'"):
        create_model("backbone_caps", backbone="halved")


def test_wrong_options_of_a_resnet():
    for options, message in (
        ({"channels": ()}, "at least one"),
        ({"stride": 3}, "1, 2 or 4"),
        ({"blocks": 0}, "blocks"),
    ):
        with pytest.raises(UserError, match=message):
            make_backbone("resnet", (3, 32, 32), options)
    assert make_backbone("resnet", (3, 224, 224))(torch.rand(1, 3, 224, 224)).shape == (1, 64, 14, 14)
    assert sum(each.numel() for each in make_backbone("resnet18", (3, 32, 32)).parameters()) == 11_168_832


class TimmLike(nn.Module):
    """What `timm.create_model(…, features_only=True)` returns, as far as we use it."""

    def __init__(self, in_chans, out_indices, channels_last):
        super().__init__()
        self.first, self.second = nn.Conv2d(in_chans, 4, 3, 2), nn.Conv2d(4, 6, 3, 2)
        self.out_indices, self.channels_last = out_indices, channels_last
        channels = [(4, 6)[index] for index in out_indices]
        self.feature_info = types.SimpleNamespace(channels=lambda: channels)
        self.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)}

    def forward(self, images):
        maps = [self.first(images)]
        maps.append(self.second(maps[0].relu()))
        chosen = [maps[index] for index in self.out_indices]
        return [each.permute(0, 2, 3, 1) for each in chosen] if self.channels_last else chosen


@pytest.fixture
def timm(monkeypatch):
    """A module with the function of timm that we call, which notes how it is called."""
    calls = []

    def create_model(name, *, features_only, in_chans, pretrained, out_indices=(0, 1), pretrained_cfg_overlay=None):
        calls.append((name, pretrained, pretrained_cfg_overlay))
        if name not in ("plain", "channels_last"):
            raise RuntimeError(f"Unknown model ({name})")
        network = TimmLike(in_chans, out_indices, name == "channels_last")
        if pretrained:
            nn.init.constant_(network.second.bias, 0.25)
        return network

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    return calls


@pytest.mark.parametrize("name", ["timm/plain", "timm/channels_last"])
@pytest.mark.parametrize("head", ["backbone_caps", "backbone_linear"])
def test_pretrained_networks_of_timm_are_fetched_once(name, head, timm, tmp_path):
    options = {"backbone": name, "backbone_options": {"pretrained": True}}
    model = create_model(head, image_shape=(3, 20, 20), num_classes=2, **options).eval()
    assert model.mean.flatten().tolist() == pytest.approx([0.5, 0.4, 0.3])
    assert (model.backbone.network.second.bias == 0.25).all()
    folder = save(model, tmp_path)
    timm.clear()
    loaded = load(folder)
    assert [pretrained for _, pretrained, _ in timm] == [False] * len(timm)
    images = torch.rand(2, 3, 20, 20)
    assert torch.equal(model(images).lengths, loaded(images).lengths)


def test_weights_of_timm_from_a_file_and_another_map(timm):
    options = {"pretrained": "weights.safetensors", "out_indices": (0,)}
    model = create_model(
        "backbone_caps", image_shape=(3, 20, 20), backbone="timm/plain", backbone_options=options, mean=(0, 0, 0)
    )
    assert timm == [("plain", True, {"file": "weights.safetensors"})]
    assert model.head.in_channels == 4
    assert model.mean.flatten().tolist() == [0, 0, 0]  # what a user gives is kept
    with pytest.raises(UserError, match="timm cannot build it.*Unknown model"):
        create_model("backbone_caps", image_shape=(3, 20, 20), backbone="timm/unknown")


def test_a_saved_model_names_no_file_and_no_repository(timm, tmp_path):
    """Whatever a file says about where weights come from is not read."""
    model = create_model("backbone_caps", image_shape=(3, 20, 20), num_classes=2, backbone="timm/plain")
    model.arguments["backbone_options"] = {"checkpoint_path": "weights.pth", "pretrained": True, "out_indices": [0, 1]}
    write_model(model, tmp_path)
    timm.clear()
    assert load(tmp_path).arguments["backbone_options"] == {"out_indices": [0, 1]}
    assert {pretrained for _, pretrained, _ in timm} == {False}
    with pytest.raises(UserError, match="its weights as a file"):
        create_model("backbone_caps", backbone="timm/hf-hub:someone/network")


def test_without_timm_the_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"pip install 'torchcaps\[timm\]'"):
        create_model("backbone_caps", backbone="timm/resnet18")


def test_routing_of_a_backbone_is_shown_on_the_image():
    model = create_model("backbone_caps", image_shape=(1, 60, 44), **SMALL)
    assert model.grid == (4, 4)
    assert receptive_field(model, 0).pixels(3, 60) == (45, 60)
    assert receptive_field(model, 1).stride == 11
    image = torch.rand(1, 60, 44)
    trace, output = routing_trace(model.eval(), image), model(image[None])
    assert torch.equal(trace.poses[-1], output.poses[0])
    expected = torch.einsum("tjdk,tpk->tpjd", model.classes.weight, model.children_of(image[None]).pose.view(2, 16, 8))
    torch.testing.assert_close(trace.votes, expected.flatten(0, 1))


def test_a_file_that_asks_for_too_much_within_options_is_refused(tmp_path):
    from torchcaps.models.meta_init import check_arguments

    with pytest.raises(ValueError, match="backbone_options is 10000000"):
        check_arguments({"backbone_options": {"channels": [4, [10_000_000]]}})
