import pytest
import torch
from torch import nn

from torchcaps.errors import UserError
from torchcaps.explain.familiarity import (
    count_rejected,
    energy,
    familiarity_threshold,
    max_length,
    score_images,
    scores,
)
from torchcaps.explain.familiarity_charts import figure_familiarity, figure_rejected
from torchcaps.metrics.detection import accuracy_at_kept, auroc_and_fpr95
from torchcaps.models import ImageModel, Output
from torchcaps.robustness import suites


class Bright(ImageModel):
    """Two classes, dark and bright; what it answers depends on the mean of an image alone."""

    def __init__(self, logits: bool = False, class_names=None):
        super().__init__((1, 12, 12), 2, class_names=class_names)
        self.logits = logits
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, images, targets=None):
        assert not self.training
        mean = images.mean((1, 2, 3))
        lengths = torch.stack([1 - mean, mean], 1)
        return Output(lengths, logits=10 * lengths if self.logits else None)


class Own(Bright):
    def familiarity(self, images, output):
        assert images.shape[0] == output.lengths.shape[0]
        return -images.flatten(1).std(1)


def test_scores_by_hand():
    output = Output(torch.tensor([[0.2, 0.7], [0.9, 0.1]]), logits=torch.tensor([[0.0, 0.0], [1.0, 3.0]]))
    assert max_length(output).tolist() == pytest.approx([0.7, 0.9])
    assert energy(output).tolist() == pytest.approx([0.693147, 3.126928], abs=1e-5)
    with pytest.raises(UserError, match="no logits"):
        energy(Output(output.lengths))


def test_a_model_has_the_scores_that_it_allows():
    images = torch.rand(600, 1, 12, 12)
    assert set(score_images(Bright(), images).scores) == {"max length"}
    assert set(score_images(Bright(logits=True), images).scores) == {"max length", "energy"}
    model = Own().train()
    found = score_images(model, images)
    assert set(found.scores) == {"max length", "familiarity"}
    torch.testing.assert_close(found.scores["familiarity"].float(), -images.flatten(1).std(1))
    assert torch.equal(found.classes, (images.mean((1, 2, 3)) > 0.5).long())
    assert model.training


def test_a_score_that_is_not_one_an_image_is_refused():
    model = Own()
    model.familiarity = lambda images, output: output.lengths
    with pytest.raises(ValueError, match="familiarity: expected one score an image"):
        scores(model, torch.rand(2, 1, 12, 12), Output(torch.rand(2, 2)))


def test_separation_by_hand():
    # Of the 4 × 3 pairs 9 are right and 1 is a tie: 9.5 / 12. All four must stay to keep 95 %, so the threshold is 2.
    familiar, other = torch.tensor([5.0, 4.0, 3.0, 2.0]), torch.tensor([3.5, 2.0, 1.0])
    assert auroc_and_fpr95(familiar, other) == {
        "auroc": pytest.approx(9.5 / 12, abs=1e-6),
        "fpr95": pytest.approx(2 / 3, abs=1e-6),
    }
    assert auroc_and_fpr95(other, familiar)["auroc"] == pytest.approx(2.5 / 12, abs=1e-6)


def test_a_threshold_gives_up_one_familiar_image_in_twenty():
    familiar = torch.arange(20.0)  # all but 0 are kept
    assert auroc_and_fpr95(familiar, torch.tensor([0.5, 1.0, 7.0, -3.0]))["fpr95"] == 0.5
    hundred = torch.arange(100.0)  # 5 to 99 are kept
    assert auroc_and_fpr95(hundred, torch.tensor([4.9, 5.0]))["fpr95"] == 0.5


def test_extremes_ties_and_infinities():
    low, high = torch.rand(30), 2 + torch.rand(40)
    assert auroc_and_fpr95(high, low) == {"auroc": 1.0, "fpr95": 0.0}
    assert auroc_and_fpr95(low, high) == {"auroc": 0.0, "fpr95": 1.0}
    assert auroc_and_fpr95(torch.ones(5), torch.ones(7)) == {"auroc": 0.5, "fpr95": 1.0}
    infinite = torch.tensor([-torch.inf, -torch.inf])
    assert auroc_and_fpr95(torch.tensor([0.0, torch.inf]), infinite) == {"auroc": 1.0, "fpr95": 0.0}


def test_accuracy_over_the_images_kept():
    correct = torch.tensor([True] * 15 + [False] * 5)
    falling = torch.arange(20.0, 0, -1)
    assert accuracy_at_kept(falling, correct, 1.0) == 0.75
    assert accuracy_at_kept(falling, correct) == pytest.approx(15 / 19, abs=1e-6)
    assert accuracy_at_kept(-falling, correct) == pytest.approx(14 / 19, abs=1e-6)
    assert accuracy_at_kept(falling, correct, 0.5) == 1.0
    assert accuracy_at_kept(falling, correct, 1e-6) == 1.0


def test_ties_for_the_last_places_count_in_part():
    tied = torch.tensor([2.0, 1.0, 1.0, 1.0])
    for correct in ([1, 1, 0, 0], [1, 0, 0, 1]):  # one, and of the next three a third
        assert accuracy_at_kept(tied, torch.tensor(correct), 0.5) == pytest.approx((1 + 1 / 3) / 2, abs=1e-6)


@pytest.mark.parametrize("bad", [torch.tensor([1.0, torch.nan]), torch.zeros(0), torch.zeros(2, 2)], ids=str)
def test_what_is_no_list_of_scores_is_refused(bad):
    good, words = torch.rand(2), "NaN" if bad.isnan().any() else "one or more scores"
    with pytest.raises(UserError, match=f"unfamiliar: .*{words}"):
        auroc_and_fpr95(good, bad)
    with pytest.raises(UserError, match=f"^familiar: .*{words}"):
        auroc_and_fpr95(bad, good)
    with pytest.raises(UserError, match=words):
        accuracy_at_kept(bad, torch.ones(bad.shape))


