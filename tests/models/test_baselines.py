"""The networks without capsules that capsules are compared with."""

from __future__ import annotations

import pytest
import torch

from torchcaps.errors import UserError
from torchcaps.models import create_model


def made_on_meta(name, **options):
    with torch.device("meta"):
        return create_model(name, **options)


def test_the_papers_baseline():
    # 5×5 convolutions 1→256→256→128: 6,656 + 1,638,656 + 819,328; 128·28·28 → 328 → 192 → 10
    expected = 6_656 + 1_638_656 + 819_328 + (128 * 784 * 328 + 328) + (328 * 192 + 192) + (192 * 10 + 10)
    assert made_on_meta("baseline_cnn").parameter_count() == expected
    assert round(expected / 1e6, 1) == 35.4


@pytest.mark.parametrize(
    ("shape", "classes", "parameters"),
    [
        ((1, 28, 28), 10, 8_215_568),
        ((1, 28, 28), 10, 300_000),
        ((1, 28, 28), 200, 1_000_000),
        ((3, 32, 32), 10, 11_749_120),
        ((3, 17, 23), 2, 500_000),
        ((1, 8, 8), 1, 20_000),
        ((3, 32, 32), 10, 100_000),
        ((1, 100, 64), 2, 2_907_537),  # capsnet_small for these images
        ((3, 128, 128), 2, 7_796_467),  # and for these
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_matched_within_one_percent(shape, classes, parameters):
    model = made_on_meta("matched_cnn", image_shape=shape, num_classes=classes, parameters=parameters)
    assert abs(model.parameter_count() / parameters - 1) <= 0.01
    assert model(torch.empty(1, *shape, device="meta")).lengths.shape == (1, classes)


@pytest.mark.parametrize("name", ["capsnet", "capsnet_small"])
def test_matched_to_a_capsnet(name):
    parameters = made_on_meta(name).parameter_count()
    assert abs(made_on_meta("matched_cnn", parameters=parameters).parameter_count() / parameters - 1) <= 0.01


def test_impossible_match_is_refused():
    with pytest.raises(UserError, match="no network of 100 parameters exists for images of"):
        create_model("matched_cnn", parameters=100)


def test_lengths_are_the_softmax_of_the_logits():
    model = create_model("matched_cnn", image_shape=(1, 12, 12), num_classes=3, parameters=50_000).eval()
    out = model(torch.rand(2, 1, 12, 12), torch.tensor([0, 1]))
    torch.testing.assert_close(out.lengths, out.logits.softmax(-1))
    assert out.poses is None
    assert out.reconstruction is None


def test_dropout_only_in_training():
    model = create_model("baseline_cnn", image_shape=(1, 6, 6), channels=(4,), hidden=(50,))
    images = torch.rand(2, 1, 6, 6)
    assert not torch.equal(model.train()(images).logits, model(images).logits)
    assert torch.equal(model.eval()(images).logits, model(images).logits)


def test_float64_stays_float64():
    model = create_model("baseline_cnn", image_shape=(1, 6, 6), channels=(4,), hidden=(5,)).double()
    assert model(torch.rand(2, 1, 6, 6, dtype=torch.float64)).logits.dtype == torch.float64


def test_even_kernel_is_refused():
    with pytest.raises(UserError, match="kernel must be odd, got 4"):
        create_model("baseline_cnn", image_shape=(1, 6, 6), channels=(4,), kernel=4, hidden=(5,))
