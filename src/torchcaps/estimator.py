"""A classifier with the interface of scikit-learn: for pipelines, grid searches and cross-validation."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from torchcaps.data import Dataset
from torchcaps.data.arrays import channels_first
from torchcaps.devices import make_device
from torchcaps.errors import UserError
from torchcaps.models import ImageModel, load, save
from torchcaps.models.files import WEIGHTS
from torchcaps.train.fit import fit

BATCH = 256  # images that are classified at a time
SMALL_SIDE = 12  # pixels: smaller images get smaller kernels
LEAST_LENGTH = 1e-6  # lengths are kept this far from 0 and 1, where odds are not finite
NAME = "CapsClassifier"


class CapsClassifier(ClassifierMixin, BaseEstimator):
    """A capsule network as an estimator of scikit-learn. It is trained by `torchcaps.fit`.

    X holds images, (n, H, W), (n, C, H, W) or (n, H, W, C), or one row for each image with `image_shape`. Without
    `image_shape`, rows are feature vectors: each feature is then a channel of an image of one pixel, scaled to [0, 1].

    `predict_proba` reads the length of a class capsule as the probability l that this class is present, whatever else
    is. Given that exactly one class is present, its probability is proportional to the odds l / (1 - l). Models that
    end in a softmax return its probabilities. Neither is calibrated on data: `CalibratedClassifierCV` does that.

    A pickled estimator holds its model as the content of a .safetensors file and its parameters, but no module.

    Args:
        model: a name of `torchcaps.list_models()` that classifies images. The default has smaller kernels for images
            below 12 pixels and for feature vectors, unless `options` gives them.
        image_shape: (H, W) or (C, H, W) of the images in the rows of a two-dimensional X.
        epochs: passes over the training images.
        batch_size: images in a batch.
        lr: the learning rate.
        validation: share or number of training images to hold out and measure after each epoch; see `history_`.
        value_range: (low, high) values of X that become 0 and 1. By default uint8 images are 0…255, floats in [0, 1]
            are used as they are, and of all others the least and the largest value in training become 0 and 1; of
            feature vectors those of each feature.
        device: auto, cpu, cuda or mps.
        random_state: the seed of weights and order; an integer gives the same result every time.
        options: options of the model: {"iterations": 1}.
        settings: more settings of a recipe, see `torchcaps.fit`: {"augment": {"shift": 2}}.

    Attributes:
        model_: the trained model; `torchcaps.save` writes it.
        classes_: the labels in the order of the columns of `predict_proba`.
        history_: a dict of figures for each epoch.
        image_shape_: (C, H, W) of the images that the model takes.
        value_range_: the values of X that become 0 and 1.
    """

    def __init__(
        self,
        model: str = "capsnet_small",
        *,
        image_shape: Sequence[int] | None = None,
        epochs: int = 10,
        batch_size: int = 32,
        lr: float = 1e-3,
        validation: float = 0.0,
        value_range: tuple[float, float] | None = None,
        device: str = "auto",
        random_state: Any = None,
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ):
        self.model = model
        self.image_shape = image_shape
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.validation = validation
        self.value_range = value_range
        self.device = device
        self.random_state = random_state
        self.options = options
        self.settings = settings

    def fit(self, X: Any, y: Any) -> CapsClassifier:
        """Train on images X with labels y.

        Args:
            X: (n, H, W), (n, C, H, W), (n, H, W, C) or (n, features).
            y: (n,) labels of any type; `torchcaps.fit` trains on images with several.
        """
        if not isinstance(self.model, str):
            raise UserError(f"{NAME}: model must be a name of torchcaps.list_models(); torchcaps.fit trains modules")
        X, y = validate_data(self, X, y, allow_nd=True)
        check_classification_targets(y)
        self.classes_, ids = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(f"{NAME}: y has only one class, {self.classes_[0]!r}; at least two are needed")
        self._vectors = X.ndim == 2 and self.image_shape is None
        images = self._as_images(X)
        self.image_shape_ = tuple(images.shape[1:])
        self.value_range_ = self._find_range(images)
        data = Dataset(self._scaled(images), torch.from_numpy(ids), tuple(map(str, self.classes_.tolist())))
        fitted = fit(
            self.model,
            data,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            validation=self.validation,
            seed=self._seed(),
            device=self.device,
            settings=None if self.settings is None else dict(self.settings),
            **self._options(),
        )
        self.model_, self.history_ = fitted
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, (n, J) float32; rows sum to 1.

        Args:
            X: images as in `fit`.
        """
        check_is_fitted(self, "model_")
        images = self._as_images(validate_data(self, X, reset=False, allow_nd=True))
        if tuple(images.shape[1:]) != self.image_shape_:
            shapes = f"{tuple(images.shape[1:])}, those in training {self.image_shape_}"
            raise UserError(f"{NAME}: the images are of shape {shapes}; resize them")
        model: ImageModel = self.model_
        found = []
        with torch.inference_mode():
            for part in images.split(BATCH):
                output = model.eval()(model.prepare(self._scaled(part)))
                lengths = output.lengths.double()
                found.append((lengths if output.logits is not None else probabilities(lengths)).float().cpu())
        return torch.cat(found).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable label of each image, (n,).

        Args:
            X: images as in `fit`.
        """
        chosen = self.predict_proba(X).argmax(1)
        return self.classes_[chosen]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "model_" in state:
            with tempfile.TemporaryDirectory() as folder:
                state["model_"] = (save(state["model_"], folder) / WEIGHTS).read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model_" in state:
            with tempfile.TemporaryDirectory() as folder:
                (file := Path(folder) / WEIGHTS).write_bytes(state["model_"])
                self.model_ = load(file).to(_device_here(self.device))

    def _as_images(self, X: np.ndarray) -> Tensor:
        """(n, C, H, W), of the type of X."""
        if X.ndim == 2 and not self._vectors:
            shape = tuple(self.image_shape or self.image_shape_)
            if len(shape) not in (2, 3) or np.prod(shape) != X.shape[1]:
                raise UserError(
                    f"{NAME}: image_shape={shape} does not fit rows of {X.shape[1]} values; give (H, W) or (C, H, W)"
                )
            X = X.reshape(len(X), *shape)
        pixels = torch.from_numpy(np.array(X, order="C"))  # a copy, for X may be read-only
        if self._vectors:
            return pixels[:, :, None, None]
        return channels_first(pixels[:, None] if pixels.ndim == 3 else pixels, NAME)

    def _find_range(self, images: Tensor) -> tuple[Any, Any]:
        """The values that become 0 and 1: numbers, or of feature vectors one for each feature."""
        if self.value_range is not None:
            low, high = map(float, self.value_range)
            if not low < high:
                raise UserError(f"{NAME}: value_range={self.value_range}: give (low, high) with low < high")
            return low, high
        if self._vectors:
            values = images.double().flatten(1)
            return values.amin(0).numpy(), values.amax(0).numpy()
        if images.dtype == torch.uint8:
            return 0.0, 255.0
        low, high = (float(each) for each in images.aminmax())
        return (0.0, 1.0) if images.is_floating_point() and low >= 0 and high <= 1 else (low, high)

    def _scaled(self, images: Tensor) -> Tensor:
        """(n, C, H, W) as the model takes them: uint8, or float32 in [0, 1] for values within the range."""
        low, high = (torch.as_tensor(each, dtype=torch.float64).reshape(-1, 1, 1) for each in self.value_range_)
        if images.dtype == torch.uint8 and (float(low.min()), float(high.max()), low.numel()) == (0.0, 255.0, 1):
            return images
        width = torch.where(high > low, high - low, 1.0)  # a feature may be constant
        return ((images.double() - low) / width).float()

    def _options(self) -> dict[str, Any]:
        """The options of the model, with kernels that fit into small images."""
        given = dict(self.options or {})
        if self._vectors and not self.model.startswith("capsnet"):
            raise UserError(
                f"{NAME}: the rows of X are feature vectors, and {self.model} takes images: give image_shape=(H, W), "
                "or model='capsnet_small'"
            )
        if not self.model.startswith("capsnet"):
            return given
        side = min(self.image_shape_[1:])
        if side < 5:
            return {"kernel": 1, "primary_kernel": 1, "stride": 1, "decoder": "none", **given}
        return {"kernel": 3, "primary_kernel": 3, "stride": 1, **given} if side < SMALL_SIDE else given

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))


def probabilities(lengths_BJ: Tensor) -> Tensor:
    """Return the probability of each class, given that exactly one is present.

    Args:
        lengths_BJ: (B, J) the probability that each class is present, whatever else is.

    Returns:
        (B, J) odds l / (1 - l), divided by their sum over J.
    """
    return lengths_BJ.clamp(LEAST_LENGTH, 1 - LEAST_LENGTH).logit().softmax(-1)


def _device_here(device: str) -> torch.device:
    """The device that the estimator was trained on, or the CPU where there is none of that kind."""
    try:
        return make_device(device)
    except UserError:
        return torch.device("cpu")
