"""Which networks are compared, on what, and how each of them is trained."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from torchcaps.errors import UserError, did_you_mean
from torchcaps.train.experiments.reproduce import Job

PARAMETERS = 321_830  # of posecaps for MNIST, without the decoder
NO_DECODER = "loss.reconstruction=null"
LATTICE = "turn: 60, scales: [0.8, 1.0, 1.25]"
VIEWS = f"lattice_use: train, {LATTICE}, views: 3"  # as many as pose capsules use in training
AUGMENTED = (
    "augment.rotate=60",
    "augment.scale=0.2",
    "augment.elastic=1.0",
)  # about as varied as the views of pose capsules


class Network(NamedTuple):
    """One column of the tables.

    Attributes:
        title: Its name in the tables.
        settings: Settings that differ from the recipe of a study.
        rate_of: The network whose learning rate it uses; by default its own.
        baseline: Whether it is a CNN of equal size without views, to which pose capsules are compared.
        weights_of: The network whose trained weights it uses; by default it is trained itself.
    """

    title: str
    settings: tuple[str, ...]
    rate_of: str | None = None
    baseline: bool = False
    weights_of: str | None = None


class Study(NamedTuple):
    """A recipe with which several networks are trained, on the same data and with the same seeds.

    Attributes:
        recipe: The recipe for pose capsules; other networks replace some of its settings.
        runs: Number of seeds. With few images each seed draws different images, the same for every network.
        networks: Names in NETWORKS.
    """

    recipe: str
    runs: int
    networks: tuple[str, ...]


def _equal(model: str, more: str = "") -> tuple[str, ...]:
    """Settings of a network with as many parameters as pose capsules, and none of their options."""
    return f"model={{name: {model}, parameters: {PARAMETERS}{more and ', '}{more}}}", NO_DECODER


NETWORKS = {
    "posecaps": Network("pose capsules", ()),
    "capsnet": Network("classic CapsNet", ("model={name: capsnet, variant: authors}", "loss.reconstruction=0.003")),
    "plain_cnn": Network("plain CNN", _equal("matched_cnn"), baseline=True),
    "strong_cnn": Network("strong CNN", _equal("strong_cnn"), baseline=True),
    "small_resnet": Network("ResNet", _equal("small_resnet"), baseline=True),
    "pooled_cnn": Network("9×9 CNN, pooled", _equal("pooled_cnn"), baseline=True),
    "pooled_cnn_published": Network(
        "9×9 CNN, pooled, as published", ("model={name: pooled_cnn}", NO_DECODER), "pooled_cnn"
    ),
    "strong_cnn_operations": Network(
        "strong CNN, as many operations", ("model={name: strong_cnn, width: 66}", NO_DECODER), "strong_cnn"
    ),
    "strong_cnn_augmented": Network(
        "strong CNN, images turned, scaled and bent", (*_equal("strong_cnn"), *AUGMENTED), "strong_cnn"
    ),
    "strong_cnn_lattice": Network(
        "strong CNN, averaged over the lattice at test",
        _equal("strong_cnn", f"lattice_use: test, {LATTICE}"),
        "strong_cnn",
        weights_of="strong_cnn",
    ),
    "strong_cnn_views": Network("strong CNN with views, softmax", _equal("strong_cnn", VIEWS), "strong_cnn"),
    "strong_cnn_presence": Network(
        "strong CNN with views, sigmoid", _equal("strong_cnn", f"{VIEWS}, answer: sigmoid"), "strong_cnn"
    ),
}
COLUMNS = ("capsnet", "posecaps", "plain_cnn", "strong_cnn", "small_resnet")
BASELINES = tuple(name for name, network in NETWORKS.items() if network.baseline)
FEW = ("posecaps", *BASELINES[:3], "capsnet", "strong_cnn_augmented")

STUDIES = {
    "affine": Study("posecaps-affnist", 3, tuple(NETWORKS)),
    "few-10": Study("posecaps-few-10", 5, FEW),
    "few-1": Study("posecaps-few-1", 20, FEW),
    "few-100": Study("posecaps-few-100", 5, FEW),
    "few-1000": Study("posecaps-few-1000", 5, FEW),
}


def learning_rate(study: str, network: str) -> float | None:
    """The rate with the highest accuracy on held-out training digits in rates.csv; None if no search was made.

    If rates were tried with different numbers of epochs, the longest runs count. The studies with few images share the
    rate found with ten images per class.
    """
    searched = "few-10" if study.startswith("few") else study
    key = (searched, NETWORKS[network].rate_of or network)
    with (resources.files("torchcaps") / "claims" / "rates.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["study"], row["network"]) == key]
    best = max(rows, key=lambda row: (int(row["epochs"]), float(row["held-out accuracy"])), default=None)
    return None if best is None else float(best["rate"])


def settings_of(study: str, network: str, rate: float | None = None) -> list[str]:
    """Settings of a network in a study; `rate` replaces its learning rate."""
    rate = learning_rate(study, network) if rate is None else rate
    return [*NETWORKS[network].settings, *([] if rate is None else [f"optim.lr={rate}"])]


def jobs(studies: Sequence[str], networks: Sequence[str], runs: Path) -> dict[tuple[str, str], list[Job]]:
    """All runs of some studies, by study and network; networks with the same weights share their runs.

    Args:
        studies: Names in STUDIES; empty for all.
        networks: Names in NETWORKS; empty for all of a study.
        runs: Folder of the runs.
    """
    for what, given, known in (("study", studies, STUDIES), ("network", networks, NETWORKS)):
        for name in given:
            if name not in known:
                raise UserError(f"claims: unknown {what} {name!r}: {did_you_mean(name, known)}")
    found = {}
    for name in studies or STUDIES:
        study = STUDIES[name]
        for network in study.networks:
            if not networks or network in networks:
                trained = NETWORKS[network].weights_of or network
                settings = settings_of(name, trained)
                found[name, network] = [
                    Job.of(study.recipe, seed, settings, runs / name / trained) for seed in range(study.runs)
                ]
    return found
