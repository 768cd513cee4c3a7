"""Train on folders of images with default settings, and compare with simple classifiers on images that nobody has seen.

    python benchmarks/folders.py --cifar FOLDER --nuclei FOLDER [--only animals] [--seeds 3] [--out FILE]

Each folder has 900 training images (the digits about 1,200) in FOLDER/train/<class>, and new ones in FOLDER/test.
`torchcaps train --data FOLDER` holds a tenth of the training images out for validation, as it does for every user, and
reads the new images once. HOG features with a linear SVM, and a CNN of 20 lines, learn from all training images.

    animals    cats, dogs and horses of CIFAR-10 as JPEGs of 32×32
    vehicles   airplanes, ships and trucks of CIFAR-10, enlarged to JPEGs of 96×96
    nuclei     crops of 32×32 around nuclei: below the median area, or above; new crops come from other images
    digits     the digits of scikit-learn, 8×8

--cifar has train/<class>/*.jpg and test/<class>/*.jpg; --nuclei has images/*.png and instances/*.png. The settings that
torchcaps chooses were made on training images of other classes (birds, deer, frogs, automobiles), of other nuclei and
of MNIST. Seconds are of a machine that may be busy: CPU seconds, of all threads, say more than wall-clock seconds.
The exit code is 1 unless torchcaps is 2 points ahead of the better opponent, or within 0.5 where both are above 97 %.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from torchcaps.data import load_data
from torchcaps.io.atomic import write_text
from torchcaps.metrics.baselines import fit_svm, hog_features
from torchcaps.train.environment import machine

RESULTS = Path(__file__).parent / "results" / "folders.json"
CPU = torch.device("cpu")
TRAIN_IMAGES = 900
ANIMALS, VEHICLES = ("cat", "dog", "horse"), ("airplane", "ship", "truck")
NUCLEI_TRAINED, NUCLEI_NEW = range(234), range(234, 334)  # images
CROP, NEW_CROPS = 32, 3000
AHEAD, WITHIN, BOTH_ABOVE = 2.0, 0.5, 97.0  # points, points, percent
SIDE_CNN = 32


def animals(folder: Path, args: argparse.Namespace) -> None:
    _cifar(folder, args.cifar, ANIMALS, None)


def vehicles(folder: Path, args: argparse.Namespace) -> None:
    _cifar(folder, args.cifar, VEHICLES, 96)


def _cifar(folder: Path, source: Path, classes: tuple[str, ...], side: int | None) -> None:
    for part, count in (("train", TRAIN_IMAGES // len(classes)), ("test", None)):
        for name in classes:
            (folder / part / name).mkdir(parents=True)
            for path in sorted((source / part / name).glob("*.jpg"))[:count]:
                target = folder / part / name / path.name
                if side is None:
                    shutil.copy(path, target)
                else:
                    with Image.open(path) as image:
                        image.resize((side, side), Image.Resampling.BICUBIC).save(target, quality=90)


def nuclei(folder: Path, args: argparse.Namespace) -> None:
    random = np.random.default_rng(0)
    trained, new = (_crops(args.nuclei, images) for images in (NUCLEI_TRAINED, NUCLEI_NEW))
    trained = [trained[i] for i in random.permutation(len(trained))[:TRAIN_IMAGES]]
    new = [new[i] for i in random.permutation(len(new))[:NEW_CROPS]]
    median = float(np.median([area for _, area, _ in trained]))
    for part, crops in (("train", trained), ("test", new)):
        for crop, area, name in crops:
            place = folder / part / ("large" if area > median else "small")
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(crop).save(place / f"{name}.png")


def _crops(source: Path, images: range) -> list[tuple[np.ndarray, int, str]]:
    """The crop around each nucleus, its area in pixels, and a name."""
    found = []
    for number in images:
        picture = np.pad(
            np.asarray(Image.open(source / "images" / f"{number:03}.png").convert("L")), CROP // 2, "reflect"
        )
        instances = np.asarray(Image.open(source / "instances" / f"{number:03}.png"))
        for identity in np.unique(instances)[1:]:
            rows, columns = np.nonzero(instances == identity)
            top, left = round(rows.mean()), round(columns.mean())
            found.append((picture[top : top + CROP, left : left + CROP], len(rows), f"{number:03}-{identity}"))
    return found


def digits(folder: Path, args: argparse.Namespace) -> None:
    splits = load_data("digits", validation=0, test=1 / 3)
    for part, data in (("train", splits.train), ("test", splits.test)):
        for number, (image, label) in enumerate(zip(data.images, data.targets.tolist())):
            place = folder / part / str(label)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0].numpy()).save(place / f"{number:04}.png")


FOLDERS: dict[str, Callable[[Path, argparse.Namespace], None]] = {
    each.__name__: each for each in (animals, vehicles, nuclei, digits)
}


def small_cnn(train: Any, new: Any, seed: int) -> float:
    """The CNN that many people would write first."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in ((train.images.shape[1], 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(128 * 16, train.num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = train.images / 255.0
    for _ in range(20):
        for batch in torch.randperm(len(train)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), train.targets[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        answers: Tensor = torch.cat([model(part / 255.0).argmax(1) for part in new.images.split(256)])
    return float((answers == new.targets).float().mean())


def opponents(folder: Path, seeds: int) -> dict[str, dict[str, Any]]:
    """Accuracy and CPU seconds of HOG with an SVM, and of the small CNN; they learn from all training images."""
    started = time.process_time()
    data = load_data("folder", path=folder, image_size=SIDE_CNN, validation=0)
    assert data.test is not None
    loaded, started = time.process_time() - started, time.process_time()
    svm = fit_svm(hog_features(data.train.images), data.train.targets.numpy())
    accuracy = svm.score(hog_features(data.test.images), data.test.targets.numpy())
    found = {"HOG + SVM": {"each": [accuracy], "cpu_seconds": [loaded + time.process_time() - started]}}
    cnn: dict[str, list[float]] = {"each": [], "cpu_seconds": []}
    for seed in range(seeds):
        started = time.process_time()
        cnn["each"].append(small_cnn(data.train, data.test, seed))
        cnn["cpu_seconds"].append(loaded + time.process_time() - started)
    return found | {"20-line CNN": cnn}


def torchcaps(folder: Path, runs: Path, seeds: int) -> tuple[dict[str, Any], str]:
    """Accuracy and seconds of `torchcaps train --data FOLDER`, and what it says that it chose."""
    found: dict[str, list[float]] = {"each": [], "cpu_seconds": [], "wall_seconds": []}
    chosen = ""
    for seed in range(seeds):
        run = runs / str(seed)
        command = [sys.executable, "-m", "torchcaps.cli", "train", "--data", str(folder), "--out", str(run)]
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        said = subprocess.run([*command, "--seed", str(seed)], check=True, capture_output=True, text=True).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found["wall_seconds"].append(time.perf_counter() - started)
        found["cpu_seconds"].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        found["each"].append(json.loads((run / "summary.json").read_text())["test_accuracy"])
        chosen = next((line for line in said.splitlines() if line.startswith("chosen:")), "")
    return found, chosen


def measure(name: str, args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """One folder: everybody's accuracy in percent."""
    folder = scratch / name
    FOLDERS[name](folder, args)
    chance = 1 / len(list((folder / "train").iterdir()))
    ours, chosen = torchcaps(folder, scratch / f"{name}-runs", args.seeds)
    rows = {"torchcaps": ours, **opponents(folder, args.seeds), "chance": {"each": [chance], "cpu_seconds": [0.0]}}
    for row in rows.values():
        row["each"] = [round(100 * each, 2) for each in row["each"]]
        row["mean"], row["std"] = round(mean(row["each"]), 2), None
        if len(row["each"]) > 1:
            row["std"] = round(stdev(row["each"]), 2)
        for clock in ("cpu_seconds", "wall_seconds"):
            if clock in row:
                row[clock] = round(mean(row[clock]), 1)
    best = max(rows["HOG + SVM"]["mean"], rows["20-line CNN"]["mean"])
    ahead = rows["torchcaps"]["mean"] - best
    both = min(best, rows["torchcaps"]["mean"]) > BOTH_ABOVE
    reached = ahead >= AHEAD or (both and ahead >= -WITHIN)
    new = sum(1 for _ in (folder / "test").rglob("*.*"))
    return {"new_images": new, "chosen": chosen, "ahead": round(ahead, 2), "reached": reached, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--nuclei", type=Path, required=True)
    parser.add_argument("--only", choices=FOLDERS, nargs="*", default=list(FOLDERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    known = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
    for name in args.only:
        with tempfile.TemporaryDirectory() as scratch:
            found = measure(name, args, Path(scratch))
        known[name] = {**found, "seeds": args.seeds, "machine": machine(CPU), "threads": torch.get_num_threads()}
        print(f"{name}: {found['new_images']:,} new images. {found['chosen']}")
        for who, row in found["rows"].items():
            spread = "" if row["std"] is None else f" ± {row['std']:.2f}"
            wall = f", {row['wall_seconds']:.0f} s" if "wall_seconds" in row else ""
            print(f"  {who:12} {row['mean']:6.2f} %{spread}   {row['cpu_seconds']:.1f} CPU s{wall}", flush=True)
        write_text(args.out, json.dumps(known, indent=2) + "\n")
    sys.exit(not all(known[name]["reached"] for name in args.only))


if __name__ == "__main__":
    main()
