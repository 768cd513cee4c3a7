"""`fit` with modules, data, losses and optimizers of a user's own."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from test_fit import SMALL, stripes
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import torchcaps
from torchcaps import losses
from torchcaps.data import streams
from torchcaps.errors import UserError
from torchcaps.layers import DenseCaps, PrimaryCaps
from torchcaps.models import Output, create_model
from torchcaps.train.callbacks import Callback
from torchcaps.train.fit import as_dataset
from torchcaps.train.tasks import ClassificationTask


def logits(classes=2):
    return nn.Sequential(nn.Flatten(), nn.Linear(144, classes))


def capsules():
    return nn.Sequential(PrimaryCaps(1, 2, 4, kernel_size=5, stride=3), DenseCaps(18, 4, 2, 6))


class Lengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = logits()

    def forward(self, images):
        return self.layer(images).sigmoid()


class Drawing(Lengths):
    """Returns an Output whose reconstruction depends on the targets."""

    def __init__(self):
        super().__init__()
        self.draw = nn.Linear(2, 144)

    def forward(self, images, targets=None):
        lengths = self.layer(images).sigmoid()
        shown = lengths if targets is None else lengths * functional.one_hot(targets, 2)
        return Output(lengths, reconstruction=self.draw(shown).sigmoid().view(-1, 1, 12, 12))


def tensors(n=48):
    images, labels = stripes(n)
    return TensorDataset(torch.tensor(images)[:, None], torch.tensor(labels))


@pytest.mark.parametrize(
    ("make", "options", "terms"),
    [
        (logits, {}, {"cross_entropy"}),
        (Lengths, {"answers": "lengths"}, {"margin"}),
        (capsules, {}, {"margin"}),
        (Drawing, {}, {"margin", "reconstruction"}),
    ],
)
def test_a_module_is_trained_by_what_it_answers(make, options, terms):
    module, (images, labels) = make(), stripes()
    before = [parameter.clone() for parameter in module.parameters()]
    trained, history = torchcaps.fit(module, images, labels, epochs=8, batch_size=8, lr=0.02, **options)
    assert trained is module
    assert not module.training
    assert not any(torch.equal(a, b) for a, b in zip(before, module.parameters()))
    found = {name.removeprefix("train_") for name in history[-1] if name.startswith("train_")}
    assert found == {"loss", "accuracy"} | terms
    assert history[-1]["val_accuracy"] == 1


def test_a_module_and_an_image_model_may_have_been_built_before():
    model = create_model("capsnet_small", image_shape=(1, 12, 12), num_classes=3, **SMALL)
    trained, _ = torchcaps.fit(model, *stripes(16), epochs=1)
    assert trained is model
    assert model.class_names == ("0", "1", "2")


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_streams_give_the_batches_of_the_user(kind):
    data = tensors()
    source = data if kind == "dataset" else DataLoader(data, batch_size=6, shuffle=True, drop_last=True)
    validation = None if kind == "dataset" else DataLoader(tensors(20), batch_size=8)
    sizes = []

    class Watched(Lengths):
        def forward(self, images):
            sizes.append(len(images))
            return super().forward(images)

    _, history = torchcaps.fit(
        Watched(), source, validation=validation, answers="lengths", epochs=3, batch_size=16, lr=0.05
    )
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    assert history[-1]["val_accuracy"] >= 0.8
    assert history[-1]["step"] == 3 * (3 if kind == "dataset" else 8)
    assert set(sizes) <= ({2, 5, 11, 16} if kind == "dataset" else {2, 6, 8, 4})


def test_a_dataset_is_never_read_as_a_whole():
    class Images(torch.utils.data.Dataset):
        classes = ("down", "across")
        read = 0

        def __len__(self):
            return 10_000

        def __getitem__(self, index):
            self.read += 1
            return np.full((1, 12, 12), index % 2, dtype=np.uint8) * 255, index % 2

    class Stop(Callback):
        def should_stop(self):
            return True

    data = Images()
    model, history = torchcaps.fit(
        "capsnet_small", data, epochs=1, batch_size=4, validation=0, callbacks=[Stop()], **SMALL
    )
    assert model.class_names == Images.classes
    assert data.read == 32 + 4  # a sample, and one batch
    assert history == []


def test_a_loss_of_ones_own_is_all_that_is_minimised():
    seen = []

    def loss(answers, targets):
        seen.append((answers.shape[1], targets.dtype))
        return functional.cross_entropy(answers, targets)

    _, history = torchcaps.fit(logits(), *stripes(), epochs=2, lr=0.05, loss=loss)
    assert history[-1]["train_criterion"] == pytest.approx(history[-1]["train_loss"])
    assert history[-1]["train_loss"] < history[0]["train_loss"]
    assert set(seen) == {(2, torch.int64)}
    lengths = torchcaps.fit(capsules(), *stripes(), epochs=1, loss=losses.margin_loss).history
    assert 0 < lengths[0]["train_criterion"] < 2


class Half(ClassificationTask):
    def terms(self, output, images, targets):
        return {name: term / 2 for name, term in super().terms(output, images, targets).items()}


def test_a_task_of_ones_own(monkeypatch):
    def first(task):
        torch.manual_seed(1)
        return torchcaps.fit(logits(), *stripes(16), epochs=1, batch_size=64, task=task).history[0]["train_loss"]

    whole, half = first(None), first(Half)
    assert half == pytest.approx(whole / 2)
    assert first(Half({"cross_entropy": 1.0})) == half
    assert first("classification") == whole


def optimizer_class(module):
    return torch.optim.SGD


def optimizer_function(module):
    return partial(torch.optim.SGD, lr=0.1)


def optimizer_instance(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.0)


@pytest.mark.parametrize("make", [optimizer_class, optimizer_function, optimizer_instance])
def test_any_optimizer_of_torch_takes_the_steps(make):
    torch.manual_seed(3)
    module, (images, labels) = logits(), stripes(8)
    weight = module[1].weight.detach().clone()
    inputs, targets = torch.tensor(images), torch.tensor(labels)
    gradient = torch.autograd.grad(functional.cross_entropy(module(inputs), targets), module[1].weight)[0]
    optimizer = make(module)
    torchcaps.fit(module, images, labels, epochs=1, batch_size=8, lr=0.1, validation=0, optimizer=optimizer)
    torch.testing.assert_close(module[1].weight.detach(), weight - 0.1 * gradient)
    if isinstance(optimizer, torch.optim.Optimizer):
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert "share" not in optimizer.param_groups[0]
        assert not hasattr(optimizer, "found_inf")


def test_a_nonfinite_loss_changes_no_weight_of_any_optimizer():
    module, (images, labels) = logits(), stripes(8)
    before = module[1].weight.detach().clone()
    options = {"epochs": 1, "validation": 0, "optimizer": torch.optim.SGD}
    with pytest.raises(UserError, match="the loss became NaN"):
        torchcaps.fit(module, images, labels, loss=lambda answers, targets: answers.sum() * math.nan, **options)
    assert torch.equal(module[1].weight, before)


def test_averaged_weights_are_those_of_the_module():
    torch.manual_seed(0)
    options = {"epochs": 2, "batch_size": 8, "validation": 0}
    plain, averaged = logits(), logits()
    averaged.load_state_dict(plain.state_dict())
    torchcaps.fit(plain, *stripes(), **options)
    torchcaps.fit(averaged, *stripes(), settings={"train": {"ema": 0.9}}, **options)
    assert not torch.equal(plain[1].weight, averaged[1].weight)


def test_callbacks_are_called_in_their_order():
    seen = []

    class Note(Callback):
        def __init__(self, name):
            self.name = name

        def on_epoch(self, state, line):
            seen.append((self.name, line["epoch"]))

    torchcaps.fit(logits(), *stripes(16), epochs=2, callbacks=[Note("a"), Note("b")])
    assert seen == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_validation_images_of_ones_own():
    images, labels = stripes(16)
    _, history = torchcaps.fit(logits(), images, labels, epochs=1, validation=(images[:4], labels[:4]))
    assert history[0]["val_accuracy"] in (0, 0.25, 0.5, 0.75, 1)
    assert "val_accuracy" not in torchcaps.fit(logits(), images, labels, epochs=1, validation=0).history[0]


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


class Bars(IterableDataset):
    """Twenty images; every pass begins with another."""

    classes = ("down", "across")

    def __init__(self, length=None):
        self.length, self.epochs = length, []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        images, labels = stripes(20)
        return zip(torch.tensor(images)[:, None], labels.tolist())


class SizedBars(Bars):
    def __len__(self):
        return 20


@pytest.mark.parametrize("data", [Bars, SizedBars], ids=["counted", "with a length"])
def test_an_iterable_data_set_is_read_epoch_by_epoch(data):
    source, held_out = data(), data()
    model, history = torchcaps.fit("capsnet_small", source, epochs=3, batch_size=8, validation=held_out, **SMALL)
    assert [line["step"] for line in history] == [3, 6, 9]
    assert model.class_names == ("down", "across")
    assert 0 <= history[-1]["val_accuracy"] <= 1
    assert source.epochs == sorted(set(source.epochs))
    assert len(source.epochs) >= 3


def test_an_iterable_data_set_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(streams, "MAX_COUNTED", 10)
    with pytest.raises(UserError, match="more than 10 examples: give it a length"):
        torchcaps.fit("capsnet_small", Bars(), **SMALL)


IMAGES, LABELS = stripes(16)


@pytest.mark.parametrize(
    ("model", "data", "options", "message"),
    [
        (3, (IMAGES, LABELS), {}, "give the name of a model, or a module; this is a int"),
        (logits(), (IMAGES,), {}, "give labels with the images"),
        (logits(), (tensors(), LABELS), {}, "has labels of its own; omit labels"),
        (logits(1), (IMAGES, LABELS), {}, "the model has 1 classes, and the labels 2"),
        (logits(3), (IMAGES, LABELS), {"class_names": ["a", "b"]}, "the model has 3 classes, and the labels 2"),
        (nn.Conv2d(1, 1, 3), (IMAGES, LABELS), {}, r"returned a tensor \(2, 1, 10, 10\); return Output, Capsules"),
        (logits(), (IMAGES, LABELS), {"answers": "length"}, "answers must be 'lengths' or 'logits'"),
        ("capsnet_small", (IMAGES, LABELS), {"answers": "lengths"}, "answers is for a module"),
        (logits(), (IMAGES, LABELS), {"iterations": 2}, "the module is built already, so omit iterations"),
        (logits(), (IMAGES, LABELS), {"loss": losses.margin_loss, "task": "classification"}, "a loss or a task"),
        (logits(), (IMAGES, LABELS), {"task": "clasification"}, "did you mean 'classification'"),
        (
            logits(),
            (IMAGES, LABELS),
            {"loss": lambda answers, targets: answers},
            r"one for each example, got \(14, 2\)",
        ),
        (logits(), (IMAGES, LABELS), {"optimizer": torch.optim.LBFGS}, "needs no closure"),
        (logits(), (IMAGES, LABELS), {"optimizer": torch.optim.SGD(logits().parameters())}, "not the model's"),
        (logits(), (IMAGES, LABELS), {"device": "gpu"}, "PyTorch calls a GPU 'cuda'"),
        (logits(), (IMAGES, LABELS), {"validation": "some"}, "validation must be a number, a pair"),
        (logits(), (IMAGES, LABELS), {"validation": (IMAGES[:, :5], LABELS)}, "give both the same size"),
        ("capsnet_small", (tensors(),), {}, "how many classes there are: give class_names"),
        (logits(), (Nothing(),), {}, "the data set is empty"),
        (logits(), (DataLoader(Nothing()),), {}, "an epoch of this DataLoader has no end"),
        (logits(), (DataLoader(tensors()),), {"validation": 0.5}, "a DataLoader holds nothing out"),
        (logits(), (TensorDataset(torch.zeros(4, 1, 12, 12)),), {}, r"must be pairs \(images, labels\)"),
        (
            logits(),
            (DataLoader(tensors(), batch_size=None),),
            {},
            r"labels of shape \(\): give the DataLoader a batch_size",
        ),
        (logits(), (IMAGES, LABELS), {"loss": lambda answers, targets: answers.detach().sum(1)}, "has no gradient"),
        ("capsnet_small", (torch.zeros(16, 12, 12, dtype=torch.complex64), LABELS), {}, "images must be real numbers"),
        (create_model("capsnet_small", image_shape=(1, 14, 14)), (IMAGES, LABELS), {}, "the model takes images of"),
    ],
)
def test_mistakes_are_named(model, data, options, message):
    with pytest.raises(UserError, match=message):
        torchcaps.fit(model, *data, **{"epochs": 1, **options})


def test_streams_of_images_that_were_normalised_are_refused_for_capsnets():
    data = TensorDataset(torch.randn(8, 1, 12, 12), torch.arange(8) % 2)
    with pytest.raises(UserError, match="float images must be in"):
        torchcaps.fit("capsnet_small", data, class_names=["a", "b"], **SMALL)
    torchcaps.fit(logits(), data, epochs=1)  # of a module of one's own nothing is known


def test_a_reconstruction_that_no_loss_looks_at_is_a_warning():
    with pytest.warns(UserWarning, match="a reconstruction that no loss looks at"):
        torchcaps.fit("capsnet_small", *stripes(16), epochs=1, loss=losses.margin_loss, **SMALL)


def uint8(*shape):
    return np.zeros(shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (uint8(4, 3, 28, 3), [0, 1, 0, 1], r"are read as \(N, C, H, W\) with 3 channels"),
        (uint8(4, 8, 8), [1, 2, 3, 1], "class 0 never occurs .* subtract 1 from the labels"),
        (uint8(2, 8, 8), [0.0, 1.0], "the labels are floats and are read as class ids"),
    ],
)
def test_what_may_be_misread_is_a_warning(images, labels, message):
    with pytest.warns(UserWarning, match=message):
        as_dataset(images, labels)


@pytest.mark.parametrize(
    ("images", "labels", "names", "message"),
    [
        (uint8(4, 28, 28, 4), [0, 1, 0, 1], None, "look like .* with 4 channels: .* drop an alpha channel"),
        (uint8(2, 8, 8) + 16, [0, 1], None, "these end at 16, almost black: divide by 16"),
        (np.full((2, 8, 8), 16.0), [0, 1], None, "range from 16 to 16; divide by 16"),
        (uint8(2, 8, 8), [1, 2], ["a", "b"], "labels reach 2, but 2 class names are numbered from 0; subtract 1"),
        (uint8(2, 8, 8), ["cat", "cow"], ["cat", "dog"], "labels hold 'cow', which is not in class_names"),
    ],
)
def test_what_would_be_misread_is_an_error(images, labels, names, message):
    with pytest.raises(UserError, match=message):
        as_dataset(images, labels, names)


@pytest.mark.parametrize("labels", [["dog", "cat", "dog"], np.array(["dog", "cat", "dog"])], ids=["list", "array"])
@pytest.mark.parametrize(("names", "ids"), [(None, [1, 0, 1]), (["dog", "cat"], [0, 1, 0])])
def test_labels_may_be_names(labels, names, ids):
    dataset = as_dataset(uint8(3, 8, 8), labels, names)
    assert dataset.targets.tolist() == ids
    assert dataset.class_names == tuple(names or ("cat", "dog"))
