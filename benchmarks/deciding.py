"""How much couplings decide at several inverse temperatures of dynamic routing, on the embedded digits.

    python benchmarks/deciding.py [--temperatures 1 3 10 30 100] [--seeds 3] [--epochs 15]

Trains `capsnet_small` by the recipe `digits` with each inverse temperature and prints, for the validation images: the
accuracy after one and after three iterations of routing, the mean entropy of the couplings after three (1 if all are
equal), and the share of the parts that give more than half of their coupling to one class, both weighted by the length
of the part. Test images are not read.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import tempfile
from pathlib import Path

import torch

import torchcaps
from torchcaps.data import load_data
from torchcaps.models import CapsuleModel
from torchcaps.train.environment import machine
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import start_run

RESULTS = Path(__file__).parent / "results" / "deciding.csv"
MEASURES = ("accuracy at 1 iteration %", "accuracy at 3 iterations %", "entropy", "parts that decide %")
DECIDED = 0.5


def train(inverse_temperature: float, seed: int, epochs: int, folder: Path) -> CapsuleModel:
    settings = [f"model.inverse_temperature={inverse_temperature}", f"train.seed={seed}", f"train.epochs={epochs}"]
    start_run(load_recipe("digits", [*settings, "train.read_test=no"]), out=folder)
    model = torchcaps.load(folder)
    assert isinstance(model, CapsuleModel)
    return model


@torch.no_grad()
def measure(model: CapsuleModel) -> list[float]:
    """The values of MEASURES."""
    data = load_data(**model.trained_by["data"]).validation
    children = model.children_of(model.prepare(data.images))
    right = []
    for iterations in (1, 3):
        parents, couplings_BIJ = model.classes(children, iterations=iterations, return_couplings=True)
        right.append(100 * float((parents.activation.argmax(-1) == data.targets).float().mean()))
    shares_BI = children.activation / children.activation.sum()
    entropy_BI = torch.special.entr(couplings_BIJ).sum(-1) / math.log(couplings_BIJ.shape[-1])
    decided_BI = (couplings_BIJ.amax(-1) > DECIDED).float()
    return [*right, float((entropy_BI * shares_BI).sum()), 100 * float((decided_BI * shares_BI).sum())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temperatures", type=float, nargs="*", default=[1, 3, 10, 30, 100])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = []
    for inverse_temperature in args.temperatures:
        found = []
        for seed in range(args.seeds):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(train(inverse_temperature, seed, args.epochs, Path(folder) / "run")))
        row: dict[str, object] = {"inverse temperature": f"{inverse_temperature:g}", "n": args.seeds}
        for name, values in zip(MEASURES, zip(*found)):
            spread = statistics.stdev(values) if len(values) > 1 else math.nan
            digits = 3 if name == "entropy" else 1
            row[name] = f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}"
        print(row, flush=True)
        rows.append({**row, "machine": machine(torch.device("cpu"))})
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
