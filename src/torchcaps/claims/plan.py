"""Which networks are compared, on what, and how each of them is trained."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from torchcaps.errors import UserError, did_you_mean
from torchcaps.train.experiments.reproduce import Job

PARAMETERS = 321_830  # of posecaps for MNIST, decoder not counted
NO_DECODER = "loss.reconstruction=null"
LATTICE = "turn: 60, scales: [0.8, 1.0, 1.25]"
VIEWS = f"lattice_use: train, {LATTICE}, views: 3"  # as many as pose capsules have in training
AUGMENTED = ("augment.rotate=60", "augment.scale=0.2", "augment.elastic=1.0")  # about what the flagship's views show it


class Network(NamedTuple):
    """One column of the tables.

    Attributes:
        title: its name in the tables.
        settings: what differs from the recipe of a study.
        rate_of: the network whose learning rate it takes; by default its own.
        rival: whether it counts as a CNN of equal size without views, which the flagship has to be ahead of.
        weights_of: the network whose trained weights it takes; by default it is trained itself.
    """

    title: str
    settings: tuple[str, ...]
    rate_of: str | None = None
    rival: bool = False
    weights_of: str | None = None


class Study(NamedTuple):
    """A recipe that several networks are trained by, with the same data and the same seeds.

    Attributes:
        recipe: the flagship's recipe; for other networks a few of its settings are replaced.
        runs: how many seeds; with few images each seed draws other images, the same for every network.
        networks: names in NETWORKS.
    """

    recipe: str
    runs: int
    networks: tuple[str, ...]


def _equal(model: str, more: str = "") -> tuple[str, ...]:
    """A network with as many parameters as the flagship, and nothing of the flagship's options."""
    return f"model={{name: {model}, parameters: {PARAMETERS}{more and ', '}{more}}}", NO_DECODER


NETWORKS = {
    "posecaps": Network("pose capsules", ()),
    "capsnet": Network("classic CapsNet", ("model={name: capsnet, variant: authors}", "loss.reconstruction=0.003")),
    "plain_cnn": Network("plain CNN", _equal("matched_cnn"), rival=True),
    "strong_cnn": Network("strong CNN", _equal("strong_cnn"), rival=True),
    "small_resnet": Network("ResNet", _equal("small_resnet"), rival=True),
    "pooled_cnn": Network("9×9 CNN, pooled", _equal("pooled_cnn"), rival=True),
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
RIVALS = tuple(name for name, network in NETWORKS.items() if network.rival)
FEW = ("posecaps", *RIVALS[:3], "capsnet", "strong_cnn_augmented")

STUDIES = {
    "affine": Study("posecaps-affnist", 3, tuple(NETWORKS)),
    "few-10": Study("posecaps-few-10", 5, FEW),
    "few-1": Study("posecaps-few-1", 20, FEW),
    "few-100": Study("posecaps-few-100", 5, FEW),
    "few-1000": Study("posecaps-few-1000", 5, FEW),
}


def learning_rate(study: str, network: str) -> float | None:
    """The rate with the highest accuracy on held-out training digits in rates.csv; None if it was not searched for.

    Where rates were tried with different numbers of epochs, the longest runs decide. The studies with few images share
    the rate that was found with ten images a class.
    """
    searched = "few-10" if study.startswith("few") else study
    asked = (searched, NETWORKS[network].rate_of or network)
    with (resources.files("torchcaps") / "claims" / "rates.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["study"], row["network"]) == asked]
    best = max(rows, key=lambda row: (int(row["epochs"]), float(row["held-out accuracy"])), default=None)
    return None if best is None else float(best["rate"])


def settings_of(study: str, network: str, rate: float | None = None) -> list[str]:
    """What is set for a network in a study; with `rate`, another learning rate than the chosen one."""
    rate = learning_rate(study, network) if rate is None else rate
    return [*NETWORKS[network].settings, *([] if rate is None else [f"optim.lr={rate}"])]


def jobs(studies: Sequence[str], networks: Sequence[str], runs: Path) -> dict[tuple[str, str], list[Job]]:
    """Every run that is asked for, by study and network; networks with the same weights share their runs.

    Args:
        studies: names in STUDIES; none for all.
        networks: names in NETWORKS; none for all of a study.
        runs: folder of the runs.
    """
    for given, known in ((studies, STUDIES), (networks, NETWORKS)):
        for name in given:
            if name not in known:
                raise UserError(f"claims: there is no {name!r}: {did_you_mean(name, known)}")
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
