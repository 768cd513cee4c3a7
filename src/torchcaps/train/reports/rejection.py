"""Section of report.html about images that the model answers with "none of these"."""

from __future__ import annotations

from torchcaps import explain
from torchcaps.explain.familiarity import count_rejected, familiarity_threshold, score_images
from torchcaps.explain.familiarity_charts import figure_familiarity, figure_rejected
from torchcaps.explain.html import paragraph, picture, table
from torchcaps.models import ImageModel
from torchcaps.train.reports.report_data import ReportData

MAX_SCORED = 2000  # images, evenly spaced
MAX_SHOWN = 12  # rejected images


def rejected(model: ImageModel, test: ReportData) -> list[str]:
    """Count the images below the threshold, and show the least familiar of them."""
    threshold = familiarity_threshold(model)
    assert threshold is not None
    stride = -(-len(test.images) // MAX_SCORED)
    images, targets, lengths = (part[::stride] for part in (test.images, test.targets, test.lengths))
    scores = score_images(model, images).scores["familiarity"]
    found = explain.predicted_classes(lengths, test.several, test.each)
    correct = (found == (targets > 0)).all(-1) if test.several else lengths.argmax(-1) == targets
    figures = count_rejected(scores, correct, threshold)
    number, kept = figures["rejected"], len(images) - figures["rejected"]
    rows = [
        ("Threshold of familiarity", f"{threshold:.4g}"),
        ("Images measured", f"{len(images):,}"),
        ("Rejected as “none of these”", f"{number:,} ({100 * figures['rejected_share']:.2f} %)"),
        ("Accuracy without a threshold", f"{100 * correct.double().mean():.2f} %"),
        (f"Accuracy over the {kept:,} kept", f"{100 * figures['kept_accuracy']:.2f} %" if kept else "–"),
        ("Accuracy over the most familiar 95 %", f"{100 * figures['accuracy_at_95']:.2f} %"),
    ]
    about = (
        "The familiarity measures how much an image looks like one of the classes. Below the threshold, which 95 % of "
        "the validation images reach, the model answers “none of these”. All images here belong to a known class."
    )
    histogram = picture(figure_familiarity(scores, correct, threshold), "Familiarity of the images, with the threshold")
    parts = [paragraph(about), table(rows), histogram]
    if not number:
        return [*parts, paragraph("No image is below the threshold.")]
    least = scores.argsort(stable=True)[: min(MAX_SHOWN, number)]
    answers = found if test.several else lengths.argmax(-1)
    drawn = figure_rejected(images[least], targets[least], answers[least], scores[least], test.names)
    caption = "The least familiar of the rejected images; below the classes, the familiarity."
    return [*parts, picture(drawn, "Images rejected as “none of these”", caption)]
