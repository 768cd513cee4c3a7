#!/usr/bin/env python3
"""Scene capsules against CNNs of equal size on drawn shapes and faces: classes, poses, non-objects, few images.

    OMP_NUM_THREADS=1 python benchmarks/inverse_graphics.py [--seeds 3] [--side-by-side 2] [--only shapes faces]

Every network is trained on the same drawn images, all within 15 degrees of upright, with the same optimiser, learning
rate, batches and number of steps (those of the recipe `shapes`). Scene capsules are also told where the parts and the
wholes are; the CNNs, of as many parameters as scene capsules without decoder, are told the class. Scene capsules turn
their training images by themselves; `strong_cnn turned` is trained on images turned by any angle as well.

Measured on the frozen sets: accuracy, where an object that is not found is a wrong answer; AUROC of presence (of a CNN:
of the largest probability) between objects and non-objects of the same parts; medians of the errors of position, angle
and scale of the wholes. Learning rates of the CNNs are chosen from LRS on validation images, for each data set.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

import torchcaps
from torchcaps.data import annotate, frozen_set
from torchcaps.metrics.detection import auroc_and_fpr95
from torchcaps.metrics.objects import match_objects
from torchcaps.models import SceneCaps
from torchcaps.train.environment import machine
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import start_run

RESULTS = Path(__file__).parent / "results" / "inverse_graphics.csv"
UNITS = ("pixels", "degrees", "log scale")
LRS = (0.001, 0.004)
FEW = ["data.limit=50", "data.validation=0", "train.repeat=36"]  # as many steps as with 1,800 images
# What is trained → recipe, source of the CNNs' images, lowest level, its parts, settings; test sets.
STUDIES: dict[str, tuple[str, str, int, list[str], tuple[str, str, str]]] = {
    "shapes": ("shapes", "shapes", 0, [], ("upright", "turned", "scrambled")),
    "shapes, 50 images": ("shapes", "shapes", 0, FEW, ("upright", "turned", "scrambled")),
    "faces": ("faces", "faces", 1, [], ("faces", "faces-turned", "picassos")),
}
MEASURES = (  # the errors are medians over turned objects
    *("upright accuracy %", "turned accuracy %", "AUROC upright", "AUROC turned"),
    *("error pixels", "error degrees", "error log scale"),
)
NETWORKS = ("scenecaps_small", "strong_cnn", "strong_cnn turned")


def settings(study: str, network: str, lr: float | None) -> list[str]:
    recipe, source, _, more, _ = STUDIES[study]
    if network == "scenecaps_small":
        return more
    size = load_recipe(recipe).model.options
    levels = {"shapes": 2, "faces": 3}[recipe]
    like = SceneCaps(levels=[["part"] * levels, ["0", "1"]], members=[[[0], [0]]], **{**size, "decoder": "none"})
    network_settings = [f"data.source={source}", "model.name=strong_cnn", f"model.parameters={like.parameter_count()}"]
    turned = ["augment.rotate=180"] if network.endswith("turned") else []
    return [*more, *network_settings, *turned, f"optim.lr={lr}"]


def run(study: str, network: str, seed: int, lr: float | None, test: bool) -> dict[str, float]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        own = [f"train.seed={seed}", f"train.read_test={str(test).lower()}"]
        held_out = [] if test or "data.limit=50" not in settings(study, network, lr) else ["data.validation=400"]
        recipe = load_recipe(STUDIES[study][0], [*settings(study, network, lr), *held_out, *own])
        model = torchcaps.load(start_run(recipe, out=Path(folder) / "run", device="cpu"))
        if not test:
            return {"val": json.loads((Path(folder) / "run" / "summary.json").read_text())["val_accuracy"]}
    return measure(study, model)


@torch.no_grad()
def measure(study: str, model: Any) -> dict[str, float]:
    _, _, first, _, (upright, turned, wrong) = STUDIES[study]
    figures: dict[str, float] = {}
    scores = {}
    for name, test in (("upright", upright), ("turned", turned), ("wrong", wrong)):
        scenes = frozen_set(test)
        images = (255 * scenes.images).round() / 255
        output = model(images)
        lengths = output.lengths
        scores[name] = output.levels[-1].log_odds[:, 0] if isinstance(model, SceneCaps) else lengths.amax(1)
        if name == "wrong":
            continue
        label = scenes.wholes.label[:, 0]
        right = lengths.argmax(1) == label
        if isinstance(model, SceneCaps):
            right &= lengths.amax(1) > 0.5
            data = annotate(scenes, model.level_names[0], first)
            matches = match_objects(output.label, output.presence, output.poses, data.objects, 1)
            errors = matches.summary()
            figures |= {f"error {unit}": errors[f"median_error_{unit.split()[-1]}"] for unit in UNITS}
        figures[f"{name} accuracy %"] = 100 * right.double().mean().item()
    for name in ("upright", "turned"):
        figures[f"AUROC {name}"] = auroc_and_fpr95(scores[name], scores["wrong"])["auroc"]
    return figures


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--side-by-side", type=int, default=2, help="runs at a time, one thread each")
    options.add_argument("--only", nargs="*", default=[*STUDIES], choices=[*STUDIES])
    options.add_argument("--out", type=Path, default=RESULTS)
    args = options.parse_args()
    with multiprocessing.get_context("spawn").Pool(args.side_by_side) as pool:
        searched = [(study, network, 100, lr, False) for study in args.only for network in NETWORKS[1:] for lr in LRS]
        rates: dict[tuple[str, str], float] = {}
        best: dict[tuple[str, str], float] = {}
        for (study, network, _, lr, _), found in zip(searched, pool.starmap(run, searched, chunksize=1)):
            if found["val"] > best.get((study, network), -1):
                best[study, network], rates[study, network] = found["val"], lr
        runs = [
            (study, network, seed, rates.get((study, network)), True)
            for study in args.only
            for network in NETWORKS
            for seed in range(args.seeds)
        ]
        found = dict(zip(runs, pool.starmap(run, runs, chunksize=1)))
    rows = []
    for study in args.only:
        for network in NETWORKS:
            each = [figures for key, figures in found.items() if key[:2] == (study, network)]
            row: dict[str, object] = {"trained on": study, "network": network, "n": len(each)}
            row |= {name: _summary([figures.get(name) for figures in each]) for name in MEASURES}
            row |= {"learning rate": rates.get((study, network), 0.004), "machine": machine(torch.device("cpu"))}
            rows.append(row)
            print(*row.values(), sep="  ", flush=True)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _summary(values: list[float | None]) -> str:
    """Mean ± standard deviation; a dash for what a network does not answer."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    spread = statistics.stdev(known) if len(known) > 1 else math.nan
    return f"{statistics.mean(known):.4g} ± {spread:.2g}"


if __name__ == "__main__":
    main()
