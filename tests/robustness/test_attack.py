import pytest
import torch
from torch import nn

import torchcaps
from torchcaps.data import load_data
from torchcaps.errors import UserError
from torchcaps.losses import cross_entropy
from torchcaps.models import ImageModel, Output, create_model
from torchcaps.robustness.attack import fgsm, loss_of, pgd, random_signs

EPS = 0.1


@pytest.fixture(scope="module")
def digits():
    """The shipped model with 60 test images and their classes."""
    model = torchcaps.load("capsnet-digits")
    test = load_data(**model.trained_by["data"]).test
    return model, model.prepare(test.images[:60]), test.targets[:60]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Fickle(ImageModel):
    """A model whose dropout kills every pixel while training."""

    def __init__(self):
        super().__init__((1, 4, 4), 2)
        self.drop = nn.Dropout(1.0)
        self.linear = nn.Linear(16, 2)

    def forward(self, images, targets=None):
        logits = self.linear(self.drop(images.flatten(1)))
        return Output(logits.softmax(-1), logits=logits)


def test_one_step_raises_the_loss_within_eps(digits):
    model, images, targets = digits
    loss = loss_of(model, targets)
    attacked = fgsm(loss, images, EPS)
    assert (attacked - images).abs().max() <= EPS + 1e-6
    assert attacked.min() >= 0
    assert attacked.max() <= 1
    assert loss(attacked).mean() > 2 * loss(images).mean()
    assert loss(attacked).mean() > loss(random_signs(images, EPS, seeded())).mean()  # not by the noise alone


def test_many_steps_are_at_least_as_strong_as_one(digits):
    model, images, targets = digits
    loss = loss_of(model, targets)
    attacked = pgd(loss, images, EPS, steps=10, generator=seeded())
    assert (attacked - images).abs().max() <= EPS + 1e-6
    assert attacked.min() >= 0
    assert attacked.max() <= 1
    assert loss(attacked).mean() >= loss(fgsm(loss, images, EPS)).mean()


def test_cross_entropy_on_lengths_finds_more_wrong_answers(digits):
    model, images, targets = digits

    def right(lengths_as_logits):
        attacked = pgd(
            loss_of(model, targets, lengths_as_logits=lengths_as_logits), images, EPS, steps=10, generator=seeded()
        )
        return (model(attacked).lengths.argmax(-1) == targets).sum()

    assert right(True) < right(False)


def test_confident_answers_have_a_gradient_too(digits):
    model, images, targets = digits
    moved = (fgsm(loss_of(model, targets), images, EPS) != images).flatten(1).any(1)
    assert moved.all()  # with the margins of training, a fifth of the images would not move


def test_the_model_is_left_as_it_was():
    model, images = create_model("capsnet_small", image_shape=(1, 12, 12)), torch.rand(2, 1, 12, 12)
    targets = torch.tensor([1, 2])
    model.train()
    with torch.no_grad():  # as when a caller measures
        free = pgd(loss_of(model, targets), images, EPS, steps=2, generator=seeded())
    assert model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not free.requires_grad
    assert not images.requires_grad
    frozen = pgd(loss_of(model.requires_grad_(False), targets), images, EPS, steps=2, generator=seeded())
    torch.testing.assert_close(frozen, free)


def test_dropout_does_not_fool_an_attack():
    model, images, targets = Fickle().train(), torch.full((3, 1, 4, 4), 0.5), torch.zeros(3, dtype=torch.long)
    attacked = fgsm(loss_of(model, targets), images, EPS)
    downhill = (model.linear.weight[1] - model.linear.weight[0]).sign().view(4, 4)  # from class 0 to class 1
    torch.testing.assert_close(attacked, images + EPS * downhill)


def test_models_with_logits_are_attacked_by_cross_entropy():
    model, images, targets = Fickle(), torch.rand(3, 1, 4, 4), torch.tensor([0, 1, 1])
    model.eval()
    expected = cross_entropy(model(images).logits, targets)
    torch.testing.assert_close(loss_of(model, targets)(images), expected)
    torch.testing.assert_close(loss_of(model, targets, lengths_as_logits=True)(images), expected)


def test_a_seed_decides_the_start():
    images = torch.full((2, 1, 5, 5), 0.5)

    def flat(x):
        return 0 * x.flatten(1).sum(1)

    starts = [pgd(flat, images, EPS, steps=1, generator=seeded(seed)) for seed in (0, 0, 1)]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    assert starts[0].std() > 0.02  # a flat loss leaves the start as it is
    assert torch.equal(fgsm(flat, images, EPS), images)


def test_step_size_and_bad_arguments():
    images = torch.full((1, 1, 2, 2), 0.5)

    def total(x):
        return x.flatten(1).sum(1)

    near = pgd(total, images, EPS, steps=1, step=0.01, generator=seeded())
    far = pgd(total, images, EPS, steps=1, generator=seeded())
    assert (near < far).all()
    assert torch.equal(pgd(total, images, 0.0, steps=3), images)
    torch.testing.assert_close(pgd(total, images, 1.0, steps=3), torch.ones_like(images))
    for wrong in ({"eps": -0.1}, {"eps": 0.1, "steps": 0}):
        with pytest.raises(UserError, match="eps must lie in"):
            pgd(total, images, **wrong)
