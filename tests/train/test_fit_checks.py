"""`fit` misreads no images or labels in silence, of arrays, Datasets and DataLoaders; and names other mistakes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from test_fit import SMALL, stripes
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

import torchcaps
from torchcaps import losses
from torchcaps.data import Dataset, load_data, register_data
from torchcaps.data.sources import SOURCES
from torchcaps.errors import UserError
from torchcaps.layers import DenseCaps, PrimaryCaps
from torchcaps.models import Output, create_model
from torchcaps.train.callbacks import Callback
from torchcaps.train.tasks import ClassificationTask

X, Y = (torch.tensor(each) for each in stripes(48))
X = X[:, None]
WHOLE = (X * 255).to(torch.uint8)


def logits(classes=2, pixels=144):
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes))


def convolution(channels=1):
    return nn.Sequential(nn.Conv2d(channels, 2, 5), nn.Flatten(), nn.LazyLinear(2))


def capsules():
    return nn.Sequential(PrimaryCaps(1, 2, 4, kernel_size=5, stride=3), DenseCaps(18, 4, 2, 6))


def fit(model, *data, **options):
    small = SMALL if isinstance(model, str) else {}
    return torchcaps.fit(model, *data, **{"epochs": 1, "batch_size": 8, **small, **options})


def later(images, changed):
    """Images of which only those that no sample sees are changed."""
    images = images.clone()
    images[1::2][:16] = changed(images[1::2][:16])
    return images


def names():
    return {"class_names": ["down", "across"]}


NAMED = "capsnet_small"
DARK = "integer images are read as 0…255, and these end at 16, almost black: divide by 16"
FAR = r"float images must be in \[0, 1\], these range from 0 to 255; divide by 255"


def loader(*tensors):
    return DataLoader(TensorDataset(*tensors), batch_size=8)


def in_memory(images, labels):
    return Dataset(images, labels, ("down", "across"))


@pytest.mark.parametrize("images", [(X * 16).to(torch.uint8), (X * 16).long()], ids=["uint8", "int64"])
@pytest.mark.parametrize("kind", [TensorDataset, loader])
@pytest.mark.parametrize("model", [NAMED, logits()], ids=["named", "own"])
def test_integer_images_that_end_at_16(model, kind, images):
    with pytest.raises(UserError, match=f"fit: {DARK}"):
        fit(model, kind(images, Y), **(names() if model == NAMED else {}))


@pytest.mark.parametrize(
    ("images", "message"),
    [(X * 255, FAR), (X * 4 - 2, "range from -2 to 2"), ((X * 16).to(torch.uint8), DARK), (X / 0 * 0, "NaN")],
    ids=["255", "negative", "dark", "nan"],
)
def test_data_in_memory(images, message, tmp_path):
    data = in_memory(images, Y)
    with pytest.raises(UserError, match=f"fit: .*{message}"):
        fit(NAMED, data)
    register_data(name="misread")(lambda: data)
    try:
        with pytest.raises(UserError, match=f"the data set 'misread': .*{message}"):
            load_data("misread")
    finally:
        del SOURCES["misread"]


@pytest.mark.parametrize("kind", [TensorDataset, loader])
def test_images_of_a_stream_that_only_later_leave_the_range(kind):
    images = later(X, lambda each: each * 255) if kind is TensorDataset else torch.cat([X[:16], X[16:] * 255])
    with pytest.raises(UserError, match=f"fit: {FAR}"):
        fit(NAMED, kind(images, Y), **names())


def test_images_of_a_stream_may_leave_the_range_a_little():
    images = later(X, lambda each: each * 1.1)
    with pytest.warns(UserWarning, match=r"should be in \[0, 1\], these range from 0 to 1.1: use clamp") as found:
        fit(NAMED, TensorDataset(images, Y), epochs=2, **names())
    assert len(found) == 1


@pytest.mark.parametrize("kind", [TensorDataset, loader, in_memory, lambda *pair: pair])
def test_validation_images(kind):
    options = {"validation": kind(X * 255, Y), **names()}
    with pytest.raises(UserError, match=FAR):
        fit(NAMED, X, Y, **options)
    with pytest.warns(UserWarning, match="range from 0 to 255") as found:
        fit(logits(), X, Y, **options)
    expected = "the validation images range from 0 to 255, those for training from 0 to 1: scale both"
    assert any(expected in str(each.message) for each in found)
    with pytest.raises(UserError, match=f"fit.*: {DARK}"):
        fit(logits(), X, Y, validation=kind((X * 16).to(torch.uint8), Y))


def test_validation_images_of_a_stream_that_only_later_leave_the_range():
    validation = TensorDataset(later(X, lambda each: each * 255), Y)
    with pytest.raises(UserError, match=f"fit: validation: {FAR}"):
        fit(NAMED, X, Y, validation=validation, **names())


@pytest.mark.parametrize("model", [logits(), convolution()], ids=["flatten", "conv"])
def test_a_module_of_ones_own_takes_other_floats(model):
    normalised = X * 4 - 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in ((normalised, Y), (TensorDataset(normalised, Y),), (in_memory(normalised, Y),)):
            fit(model, *data)
    for data in ((X * 255, Y), (TensorDataset(X * 255, Y),)):
        with pytest.warns(UserWarning, match="range from 0 to 255: divide by 255, unless the module scales") as found:
            fit(model, *data)
        assert len(found) == 1
    with pytest.raises(UserError, match=r"augment.noise is for images in \[0, 1\], these range from -2 to 2"):
        fit(model, normalised, Y, settings={"augment": {"noise": 0.1}})


@pytest.mark.parametrize("kind", [TensorDataset, in_memory])
def test_images_with_the_channels_last(kind):
    images = WHOLE[:, 0, ..., None].expand(-1, -1, -1, 3).contiguous()
    look = r"images of shape \(.*12, 12, 3\) look like \(N, H, W, C\) with 3 channels: move the last axis"
    with pytest.raises(UserError, match=look):
        fit(NAMED, kind(images, Y), **names())
    if kind is TensorDataset:
        with pytest.warns(UserWarning, match=look):
            fit(logits(pixels=432), kind(images, Y))
        with (
            pytest.warns(UserWarning, match=look),
            pytest.raises(
                UserError, match=r"called with inputs of shape \(2, 12, 12, 3\); if these are \(N, H, W, C\)"
            ),
        ):
            fit(convolution(3), kind(images, Y))


def test_twelve_channels_last():
    images = np.repeat(WHOLE[:, 0, ..., None].numpy(), 5, axis=-1)
    look = r"\(48, 12, 12, 5\) look like \(N, H, W, C\) with 5 channels"
    with pytest.warns(UserWarning, match=look):
        fit(logits(pixels=720), images, Y)
    with pytest.warns(UserWarning, match=look), pytest.raises(UserError, match="the module cannot be called with"):
        fit(convolution(5), images, Y)


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[index], "cat"


@pytest.mark.parametrize("kind", [Words, lambda: DataLoader(Words(), batch_size=2)], ids=["dataset", "loader"])
def test_labels_that_are_names(kind):
    with pytest.raises(UserError, match="these are names, such as 'cat': return class_names.index"):
        fit(logits(), kind())


@pytest.mark.parametrize("kind", [TensorDataset, loader])
def test_labels_that_are_floats(kind):
    with pytest.warns(UserWarning, match="the labels are floats and are read as class ids"):
        fit(logits(), kind(X, Y.float()), loss=nn.CrossEntropyLoss())
    with pytest.raises(UserError, match="whole numbers"):
        fit(logits(), kind(X, Y / 3))
    fit(logits(), kind(X, Y[:, None]))


@pytest.mark.parametrize("kind", [TensorDataset, loader])
def test_labels_from_1(kind):
    labels = torch.arange(48) % 3 + 1
    with pytest.warns(UserWarning, match="labels run from 1 to 3, so class 0 never occurs: .* subtract 1") as found:
        fit(logits(4), kind(X, labels), epochs=2)
    assert len(found) == 1
    with pytest.warns(UserWarning, match="class 0 never occurs"):
        fit(NAMED, kind(X, labels), class_names=list("abcd"))
    with pytest.raises(UserError, match="labels reach 3, but 3 classes are numbered from 0; if they .* subtract 1"):
        fit(logits(3), kind(X, labels))
    with pytest.raises(UserError, match="class ids from 0, got -1"):
        fit(logits(3), kind(X, labels - 2))


def test_labels_out_of_range_that_come_late():
    labels = Y.clone()
    labels[1] = 7
    with pytest.raises(UserError, match="labels reach 7, but 2 classes"):
        fit(logits(), TensorDataset(X, labels))


@pytest.mark.parametrize("kind", [TensorDataset, loader])
@pytest.mark.parametrize("model", [logits(), capsules(), NAMED], ids=["logits", "capsules", "named"])
def test_multi_hot_labels_of_a_stream_say_how_many_classes_there_are(model, kind):
    hot = functional.one_hot(Y, 2)
    for targets in (hot, hot.float(), hot.bool()):
        history = fit(model, kind(X, targets)).history
        assert 0 <= history[0]["train_accuracy"] <= 1
    with pytest.raises(UserError, match="must be 0 or 1"):
        fit(model, kind(X, hot * 2))
    with pytest.raises(UserError, match="labels have 2 columns, but there are 3 classes"):
        fit(NAMED, kind(X, hot), class_names=list("abc"))


def test_feature_vectors_and_images_without_channels():
    vectors = TensorDataset(X.flatten(1), Y)
    assert "val_accuracy" in fit(nn.Linear(144, 2), vectors).history[0]
    fit(nn.Linear(144, 2), DataLoader(vectors, batch_size=8), validation=vectors)
    fit(logits(), TensorDataset(X[:, 0], Y))
    with pytest.raises(UserError, match=r"augment: only images \(C, H, W\) can be changed, these are \(144,\)"):
        fit(nn.Linear(144, 2), vectors, settings={"augment": {"noise": 0.1}})
    with pytest.raises(UserError, match=r"images must be \(C, H, W\), these are \(12, 12\): add the channel"):
        fit(NAMED, TensorDataset(X[:, 0], Y), **names())
    with pytest.raises(UserError, match="feature vectors are for a module of your own: give a TensorDataset"):
        fit(nn.Linear(144, 2), X.flatten(1), Y)


def test_truth_values_are_black_and_white():
    seen = []

    class Watched(nn.Sequential):
        def forward(self, images):
            seen.append(float(images.max()))
            return super().forward(images)

    fit(Watched(*logits()), TensorDataset(X > 0, Y))
    assert set(seen) == {1.0}


def test_images_of_several_sizes():
    class Sizes(Words):
        def __getitem__(self, index):
            return torch.zeros(1, 8 + index, 8), 0

    with pytest.raises(UserError, match="images of a Dataset must have one shape; resize"):
        fit(logits(), Sizes())


def frozen():
    return logits().requires_grad_(False)


class Tensors(ClassificationTask):
    def terms(self, output, images, targets):
        return losses.cross_entropy(output.logits, targets)


class Means(ClassificationTask):
    def terms(self, output, images, targets):
        return {"cross_entropy": functional.cross_entropy(output.logits, targets)}


DICE = {"settings": {"loss": {"dice": 1.0}}}
MARGIN = {"settings": {"loss": {"margin": 2.0}}}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (logits(), {"loss": "margin"}, r"loss='margin': give a function .*settings=\{'loss': \{'margin': 1.0\}\}"),
        (logits(), {"loss": nn.CrossEntropyLoss}, r"loss is the class CrossEntropyLoss: .* CrossEntropyLoss\(\)"),
        (logits(), {"optimizer": "sgd"}, r"optimizer='sgd': give a class of torch, such as torch.optim.SGD"),
        (logits(), {"optimizer": {"lr": 1}}, "give a class of torch"),
        (logits(), {"callbacks": Callback()}, r"callbacks must be a list: callbacks=\[callback\]"),
        (logits(), {"callbacks": [Callback]}, "Callback is no callback: give an instance"),
        (logits(), {"callbacks": [print]}, "is no callback"),
        (logits(), {"task": 3}, "task must be a Task, its class or its name, not a int"),
        (logits(), {"task": Tensors}, "Tensors.terms returned a Tensor: return a dict"),
        (
            logits(),
            {"task": Means},
            r"Means.terms: 'cross_entropy' must have one value for each example \(8,\), got \(\)",
        ),
        (frozen(), {}, "no parameter to train; unfreeze some"),
        (nn.Flatten(), {}, "no parameter to train"),
        (nn.Sequential(nn.Linear(5, 2)), {}, r"the module cannot be called with inputs of shape \(2, 1, 12, 12\)"),
        (logits(), {"settings": {"loss": "margin"}}, r"settings\['loss'\] must be a dict"),
        (NAMED, DICE, "loss.dice is not for classification, which has loss.margin, loss.spread"),
        (logits(), DICE, "loss.dice is not for classification"),
        (logits(), {**MARGIN, "loss": nn.CrossEntropyLoss()}, r"a loss of your own .* omit settings\['loss'\]"),
        (logits(), {**MARGIN, "task": ClassificationTask({"margin": 1.0})}, "has its weights"),
    ],
)
def test_mistakes_are_named(model, options, message):
    with pytest.raises(UserError, match=message):
        fit(model, X, Y, **options)


def test_labels_beside_data_that_has_its_own():
    for data in (in_memory(X, Y), TensorDataset(X, Y)):
        with pytest.raises(UserError, match="has labels of its own; omit labels"):
            fit(logits(), data, Y)


class Dices(ClassificationTask):
    loss_settings = (*ClassificationTask.loss_settings, "dice")
    prepared = False

    def prepare(self, state, recipe, device):
        type(self).prepared = True


def test_a_task_may_read_further_settings_and_is_prepared():
    fit(logits(), X, Y, task=Dices, **DICE)
    assert Dices.prepared


class Idle(nn.Module):
    """Keeps a decoder that nothing uses."""

    def __init__(self):
        super().__init__()
        self.layer, self.decoder = logits(), nn.Linear(2, 144)

    def forward(self, images):
        return self.layer(images).sigmoid()


def test_parameters_that_no_loss_looks_at_are_named_once():
    with pytest.warns(UserWarning, match="decoder.weight and 1 more had no gradient in the first step") as found:
        fit(Idle(), X, Y, answers="lengths", epochs=2)
    assert len(found) == 1
    model = Idle()
    model.decoder.requires_grad_(False)
    fit(model, X, Y, answers="lengths")


def test_a_drawing_that_no_loss_looks_at_is_named_once():
    settings = {"loss": {"reconstruction": 0.0}}
    with pytest.warns(UserWarning, match="decoder.* and 3 more had .* a reconstruction that no loss looks at") as found:
        fit(NAMED, X, Y, settings=settings)
    assert len(found) == 1
    model = create_model(NAMED, image_shape=(1, 12, 12), num_classes=2, decoder="none", **SMALL)
    assert isinstance(fit(model, Subset(TensorDataset(X, Y), range(20))).model(X), Output)
