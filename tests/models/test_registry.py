"""Models of a user's own: registered, created by name, saved and loaded again."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from torchcaps.errors import UserError
from torchcaps.models import (
    CapsNet,
    ImageModel,
    Output,
    create_model,
    list_models,
    load,
    register_model,
    registry,
    save,
)


class OneLayer(ImageModel):
    def __init__(self, image_shape=(1, 4, 4), num_classes=2, *, scale=1.0, **others):
        super().__init__(image_shape, num_classes, **others)
        self.layer = nn.Linear(self.image_shape[1] * self.image_shape[2], num_classes)
        self.register_buffer("scale", torch.full((1,), scale), persistent=False)

    def forward(self, images, targets=None, *, each=None):
        return Output((self.scale * self.layer(self.normalise(images).flatten(1))).sigmoid())


def one_layer(image_shape=(1, 4, 4), num_classes=2, **options) -> OneLayer:
    return OneLayer(image_shape, num_classes, **options)


@pytest.fixture(autouse=True)
def own_tables():
    tables = (registry.MODELS, registry.CLASSES)
    before = [dict(table) for table in tables]
    yield
    for table, known in zip(tables, before):
        table.clear()
        table.update(known)


def test_a_registered_model_is_created_by_name():
    assert register_model(one_layer) is one_layer
    assert "one_layer" in list_models()
    assert list_models() == sorted(list_models())
    assert type(create_model("one_layer", num_classes=3)) is OneLayer
    assert registry.accepts_option("one_layer", "scale")
    with pytest.raises(UserError, match="model one_layer has no option 'depth': .*unet have it"):
        create_model("one_layer", depth=3)


def test_a_registered_model_is_saved_and_loaded(tmp_path):
    """Also its buffer that is not saved, which is not made on `constant_device()`."""
    model = OneLayer(mean=[0.5], scale=3.0).eval()
    assert model.arguments["scale"] == 3.0
    assert model.arguments["mean"] == [0.5]
    with pytest.raises(UserError, match="the class OneLayer is not registered, .* with @register_model"):
        save(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    register_model(one_layer)
    save(model, tmp_path)
    del registry.CLASSES["OneLayer"]
    needed = "no such model; it needs the plugin test_registry: pass --plugin test_registry, or import it first"
    with pytest.raises(UserError, match=f"holds a 'OneLayer': .* {needed}"):
        load(tmp_path)
    register_model(one_layer)
    loaded, images = load(tmp_path), torch.rand(2, 1, 4, 4)
    assert type(loaded) is OneLayer
    assert torch.equal(loaded(images).lengths, model(images).lengths)


def test_a_registered_class_is_loaded_and_not_created_by_name(tmp_path):
    assert register_model(OneLayer) is OneLayer
    assert "OneLayer" not in list_models()
    assert type(load(save(OneLayer(), tmp_path))) is OneLayer


def test_a_function_that_names_no_class_is_refused():
    def unknown(**options):
        return OneLayer(**options)

    for annotation in (None, int, "Missing", ImageModel | None):
        unknown.__annotations__ = {} if annotation is None else {"return": annotation}
        with pytest.raises(UserError, match="register_model: annotate unknown with the class that it returns"):
            register_model(unknown)
    assert "unknown" not in list_models()


def test_a_name_is_registered_once():
    def capsnet() -> CapsNet:
        return CapsNet()

    with pytest.raises(
        UserError, match=r"torchcaps.models.capsnet already has a model called 'capsnet'; choose another"
    ):
        register_model(capsnet)
    register_model(one_layer)
    register_model(one_layer)


@pytest.mark.parametrize("name", ["capsnet_small", "capspix2pix_small"])
def test_loading_builds_a_model_once_and_draws_no_random_numbers(name, tmp_path, monkeypatch):
    model = create_model(name, image_shape=(1, 16, 16), num_classes=3, mean=[0.5], std=[0.2])
    save(model, tmp_path)
    built, init = [], type(model).__init__

    @functools.wraps(init)
    def counted(self, *args, **kwargs):
        built.append(self)
        init(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "__init__", counted)
    state = torch.get_rng_state()
    loaded = load(tmp_path)
    assert len(built) == 1
    assert torch.equal(state, torch.get_rng_state())
    assert {tensor.device.type for tensor in (*loaded.parameters(), *loaded.buffers())} == {"cpu"}
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert torch.equal(loaded.mean, model.mean)
