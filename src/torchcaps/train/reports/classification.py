"""report.html of a classification run: learning curves, confusion, mistakes, and explanations of examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from torchcaps import explain
from torchcaps.data import Batch
from torchcaps.errors import UserError
from torchcaps.explain.decisions import decide, describe_decision, describe_decisions
from torchcaps.explain.familiarity import familiarity_threshold
from torchcaps.explain.html import paragraph, picture, section, table
from torchcaps.explain.reconstruct import correlation
from torchcaps.explain.require import require_capsules
from torchcaps.explain.votes import routing_trace
from torchcaps.layers.routings import ROUTINGS
from torchcaps.metrics.summary import reliability
from torchcaps.train.reports import placement, rejection
from torchcaps.train.reports.page import percent
from torchcaps.train.reports.report_data import ReportData, most_confident

EXAMPLES = 8  # images whose reconstructions are shown, before up to two mistakes
SWEPT = 2  # images whose capsules are swept
PAIRS = 500  # images of two classes from which examples are chosen
LEAST_FOLLOWED = (
    0.5  # correlation of images and reconstructions: below, less than a quarter of the variance is explained
)
DECIDED = 50  # images over which it is counted what routing decides
CONFUSIONS = 10  # rows of the table that replaces numbers too small to print


def classification_sections(model: nn.Module, test: ReportData) -> list[str]:
    """The sections about a classifier and its test images; what has nothing to show is left out."""
    if not len(test.images):
        return [section("Test images", paragraph("There are no test images, so there is nothing to show."))]
    return [
        section("Worst mistakes", *_mistakes(test)),
        section("Per class" if test.several else "Confusion matrix", *_scores(test)),
        *([] if test.several else [section("Calibration", *_calibration(test))]),
        *(section(name, *parts) for name, parts in _explained(model, test)),
    ]


def _explained(model: nn.Module, test: ReportData) -> Iterator[tuple[str, list[str]]]:
    """The explanations that show something; those that this model has not, or that show nothing, are left out."""
    for name, show in _explanations(model, test).items():
        with suppress(UserError):
            parts = show(model, test)
            if parts:
                yield name, parts


def _explanations(model: nn.Module, test: ReportData) -> dict[str, Callable[[Any, ReportData], list[str]]]:
    """Return the functions that explain this model, by section title."""
    rejected = {} if familiarity_threshold(model) is None else {"None of these": rejection.rejected}
    if explain.has_placement(model):
        return {
            "Reconstructions": placement.placed,
            "Views": placement.views,
            "Sweeps": placement.sweeps,
            "Poses": placement.read_poses,
            **rejected,
        }
    drawn = _pairs if test.each == 2 else _reconstructions
    return {"Reconstructions": drawn, "Dimension sweeps": _sweeps, "Couplings": _couplings, **rejected}


def _scores(test: ReportData) -> list[str]:
    if test.several:
        return _per_class(test)
    names = test.names
    matrix = explain.confusion_matrix(test.targets, test.lengths.argmax(-1), len(names))
    caption = "Rows are true classes, columns predicted ones; the shade is the share of the true class."
    parts = [picture(explain.figure_confusion(matrix, names), "Confusion matrix", caption)]
    wrong = matrix.clone().fill_diagonal_(0).flatten()
    worst = wrong.argsort(descending=True, stable=True)[:CONFUSIONS].tolist()
    rows = [
        (names[cell // len(names)], names[cell % len(names)], str(int(wrong[cell]))) for cell in worst if wrong[cell]
    ]
    if len(names) > 20 and rows:
        parts += [paragraph("The most frequent confusions:"), table(rows, ("True class", "Predicted class", "Images"))]
    return parts


def _calibration(test: ReportData) -> list[str]:
    found = reliability(test.lengths, test.targets)
    caption = (
        "Confidence is the length or probability of the predicted class. On the diagonal, predictions are right as "
        f"often as their confidence says; the expected calibration error is {percent(found.error)}, over "
        f"{len(found.images)} bins of equal width. The bars below count images."
    )
    return [picture(explain.figure_reliability(found), "Accuracy by confidence", caption)]


def _per_class(test: ReportData) -> list[str]:
    precision, recall, support = explain.precision_recall(test.lengths, test.targets, test.each)
    rows = [
        (name, percent(float(precision[j])), percent(float(recall[j])), str(int(support[j])))
        for j, name in enumerate(test.names)
    ]
    rule = "if its capsule has a length of at least 0.5"
    rule = rule if test.each is None else f"if its capsule is among the {test.each} longest"
    about = (
        f"An image may carry several labels, so there is no confusion matrix. A class is predicted {rule}. "
        "Precision: the share of predictions that are right; recall: the share of labels that were predicted."
    )
    return [paragraph(about), table(rows, ("Class", "Precision", "Recall", "Images"))]


def _mistakes(test: ReportData) -> list[str]:
    mistakes = test.errors()
    if not len(mistakes):
        noun = "prediction is" if len(test.images) == 1 else "predictions are all"
        return [paragraph(f"There are none: the {len(test.images):,} {noun} right.")]
    answers = explain.predicted_classes(test.lengths, True, test.each) if test.several else test.lengths.argmax(-1)
    chosen = mistakes[:15]
    figure = explain.figure_mistakes(
        test.images[chosen], test.targets[chosen], answers[chosen], test.lengths[chosen], test.names
    )
    how_many = f"{len(mistakes):,} of {len(test.images):,} predictions are wrong"
    caption = f"{how_many}; the most confident come first, with the confidence in brackets."
    if test.several:
        caption = f"{how_many} in at least one class; the most confident come first."
    return [picture(figure, "The most confident wrong predictions", caption)]


def _reconstructions(model: nn.Module, test: ReportData) -> list[str]:
    chosen = test.examples(EXAMPLES)
    drawn = explain.reconstructions(model, test.images[chosen], test.targets[chosen])
    caption = (
        "Reconstructions from the capsule of the true class alone, of the predicted class, or of a wrong class (the "
        "runner-up), with that capsule's length. The last columns are mistakes, if there are any."
    )
    if _followed(test.images[chosen], drawn) < LEAST_FOLLOWED:
        return []
    figure = explain.figure_reconstructions(test.images[chosen], drawn, test.names, title="", limit=len(chosen))
    return [picture(figure, "Reconstructions below their inputs", caption)]


def _followed(images: Tensor, drawn: explain.Reconstructions) -> float:
    """The median correlation of the images and their reconstructions from the true class."""
    redrawn = drawn.from_predicted if drawn.from_true is None else drawn.from_true
    return float(correlation(images, redrawn).median())


def _pairs(model: nn.Module, test: ReportData) -> list[str]:
    few = test.images[:PAIRS], test.targets[:PAIRS]
    drawn = explain.pair_examples(model, Batch(*few, labels=few[1].topk(2).indices.sort().values))
    caption = (
        f"Of the first {len(few[0]):,} images. Each class is reconstructed from its own capsule, in its own colour; "
        "the last columns show a class that is not in the image."
    )
    figure = explain.figure_pair_examples(drawn, test.names, title="")
    return [picture(figure, "Two classes in one image, each reconstructed from its own capsule", caption)]


def _sweeps(model: nn.Module, test: ReportData) -> list[str]:
    chosen = test.examples(EXAMPLES)
    drawn = explain.reconstructions(model, test.images[chosen], test.targets[chosen])
    if _followed(test.images[chosen], drawn) < LEAST_FOLLOWED:
        return []
    parts = [paragraph("One dimension of the longest class capsule is changed at a time, and the result is decoded.")]
    for index in most_confident(test.lengths, SWEPT):
        name = test.names[int(test.lengths[index].argmax())]
        figure = explain.figure_sweep(explain.sweep(model, test.images[index]), title=f"The capsule of class {name}")
        parts.append(picture(figure, f"Dimension sweep of class {name}"))
    return parts


def _couplings(model: nn.Module, test: ReportData) -> list[str]:
    about = (
        "Bright areas have primary capsules that are both long and coupled to the class. The first iteration of "
        "dynamic routing couples them to all classes equally; later ones couple each more to those that its vote "
        "agrees with. The entropy of the couplings (in nats, averaged over primary capsules) is given with that of "
        "equal couplings: the closer they are, the less the couplings decide."
    )
    parts = [paragraph(about)]
    traced = not ROUTINGS[require_capsules(model, "couplings").classes.routing].matrix
    if traced:
        found = [decide(routing_trace(model, image)) for image in test.images[:DECIDED]]
        parts.insert(0, paragraph(describe_decisions(found)))
    for index in dict.fromkeys([*most_confident(test.lengths, 1), *test.errors(1).tolist()]):
        image, target = test.images[index : index + 1], test.targets[index]
        heat = explain.maps_on_image(model, explain.routing_maps(model, image)[:, 0])
        entropies = explain.coupling_entropy(explain.routing_couplings(model, image)[:, 0])
        present = target.nonzero().flatten().tolist() if test.several else [int(target)]
        title = f"True class: {' + '.join(test.names[j] for j in present) or 'none'}"
        figure = explain.figure_routing(image[0], heat, test.lengths[index], entropies, test.names, title=title)
        told = describe_decision(decide(routing_trace(model, image[0])), test.names) if traced else ""
        parts.append(picture(figure, f"Routing maps. {title}", told))
    return parts
