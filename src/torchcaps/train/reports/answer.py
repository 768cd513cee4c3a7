"""The first section of a classifier's report: how well it does, and what that is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchcaps.explain.html import paragraph, section, table
from torchcaps.metrics.summary import class_measures
from torchcaps.train.reports.page import percent
from torchcaps.train.reports.report_data import ReportData

NAMES = {"hog_svm": "HOG + linear SVM", "majority": "Most frequent class", "chance": "Chance"}
MEASURES = ("balanced_accuracy", "macro_f1", "top5_accuracy", "calibration_error")
WORDS = {"macro_f1": "Macro F1", "top5_accuracy": "Top-5 accuracy"}


def answer_sections(summary: Mapping[str, Any], test: ReportData) -> list[str]:
    """The accuracy with its interval, beside simple methods; other measures; precision and recall of each class.

    Args:
        summary: of the run.
        test: the images that the report is about; with none there is no answer.
    """
    if not len(test.images):
        return []
    short, part = ("test", "test") if summary.get("test_n") else ("val", "validation")
    parts = [paragraph(_sentence(summary, short, part, test))]
    rows = _compared(summary, short)
    if len(rows) > 1:
        parts.append(table(rows, ("On the same images", "Accuracy")))
    if note := summary.get("baselines", {}).get("note"):
        parts.append(paragraph(f"{note}."))
    measured = [(key, summary.get(f"{short}_{key}")) for key in MEASURES]
    others = [(WORDS.get(key, key.replace("_", " ").capitalize()), percent(x)) for key, x in measured if x is not None]
    if others:
        parts += [paragraph("Further measures:"), table(others)]
    sections = [section("Result", *parts)]
    if not test.several:  # of several labels, a section of the task tells more
        sections.append(section("Per class", table(_per_class(test), ("Class", "Recall", "Precision", "F1", "Images"))))
    return sections


def one_line(summary: Mapping[str, Any], short: str) -> str:
    """What simple methods reach, for the console; empty if they were not measured.

    Args:
        summary: of the run.
        short: "test" or "val".
    """
    found = summary.get("baselines") or {}
    named = [f"{NAMES[key]} {found[key]:.2%}" for key in NAMES if key in found]
    interval = summary.get(f"{short}_accuracy_interval")
    first = [f"95 % interval {interval[0]:.1%} to {interval[1]:.1%}"] if interval else []
    note = [found["note"]] if found.get("note") else []
    return "; ".join([*first, ", ".join(named), *note]) if named else "; ".join(first)


def _sentence(summary: Mapping[str, Any], short: str, part: str, test: ReportData) -> str:
    accuracy, n = summary.get(f"{short}_accuracy"), len(test.images)
    about = f" of {summary['data']}" if summary.get("data") else ""
    share = percent(accuracy) if accuracy is not None else "–"
    right = "have all labels right" if test.several else "are classified correctly"
    sentence = f"{share} of {n:,} {part} images{about} {right}."
    if interval := summary.get(f"{short}_accuracy_interval"):
        sentence += f" With so many images, the 95 % interval is {percent(interval[0])} to {percent(interval[1])}."
    return sentence


def _compared(summary: Mapping[str, Any], short: str) -> list[tuple[str, str]]:
    found = summary.get("baselines") or {}
    ours = summary.get(f"{short}_accuracy")
    rows = [(str(summary.get("model", "This model")), ours), *((NAMES[key], found.get(key)) for key in NAMES)]
    return [(name, percent(value)) for name, value in rows if value is not None]


def _per_class(test: ReportData) -> Sequence[tuple[str, ...]]:
    measures = class_measures(test.lengths, test.targets)
    columns = zip(measures.recall, measures.precision, measures.f1)
    return [
        (name, *(percent(float(value)) for value in values), f"{int(count):,}")
        for name, values, count in zip(test.names, columns, measures.support)
    ]
