"""What holds for every name in list_models()."""

from __future__ import annotations

import copy

import torch

from torchcaps.models import CapsuleModel, ImageModel, SceneCaps, load, save
from torchcaps.models.segmentation import SegmentationModel
from torchcaps.models.synthesis import SynthesisModel


def answer(model: ImageModel, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """What is answered: lengths, or of masks and noise an image."""
    out = model(images, targets)
    return out if model.task == "synthesis" else out[0]


def assert_same_answers(a: ImageModel, b: ImageModel, images: torch.Tensor, targets: torch.Tensor) -> None:
    if isinstance(a, SynthesisModel):
        assert torch.equal(a.eval()(images, targets), b.eval()(images, targets))
        return
    for name, x, y in zip(("lengths", "poses", "reconstruction", "logits"), a.eval()(images), b.eval()(images)):
        assert (x is None) == (y is None), name
        assert x is None or torch.equal(x, y), name


def answer_shape(model: ImageModel, B: int) -> tuple[int, ...]:
    if isinstance(model, SynthesisModel):
        return (B, *model.image_shape)
    return (B, 3, *model.image_shape[1:]) if isinstance(model, SegmentationModel) else (B, 3)


def settle(model: ImageModel, images: torch.Tensor, targets: torch.Tensor) -> None:
    """Let batch normalisation take the statistics of this batch: its running means lag behind after so few steps."""
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    if norms:
        with torch.no_grad():
            model.train()(images, targets)


def test_forward(model, batch):
    images, targets = batch(model, 4)
    found = answer(model, images, targets)
    assert found.shape == answer_shape(model, 4)
    assert ((found >= 0) & (found <= 1)).all()
    if isinstance(model, SynthesisModel):
        return
    out = model(images, targets)
    if isinstance(model, CapsuleModel):  # of matrix capsules the activation is not the length
        torch.testing.assert_close(out.poses.norm(dim=-1), out.lengths)
    if getattr(out, "reconstruction", None) is not None:
        assert out.reconstruction.shape == images.shape


def test_every_parameter_gets_a_gradient(model, batch, loss_of):
    loss_of(model, *batch(model, 4)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


def test_trains(model, batch, loss_of):
    images, targets = batch(model, 8)
    before = loss_of(model.eval(), images, targets).item()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2 if isinstance(model, SynthesisModel | SceneCaps) else 1e-3)
    for _ in range(15):
        optimizer.zero_grad()
        loss_of(model.train(), images, targets).backward()
        optimizer.step()
    settle(model, images, targets)
    assert loss_of(model.eval(), images, targets).item() < 0.95 * before


def test_batches_of_none_and_of_one(model, batch):
    images, targets = batch(model, 3)
    model.eval()
    assert answer(model, images[:0], targets[:0]).shape == answer_shape(model, 0)
    one = answer(model, images[1:2], targets[1:2])
    torch.testing.assert_close(one, answer(model, images, targets)[1:2])


def test_saved_and_loaded_is_the_same(model, batch, tmp_path):
    images, targets = batch(model, 3)
    folder = save(model.train(), tmp_path / "a" / "model")
    for path in (folder, str(folder), folder / "model.safetensors", folder.parent):  # the last as in a run folder
        loaded = load(path)
        assert type(loaded) is type(model)
        assert not loaded.training
        assert_same_answers(model, loaded, images, targets)


def test_save_pretrained_and_from_pretrained_is_the_same(model, batch, tmp_path):
    model.save_pretrained(tmp_path)
    images, targets = batch(model, 3)
    assert_same_answers(model, type(model).from_pretrained(tmp_path), images, targets)
    assert_same_answers(model, ImageModel.from_pretrained(tmp_path), images, targets)
    assert_same_answers(model, load(tmp_path), images, targets)


def test_deep_copy_is_the_same_and_apart(model, batch, tmp_path):
    images, targets = batch(model, 3)
    twin = copy.deepcopy(model)
    assert_same_answers(model, twin, images, targets)
    assert_same_answers(model, load(save(twin, tmp_path)), images, targets)
    with torch.no_grad():
        next(twin.parameters()).zero_()
    assert next(model.parameters()).abs().max() > 0


def test_everything_moves_with_the_model(model):
    """Nothing is left behind on a device of its own: every tensor a model holds is a parameter or a buffer."""
    for tensor in (*model.to("meta").parameters(), *model.buffers()):
        assert tensor.device.type == "meta"
    for module in model.modules():
        assert not [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]


def test_compiles_in_one_graph(model, batch):
    images, targets = batch(model, 3)
    found = answer(model.eval(), images, targets)
    model.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(answer(model, images, targets), found)


def test_answers_keep_their_digits_under_autocast(model, batch):
    images, targets = batch(model, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert answer(model, images, targets).dtype == torch.float32
