"""What a summary gives of a classifier: measures of each class, calibration, an interval of the accuracy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from torchcaps.metrics.classification import predicted_classes

BINS = 15  # of the confidence, for the calibration error
TOP = 5  # classes of the top-5 accuracy,
LEAST_CLASSES_TOP = 10  # which is given from this many classes on


class ClassMeasures(NamedTuple):
    """Measures of each class; NaN where a class was never predicted (precision) or never occurs (recall).

    Attributes:
        precision, recall, f1: (J,).
        support: (J,) images of the class.
    """

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    support: np.ndarray

    def named(self, names: list[str] | tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """Return a dict of measures for each class name; a measure that is not defined is None."""
        return {
            name: {
                **{key: _or_none(getattr(self, key)[j]) for key in ("precision", "recall", "f1")},
                "n": int(self.support[j]),
            }
            for j, name in enumerate(names)
        }


class Reliability(NamedTuple):
    """Confidence and accuracy in bins of equal width over [0, 1]; NaN in empty bins.

    Attributes:
        confidence: (K,) mean length or probability of the predicted class.
        accuracy: (K,) share of right predictions.
        images: (K,) how many.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    images: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error: the mean over images of |accuracy − confidence| of their bin."""
        gaps = np.nan_to_num(np.abs(self.accuracy - self.confidence))
        return float((gaps * self.images).sum() / max(1, self.images.sum()))


def accuracy_interval(accuracy: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson interval of an accuracy measured on n images."""
    from scipy.stats import binomtest

    found = binomtest(round(accuracy * n), n).proportion_ci(confidence_level=level, method="wilson")
    return float(found.low), float(found.high)


def class_measures(lengths_NJ: Tensor, targets: Tensor, each: int | None = None) -> ClassMeasures:
    """Measure each class.

    Args:
        lengths_NJ: (N, J) length or probability of each class.
        targets: (N,) class ids, or (N, J) multi-hot.
        each: the number of classes in every image, if known.
    """
    from sklearn.metrics import precision_recall_fscore_support

    labels = np.arange(lengths_NJ.shape[1])
    if targets.ndim == 2:
        answers = predicted_classes(lengths_NJ, several=True, each=each).numpy()
        true = (targets > 0).numpy()
    else:
        answers, true = lengths_NJ.argmax(-1).numpy(), targets.numpy()
    found = precision_recall_fscore_support(true, answers, labels=labels, zero_division=np.nan)
    return ClassMeasures(*found)


def reliability(lengths_NJ: Tensor, targets_N: Tensor, bins: int = BINS) -> Reliability:
    """Compare confidence and accuracy.

    Args:
        lengths_NJ: (N, J) length or probability of each class.
        targets_N: (N,) class ids.
        bins: K.
    """
    confidence, answers = (found.double().numpy() for found in lengths_NJ.max(-1))
    confidence = confidence.clip(0, 1)
    right = answers == targets_N.numpy()
    places = np.minimum((confidence * bins).astype(int), bins - 1)
    count = np.bincount(places, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean, accuracy = (np.bincount(places, weights=each, minlength=bins) / count for each in (confidence, right))
    return Reliability(mean, accuracy, count)


def summary_measures(lengths_NJ: Tensor, targets: Tensor, names: tuple[str, ...], each: int | None) -> dict[str, Any]:
    """Return the measures of a summary; those that do not fit the data are left out.

    Args:
        lengths_NJ: (N, J) length or probability of each class.
        targets: (N,) class ids, or (N, J) multi-hot.
        names: of the classes.
        each: the number of classes in every image, if known.
    """
    measures = class_measures(lengths_NJ, targets, each)
    occurs = measures.support > 0
    found: dict[str, Any] = {
        "macro_f1": _or_none(np.nan_to_num(measures.f1[occurs]).mean() if occurs.any() else np.nan)
    }
    if targets.ndim == 1:
        accuracy = float((lengths_NJ.argmax(-1) == targets).float().mean())
        found["balanced_accuracy"] = float(measures.recall[occurs].mean())
        found["accuracy_interval"] = list(accuracy_interval(accuracy, len(targets)))
        found["calibration_error"] = reliability(lengths_NJ, targets).error
        if len(names) >= LEAST_CLASSES_TOP:
            top = lengths_NJ.topk(TOP).indices == targets[:, None]
            found["top5_accuracy"] = float(top.any(-1).float().mean())
    return found | {"per_class": measures.named(names)}


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
