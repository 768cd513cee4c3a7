import pytest
import torch
from torch import Tensor, nn

from torchcaps.errors import UserError
from torchcaps.explain import SWEEP, reconstructions, sweep
from torchcaps.explain.reconstruct import correlation
from torchcaps.models import CapsNet, create_model


class Painter(nn.Module):
    """A decoder that can be read back: pixel d is the sum of dimension d over the classes it is shown."""

    def forward(self, masked_BJD: Tensor) -> Tensor:
        B, _, D = masked_BJD.shape
        pixels = masked_BJD.new_zeros(B, 1, 11, 13)
        pixels.view(B, 11 * 13)[:, :D] = masked_BJD.sum(1)
        return pixels


@pytest.fixture
def painter() -> CapsNet:
    torch.manual_seed(0)
    model = create_model("capsnet_small", image_shape=(1, 11, 13), num_classes=4, class_dim=6)
    model.decoder = Painter()
    return model.double()


def images(batch: int = 5) -> Tensor:
    return torch.rand(batch, 1, 11, 13, generator=torch.Generator().manual_seed(1)).double()


def painted(pictures: Tensor) -> Tensor:
    return pictures.flatten(1)[:, :6]


def test_each_reconstruction_shows_only_its_own_class(painter):
    x = images()
    poses, lengths = painter(x).poses, painter(x).lengths
    order = lengths.argsort(descending=True)
    targets = order[:, 2].clone()  # the third longest: neither the prediction nor the runner-up
    drawn = reconstructions(painter, x, targets)
    rows = torch.arange(5)
    torch.testing.assert_close(drawn.predictions, order[:, 0])
    torch.testing.assert_close(painted(drawn.from_true), poses[rows, targets])
    torch.testing.assert_close(painted(drawn.from_predicted), poses[rows, order[:, 0]])
    torch.testing.assert_close(painted(drawn.from_wrong), poses[rows, order[:, 1]])
    torch.testing.assert_close(drawn.lengths, lengths)


def test_without_targets_the_wrong_class_is_the_runner_up(painter):
    drawn = reconstructions(painter, images())
    assert drawn.true is None
    assert drawn.from_true is None
    torch.testing.assert_close(drawn.wrong.int().argmax(-1), drawn.lengths.argsort(descending=True)[:, 1])


def test_several_labels_are_drawn_together(painter):
    x, several = images(1), torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    drawn = reconstructions(painter, x, several)
    torch.testing.assert_close(painted(drawn.from_true)[0], painter(x).poses[0, [0, 2]].sum(0))
    torch.testing.assert_close(drawn.predicted, drawn.lengths >= 0.5)


@pytest.mark.parametrize("classes", [1, 2])
def test_few_classes_leave_few_wrong_ones(classes):
    model = create_model("capsnet_small", image_shape=(3, 9, 9), num_classes=classes)
    drawn = reconstructions(model, torch.rand(4, 3, 9, 9), torch.zeros(4, dtype=torch.long))
    assert not drawn.wrong[:, 0].any()  # class 0 is the true one
    assert drawn.wrong.sum() == 4 * (classes - 1)


def test_sweep_moves_one_dimension_of_the_longest_capsule(painter):
    x = images(3)
    output = painter(x)
    winners = output.poses[torch.arange(3), output.lengths.argmax(-1)]
    swept = sweep(painter, x)
    assert swept.shape == (3, 6, 11, 1, 11, 13)
    for dimension in range(6):
        for step, value in enumerate(SWEEP):
            expected = winners.clone()
            expected[:, dimension] += value
            torch.testing.assert_close(painted(swept[:, dimension, step]), expected)


def test_sweep_of_one_image_and_of_a_given_class(painter):
    x = images(2)
    one = sweep(painter, x[1], values=(0.0, 1.0), target=3)
    assert one.shape == (6, 2, 1, 11, 13)
    torch.testing.assert_close(painted(one[:, 0]), painter(x).poses[1, 3].expand(6, 6))
    torch.testing.assert_close(sweep(painter, x, (0.0, 1.0), torch.tensor([0, 3]))[1], one)
    assert sweep(painter, x[:0]).shape == (0, 6, 11, 1, 11, 13)


def test_paper_values_of_the_sweep():
    torch.testing.assert_close(torch.tensor(SWEEP), torch.linspace(-0.25, 0.25, 11))


@pytest.mark.parametrize("explanation", [reconstructions, sweep])
def test_models_without_capsules_or_decoder_say_so(explanation):
    x = torch.rand(1, 1, 12, 12)
    with pytest.raises(UserError, match="no capsules"):
        explanation(create_model("matched_cnn", image_shape=(1, 12, 12), parameters=20_000), x)
    with pytest.raises(UserError, match="no decoder"):
        explanation(create_model("capsnet_small", image_shape=(1, 12, 12), decoder="none"), x)


def test_the_model_is_left_as_it_was(painter):
    painter.train()
    assert not reconstructions(painter, images()).from_predicted.requires_grad
    assert painter.training


def test_correlation_is_pearsons_of_each_image():
    one, other = torch.rand(3, 2, 4, 5).double(), torch.rand(3, 2, 4, 5).double()
    expected = [torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1] for a, b in zip(one, other)]
    torch.testing.assert_close(correlation(one, other), torch.stack(expected))
    torch.testing.assert_close(correlation(one, 0.5 - 0.1 * one), -torch.ones(3).double())
    assert correlation(one, torch.full_like(one, 0.3)).abs().max() < 1e-6  # the same value everywhere
