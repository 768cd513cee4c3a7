"""What `save` refuses because `load` could not build it again, and what it resolves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import torchcaps
from torchcaps.errors import UserError
from torchcaps.models import CapsNet, create_model
from torchcaps.models.registry import CLASSES
from torchcaps.models.savable import unwrapped

SMALL = {"image_shape": (1, 14, 14), "num_classes": 3, "channels": 4, "types": 2, "hidden": (8,)}
IMAGES = torch.rand(2, 1, 14, 14)


@pytest.fixture
def model():
    return create_model("capsnet_small", mean=(0.1,), **SMALL).eval()


def compiled(model):
    return torch.compile(model, backend="eager")


def compiled_layer(model):
    model.classes = torch.compile(model.classes, backend="eager")
    return model


def weight_norm(model):
    parametrizations.weight_norm(model.conv)
    return model


def pruned(model):
    prune.l1_unstructured(model.classes, "weight", amount=0.5)
    return model


def compiled_twice(model):
    return torch.compile(compiled(model), backend="eager")


def old_weight_norm(model):
    with pytest.warns(FutureWarning, match="deprecated"):
        nn.utils.weight_norm(model.conv)
    with torch.no_grad():
        model.conv.weight_g *= 2
    return model


def old_spectral_norm(model):
    nn.utils.spectral_norm(model.decoder.layers[0])
    return model


CHANGES = [
    compiled,
    compiled_layer,
    compiled_twice,
    nn.DataParallel,
    weight_norm,
    pruned,
    old_weight_norm,
    old_spectral_norm,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__)
def test_wrapped_and_parametrised_models_are_saved_as_they_compute(model, change, tmp_path):
    changed = change(model)
    before = set(unwrapped(changed).state_dict())
    loaded = torchcaps.load(torchcaps.save(changed, tmp_path / "model"))
    assert set(unwrapped(changed).state_dict()) == before
    plain = unwrapped(changed)
    with torch.compiler.set_stance("force_eager"):  # what is compiled is not the question here
        torch.testing.assert_close(loaded(IMAGES).lengths, plain(IMAGES).lengths)
    assert set(loaded.state_dict()) == set(create_model("capsnet_small", **SMALL).state_dict())


def iterations_of_a_layer(model):
    model.classes.iterations = 5


def iterations_of_the_model(model):
    model.iterations = 5


def other_layer(model):
    model.conv = nn.Sequential(model.conv)


def larger_layer(model):
    model.decoder.layers[0] = nn.Linear(48, 9)


def nan(model):
    model.conv.bias.data[0] = torch.nan


def filled_mean(model):
    model.mean.fill_(0.9)


def assigned_mean(model):
    model.mean = torch.full((1, 1, 1), 0.9)


def removed_mean(model):
    model.mean = None


def new_std(model):
    model.std = torch.full((1, 1, 1), 0.5)


def hooked(model):
    model.conv.register_forward_hook(lambda module, inputs, output: output * 2)


def hooked_before(model):
    model.register_forward_pre_hook(lambda module, inputs: None)


def patched(model):
    model.conv.forward = lambda images: images


def without_decoder(model):
    model.decoder = None


def one_more_layer(model):
    model.extra = nn.Linear(2, 3)


def quantised(model):
    model.decoder.layers[0] = SameName(48, 8)


SameName = type("Linear", (nn.Linear,), {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (filled_mean, r"model.mean was changed after .* and load would bring back \[0.1.*\]: give mean to the constr"),
        (assigned_mean, "model.mean was changed after"),
        (removed_mean, "model.mean was changed after"),
        (new_std, "model.std was changed after .*bring back None: give std to the constructor"),
        (hooked, "conv has a forward hook .*remove it before saving"),
        (hooked_before, "model has a forward pre-hook"),
        (patched, "conv.forward was replaced"),
        (without_decoder, "decoder was removed, but load would build it again: "),
        (one_more_layer, "extra was added, but load would not build it"),
        (quantised, "decoder.layers.0 is a test_savable.Linear, but load would build a torch.nn.modules.linear.Linear"),
        (iterations_of_a_layer, "classes.iterations was changed from 3 to 5 .* give iterations to the constructor"),
        (iterations_of_the_model, "model.iterations was changed from 3 to 5"),
        (other_layer, "conv is a Sequential, but load would build a PatchConv2d"),
        (larger_layer, "does not fit its own arguments: size mismatch: decoder.layers.0"),
        (nan, "conv.bias has values that are NaN"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_load_would_lose_is_refused_and_leaves_no_folder(model, change, message, tmp_path):
    change(model)
    with pytest.raises(UserError, match=f"save: .*{message}"):
        torchcaps.save(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


class Scratch(CapsNet):
    """Has a constant tensor, and one that is drawn when it is built."""

    def __init__(self, image_shape=(1, 14, 14), num_classes=3, **options):
        super().__init__(
            image_shape, num_classes, **{"channels": 4, "kernel": 5, "types": 2, "primary_kernel": 5, **options}
        )
        self.register_buffer("scale", torch.arange(3) / 2, persistent=False)
        self.table = torch.ones(2)
        self.own = self.register_forward_hook(lambda module, inputs, output: None)


class Drawn(Scratch):
    def __init__(self, **options):
        super().__init__(**options)
        self.register_buffer("noise", torch.rand(3), persistent=False)


@pytest.fixture
def scratch(monkeypatch):
    for kind in (Scratch, Drawn):
        monkeypatch.setitem(CLASSES, kind.__name__, kind)


def test_constants_that_are_not_saved_are_compared(scratch, tmp_path):
    model = Scratch()
    generator = torch.get_rng_state()
    torchcaps.save(model.half(), tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), generator)
    model.table[0] = 3
    with pytest.raises(UserError, match="model.table was changed after"):
        torchcaps.save(model, tmp_path / "other")
    with pytest.raises(UserError, match="model.noise .* register_buffer with persistent=True"):
        torchcaps.save(Drawn(), tmp_path / "other")


def test_a_module_of_another_library_is_refused(tmp_path):
    with pytest.raises(UserError, match="save: a Linear is not a torchcaps model.* @register_model"):
        torchcaps.save(nn.Linear(2, 3), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_anneal_sets_is_no_change(tmp_path):
    model = create_model("em_capsnet", image_shape=(1, 16, 16), channels=4, primary=2, first=2, second=2)
    model.anneal(0.7)
    assert torchcaps.load(torchcaps.save(model, tmp_path)).parameter_count() == model.parameter_count()


@pytest.mark.parametrize(("name", "source"), [("weights.pt", "pytorch"), ("weights.h5", "keras")])
def test_loading_weights_of_other_code_names_convert(tmp_path, name, source):
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(UserError, match=f"`torchcaps convert .*{name} --from {source}`"):
        torchcaps.load(tmp_path / name)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        *((name, "PyTorch calls a GPU 'cuda'") for name in ("gpu", "GPU", "Gpu:0")),
        ("CUDA:0", "did you mean 'cuda:0'"),
        ("CPU", "did you mean 'cpu'"),
        ("tpus", "such as 'cpu'"),
    ],
)
def test_a_device_that_does_not_exist_is_named(device, message):
    with pytest.raises(UserError, match=f"device='{device}': .*{message}"):
        torchcaps.load("capsnet-digits", device)


@pytest.mark.parametrize(
    ("device", "count", "message"),
    [
        ("cuda", 0, "this machine, or this build of PyTorch, has none; use device='cpu'"),
        ("cuda:7", 2, "PyTorch finds 2 of this kind; use device='cpu'"),
        (torch.device("cuda", 1), 0, "this machine, .* has none"),
    ],
    ids=str,
)
def test_a_device_that_is_not_there_is_named(monkeypatch, device, count, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(UserError, match=f"device='{device}': {message}"):
        torchcaps.load("capsnet-digits", device)