@pytest.mark.parametrize(("share", "answers", "words"), [(0.0, 2, "share"), (1.5, 2, "share"), (0.95, 3, "correct")])
def test_shares_and_lengths_that_do_not_fit_are_refused(share, answers, words):
    with pytest.raises(UserError, match=words):
        accuracy_at_kept(torch.rand(2), torch.ones(answers), share)


def curve(result, measure):
    (found,) = (each for each in result["curves"] if each["measure"] == measure)
    return found["strengths"], found["values"]


def test_the_suite_tells_what_a_model_can_tell():
    """Test images are nearly black or nearly white: greys are what the longest capsule is short for."""
    images = torch.rand(40, 1, 12, 12) * 0.02
    images[20:] += 0.98
    targets = torch.tensor([0] * 20 + [1] * 19 + [0])
    models = {"plain": Bright(), "own": Own(), "logits": Bright(logits=True)}
    result = suites.unfamiliar(models, images, targets)
    kinds, areas = curve(result, "AUROC by max length")
    assert kinds == [*suites.UNFAMILIAR]
    assert set(areas) == set(models)
    for kind, auroc, accepted in zip(kinds, areas["plain"], curve(result, "FPR95 by max length")[1]["plain"]):
        if kind in ("uniform noise", "Gaussian noise", "gradients"):
            assert (auroc, accepted) == (1.0, 0.0)
        if kind == "constants":  # black and white are half of them, and beyond every test image
            assert (auroc, accepted) == (0.5, 0.5)
    assert set(curve(result, "AUROC by energy")[1]) == {"logits"}
    kinds, areas = curve(result, "AUROC by familiarity")
    assert set(areas) == {"own"}
    assert areas["own"][kinds.index("uniform noise")] == 1.0
    shares, right = curve(result, "accuracy by max length")
    assert shares == [1.0, 0.95]
    assert right["plain"][0] == 0.975
    assert result["look_alikes"] == suites.LOOK_ALIKES


def test_what_a_model_was_taught_is_not_unfamiliar(monkeypatch):
    images, targets = torch.rand(4, 1, 12, 12), torch.tensor([0, 1, 0, 1])
    monkeypatch.setattr(suites, "fashion_mnist", lambda n, size, seed: torch.zeros(n, *size))

    def kinds(*class_names):
        result = suites.unfamiliar({"model": Bright(class_names=class_names)}, images, targets)
        return curve(result, "AUROC by max length")[0]

    assert kinds("0", "1") == [*suites.UNFAMILIAR, "Fashion-MNIST"]
    assert "Fashion-MNIST" not in kinds("Bag", "1")
    assert not {"letters", "look-alikes"} & set(kinds("a", "b"))


def test_letters_are_as_large_as_what_the_test_images_show(monkeypatch):
    heights = []
    draw = suites.UNFAMILIAR["letters"]
    monkeypatch.setitem(
        suites.UNFAMILIAR, "letters", lambda *of, height: heights.append(height) or draw(*of, height=height)
    )
    images = torch.zeros(5, 1, 12, 12)
    images[:, :, 2:9, 5] = 1
    for shown in (images, torch.zeros_like(images)):
        suites.unfamiliar({"model": Bright()}, shown, torch.zeros(5, dtype=torch.long))
    assert heights == [7, None]


def test_what_a_threshold_rejects_by_hand():
    """Of 20 images 19 are the most familiar 95 %; five lie below 5, and one that reaches it is wrong."""
    scores, correct = torch.arange(20.0), torch.tensor([False, False, *[True] * 3, False, *[True] * 14])
    assert count_rejected(scores, correct, 5.0) == {
        "none_below": 5.0,
        "rejected": 5,
        "rejected_share": 0.25,
        "kept_accuracy": pytest.approx(14 / 15, abs=1e-6),
        "accuracy_at_95": pytest.approx(17 / 19, abs=1e-6),
    }
    nothing = count_rejected(scores, correct, 99.0)
    assert (nothing["rejected"], nothing["kept_accuracy"]) == (20, None)
    assert count_rejected(scores, correct, -1.0)["rejected"] == 0


def test_a_threshold_counts_only_with_a_measure():
    model, own = Bright(), Own()
    model.none_below = own.none_below = 1.5
    assert (familiarity_threshold(model), familiarity_threshold(own)) == (None, 1.5)
    own.none_below = None
    assert familiarity_threshold(own) is None


def test_bytes_and_shares_score_alike():
    images = torch.randint(256, (5, 1, 14, 12), dtype=torch.uint8)  # two rows more than the model takes
    found = [score_images(Own(), each).scores["familiarity"] for each in (images, images[:, :, 1:13].float() / 255)]
    torch.testing.assert_close(*found)


def test_figures_of_rejected_images():
    scores, correct = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True])
    axes = figure_familiarity(scores, correct, 1.5).axes[0]
    assert sum(patch.get_height() for patch in axes.containers[0].patches) == 2  # right answers, below the others
    assert axes.lines[0].get_xdata()[0] == 1.5
    shown = figure_rejected(
        torch.rand(2, 1, 12, 12), torch.tensor([0, 1]), torch.tensor([0, 0]), scores[:2], ("a", "b")
    )
    assert [text.get_text() for text in shown.axes[0].texts] == ["true a, nearest a\n1.00", "true b, nearest a\n2.00"]
