"""report.html: what a run learned and where it errs, in one file that opens anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchcaps import explain
from torchcaps.data import Batch
from torchcaps.errors import UserError
from torchcaps.explain.familiarity import own_threshold
from torchcaps.explain.html import code, page, paragraph, picture, section, table
from torchcaps.io.atomic import write_text
from torchcaps.train.reports import placement, rejection
from torchcaps.train.reports.tested import Tested, surest

EXAMPLES = 8  # images whose reconstructions are shown, before up to two mistakes
SWEPT = 2  # images whose capsules are swept
PAIRS = 500  # images of two classes among which examples are looked for
SHARES = ("accuracy", "precision", "recall", "dice", "iou", "pixel_error", "similarity")  # given in percent
CONFUSIONS = 10  # rows of the table that stands in for numbers too small to print


def write_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    summary: Mapping[str, Any],
    recipe_text: str,
    history: Sequence[Mapping[str, Any]],
    model: nn.Module,
    test_images: Tensor,
    test_targets: Tensor,
    test_lengths: Tensor,
    class_names: Sequence[str],
    labels_each: int | None = None,
) -> Path:
    """Write a self-contained page and return its path; what the model cannot show is left out, with a sentence.

    history       a dict per epoch: epoch, train_loss, val_accuracy, …
    test_images   (N, C, H, W) in [0, 1]
    test_targets  (N,) class ids, or (N, J) multi-hot
    test_lengths  (N, J)  what the model answered
    labels_each   how many classes every image has, where that is known
    """
    images, targets, lengths = (value.detach().cpu() for value in (test_images, test_targets, test_lengths))
    test = Tested(images, targets, lengths, [str(name) for name in class_names], labels_each)
    sections = [section("Test images", paragraph("There were none, so there is nothing to show."))]
    if len(test.images):
        sections = [
            section("Per class" if test.several else "Confusion matrix", *_scores(test)),
            section("Worst mistakes", *_mistakes(test)),
            *(section(name, *_or_why_not(show, model, test)) for name, show in _looks(model, test).items()),
        ]
    return write_page(path, title, summary, history, sections, recipe_text)


def write_page(
    path: str | os.PathLike[str],
    title: str,
    summary: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    sections: Sequence[str],
    recipe_text: str,
) -> Path:
    """What every report has, around the sections of this one."""
    rows = [
        (_words(key), _value(key, value))
        for key, value in summary.items()
        if value is not False and value not in (None, {})
    ]
    first = [section("Summary", table(rows)), section("Learning curves", _curves(history))]
    return write_text(path, page(title, [*first, *sections, section("Recipe", code(recipe_text))]))


def _looks(model: nn.Module, test: Tested) -> dict[str, Callable[[Any, Tested], list[str]]]:
    """The sections that look into the model, by title: what they show depends on what it offers."""
    rejected = {} if own_threshold(model) is None else {"None of these": rejection.rejected}
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


def _curves(history: Sequence[Mapping[str, Any]]) -> str:
    if not history:
        return paragraph("No epoch was recorded.")
    caption = "Training measures are averages over an epoch, while the weights change."
    if not any(key.startswith("val_") for entry in history for key in entry):
        caption += " No validation images were held out."
    return picture(explain.figure_curves(history), "Loss and what is right by epoch", caption)


def _scores(test: Tested) -> list[str]:
    if test.several:
        return _per_class(test)
    names = test.names
    matrix = explain.confusion_matrix(test.targets, test.lengths.argmax(-1), len(names))
    caption = "Rows are the true classes, columns the answers; the shade is the share of the true class."
    parts = [picture(explain.figure_confusion(matrix, names), "Confusion matrix", caption)]
    wrong = matrix.clone().fill_diagonal_(0).flatten()
    worst = wrong.argsort(descending=True, stable=True)[:CONFUSIONS].tolist()
    rows = [
        (names[cell // len(names)], names[cell % len(names)], str(int(wrong[cell]))) for cell in worst if wrong[cell]
    ]
    if len(names) > 20 and rows:
        parts += [paragraph("The most frequent confusions:"), table(rows, ("True class", "Taken for", "Images"))]
    return parts


def _per_class(test: Tested) -> list[str]:
    precision, recall, support = explain.precision_recall(test.lengths, test.targets, test.each)
    rows = [
        (name, _percent(float(precision[j])), _percent(float(recall[j])), str(int(support[j])))
        for j, name in enumerate(test.names)
    ]
    found = "from a length of 0.5 on" if test.each is None else f"if it is among the {test.each} longest"
    about = (
        f"An image may carry several labels, so there is no confusion matrix. A class counts as found {found}. "
        "Precision: how much of what was found is right; recall: how much of what is there was found."
    )
    return [paragraph(about), table(rows, ("Class", "Precision", "Recall", "Images"))]


def _mistakes(test: Tested) -> list[str]:
    mistakes = test.mistakes()
    if not len(mistakes):
        noun = "image was" if len(test.images) == 1 else "images were all"
        return [paragraph(f"There are none: the {len(test.images):,} {noun} answered rightly.")]
    answers = explain.predicted_classes(test.lengths, True, test.each) if test.several else test.lengths.argmax(-1)
    shown = mistakes[:15]
    figure = explain.figure_mistakes(
        test.images[shown], test.targets[shown], answers[shown], test.lengths[shown], test.names
    )
    how_many = f"{len(mistakes):,} of {len(test.images):,} answers are wrong"
    caption = f"{how_many}; the most confident of them come first, with the length of the class answered in brackets."
    if test.several:
        caption = f"{how_many} in at least one class; the most confident of them come first."
    return [picture(figure, "The most confident wrong answers", caption)]


def _reconstructions(model: nn.Module, test: Tested) -> list[str]:
    chosen = test.shown(EXAMPLES)
    drawn = explain.reconstructions(model, test.images[chosen], test.targets[chosen])
    caption = (
        "What the decoder draws when it sees only the capsule of the true class, of the predicted class, or of a wrong "
        "class (the runner-up), with that capsule's length. The last columns are mistakes, where there are any."
    )
    figure = explain.figure_reconstructions(test.images[chosen], drawn, test.names, title="")
    return [picture(figure, "Reconstructions below their inputs", caption)]


def _pairs(model: nn.Module, test: Tested) -> list[str]:
    few = test.images[:PAIRS], test.targets[:PAIRS]
    drawn = explain.pair_examples(model, Batch(*few, labels=few[1].topk(2).indices.sort().values))
    caption = (
        f"Of the first {len(few[0]):,} images. Each class is drawn from its own capsule, in a colour of its own; the "
        "last columns ask for a class that is not in the image."
    )
    figure = explain.figure_pair_examples(drawn, test.names, title="")
    return [picture(figure, "Two classes in one image, each reconstructed from its own capsule", caption)]


def _sweeps(model: nn.Module, test: Tested) -> list[str]:
    parts = [paragraph("One dimension of the longest class capsule is changed at a time, and the result decoded.")]
    for index in surest(test.lengths, SWEPT):
        name = test.names[int(test.lengths[index].argmax())]
        figure = explain.figure_sweep(explain.sweep(model, test.images[index]), title=f"The capsule of class {name}")
        parts.append(picture(figure, f"Dimension sweep of class {name}"))
    return parts


def _couplings(model: nn.Module, test: Tested) -> list[str]:
    about = (
        "Bright is where primary capsules are both sure and coupled to the class. In the first iteration every class "
        "gets the same; from then on children move to the class whose other children agree with them. The entropy of "
        "the couplings (in nats, averaged over children) falls as they decide."
    )
    parts = [paragraph(about)]
    for index in dict.fromkeys([*surest(test.lengths, 1), *test.mistakes(1).tolist()]):
        image, target = test.images[index : index + 1], test.targets[index]
        heat = explain.maps_on_image(model, explain.routing_maps(model, image)[:, 0])
        entropies = explain.coupling_entropy(explain.routing_couplings(model, image)[:, 0])
        there = target.nonzero().flatten().tolist() if test.several else [int(target)]
        title = f"True class: {' + '.join(test.names[j] for j in there) or 'none'}"
        figure = explain.figure_routing(image[0], heat, test.lengths[index], entropies, test.names, title=title)
        parts.append(picture(figure, f"Routing maps. {title}"))
    return parts


def _or_why_not(show: Callable[[Any, Tested], list[str]], model: nn.Module, test: Tested) -> list[str]:
    """What a section shows, or the sentence that says why this model has no such thing."""
    try:
        return show(model, test)
    except UserError as error:
        return [paragraph(f"Left out: {str(error).split(': ', 1)[-1]}.")]


def _words(key: str) -> str:
    known = {"val": "validation", "n": "images"}
    return " ".join(known.get(word, word) for word in key.split("_")).capitalize().replace(" mib", ", MiB")


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %" if value == value else "–"


def _value(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return _percent(value) if key.endswith(SHARES) else f"{value:,.4g}"
    if isinstance(value, int) and not isinstance(value, bool) and key != "seed":
        return f"{value:,}"
    if key == "versions":
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return value if isinstance(value, str) else json.dumps(value, default=str)
