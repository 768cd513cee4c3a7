"""Trials of pose capsules on held-out MNIST training digits; no test digit is read.

    python benchmarks/posecaps_trials.py --out trials.jsonl NAME [NAME …]     names of TRIALS below

One line of JSON for each trial: its settings, accuracy in percent on 5,000 held-out digits (centred in 40×40, affine
transformed by affNIST's ranges, turned either way, noisy, blurred), how well placements follow what is done to a digit,
and how well what is no digit is told apart. On CUDA the whole step is recorded as a graph.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps import losses
from torchcaps.claims.measure import follow
from torchcaps.data import load_data
from torchcaps.data.augment import augment
from torchcaps.data.datasets import unfamiliar
from torchcaps.data.datasets.affnist import expand, transform
from torchcaps.explain.familiarity import scores
from torchcaps.metrics.detection import auroc_and_fpr95
from torchcaps.models import ImageModel, Output, PoseCaps, create_model
from torchcaps.robustness import perturb

FEW = {"frame": 28, "shift": 2, "per_class": 10, "steps": 2000, "batch": 100}
BENT = {"bend": 1.0, "thicken": 0.15}  # as in the recipes posecaps-few-…
SHEAR = {"stretches": (0.8, 1.0, 1.25), "shears": (-0.25, 0.0, 0.25)}
BASE = {
    "model": "posecaps",
    "options": {},
    "steps": 1500,
    "batch": 256,
    "lr": 2e-3,
    "decay": 0.01,
    "frame": 40,  # side of the image that a digit lies in
    "shift": 6,  # pixels that it is moved by, at most
    "reconstruction": 0.0005,
    "disagreement": 0.1,
    "per_class": 0,  # training images of each class; 0 for all
    "erase": 0,  # side of the largest rectangle that is erased in a training image
    "seed": 0,
    "compile": False,
    "keep": False,  # save the weights beside the results
}


def variant(**changes: Any) -> dict[str, Any]:
    return {**BASE, **changes}


def few(changes: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """With ten images a class; `options` of the model, on top of those of the recipe."""
    return {**BASE, **FEW, **(changes or {}), "options": {**BENT, **options}}


TRIALS = {
    "base": variant(),
    "base-2500": variant(steps=2500, reconstruction=0.002),
    "cover-8": variant(steps=2500, reconstruction=0.002, options={"cover": 8}),
    "cover-12": variant(steps=2500, reconstruction=0.002, options={"cover": 12}),
    "no-negatives": variant(options={"negatives": 0.0}),
    "bend-thick": variant(options={"bend": 1.0, "thicken": 0.15}),
    "views5": variant(options={"views": 5}),
    "shear": variant(options=SHEAR),
    "turn45": variant(options={"turn": 45.0}),
    "turn30": variant(options={"turn": 30.0}),
    "sharpness20": variant(options={"sharpness": 20.0}),
    "raw": variant(options={"denoise": False}),
    "bare": variant(options={"decoder": "none"}, disagreement=0.0),
    "apart": variant(disagreement=0.0),
    "plane": variant(options={"search": "plane"}),
    "long": variant(steps=5000, reconstruction=0.002, keep=True),
    "longer": variant(steps=10000, reconstruction=0.002, keep=True, compile=True),
    "few": variant(**FEW),
    "few-shear": variant(**FEW, options=SHEAR),
    "few-views9": variant(**FEW, options={"views": 9}),
    "few-turn30": variant(**FEW, options={"turn": 30.0}),
    "few-turn30-shear": variant(**FEW, options={"turn": 30.0, **SHEAR}),
    "few-turn15-shear": variant(**FEW, options={"turn": 15.0, **SHEAR}),
    "few-raw": variant(**FEW, options={"denoise": False}),
    "few-raw-turn30-shear": variant(**FEW, options={"denoise": False, "turn": 30.0, **SHEAR}),
    "few-bare": variant(**FEW, options={"decoder": "none"}, disagreement=0.0),
    "few-wide": variant(**FEW, options={"width": 64}),
    "few-decay": variant(**FEW, decay=0.5),
    "few-bend": variant(**FEW, options={"bend": 1.0}),
    "few-bend-thick": variant(**FEW, options={"bend": 1.0, "thicken": 0.15}),
    "few-bend2-thick-shear": variant(**FEW, options={"bend": 1.5, "thicken": 0.15, **SHEAR}),
    "few-bend-thick-long": variant(**{**FEW, "steps": 5000}, options={"bend": 1.0, "thicken": 0.15}),
    "few-no-negatives": few(negatives=0.0),
    "few-erase": few({"erase": 10}),
    "few-bent-views5": few(views=5),
    "few-bent-turn45": few(turn=45.0),
    "few-bent-turn30": few(turn=30.0),
    "few-bent-sharp20": few(sharpness=20.0),
    "few-bent-sharp5": few(sharpness=5.0),
    "few-bent-drawn": few({"reconstruction": 0.002}),
    "few-bent-loose": few({"disagreement": 0.02}),
    "few-bent-fast": few({"lr": 5e-3}),
    "few-bent-twice": few(bend=2.0),
    "few-bent-thick": few(thicken=0.25),
    "few-bent-scales": few(scales=(0.7, 1.0, 1.4)),
    "few-bent-strong": few(bend=1.5, thicken=0.25, **SHEAR),
    "few-bent-shear-full": few(search="full", **SHEAR),
    "few-bent-decay": few({"decay": 0.1}),
    "few-bent-long": few({"steps": 4000}),
    "few-drawn": variant(**FEW, reconstruction=0.005),
    "few-long": variant(**{**FEW, "steps": 6000}),
    "few-cnn": variant(**FEW, model="strong_cnn"),
    "few-cnn-slow": variant(**FEW, model="strong_cnn", lr=5e-4),
    "few-cnn-fast": variant(**FEW, model="strong_cnn", lr=8e-3),
    "few-resnet": variant(**FEW, model="small_resnet"),
    "cnn": variant(model="strong_cnn"),
    "cnn-wide": variant(model="strong_cnn", options={"width": 64}),
    "cnn-lattice": variant(
        model="strong_cnn", options={"lattice_use": "train", "turn": 60.0, "scales": (0.8, 1.0, 1.25)}
    ),
}


def load(settings: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
    """Training digits, held-out digits, and the latter affine transformed."""
    splits = load_data(source="mnist", validation=5000)
    train, held = splits.train, splits.validation
    if settings["per_class"]:
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(settings["seed"]))
        chosen = [order[train.targets[order] == digit][: settings["per_class"]] for digit in range(10)]
        train = train.subset(torch.cat(chosen))
    frame = settings["frame"]
    parts = {
        "train": expand(train, frame),
        "held": expand(held, frame),
        "affine": transform(held, 7, 1, max(40, frame)),
    }
    pixels = {name: part.images.to(device).float() / 255 for name, part in parts.items()}
    return {**pixels, "train_y": train.targets.to(device), "held_y": held.targets.to(device)}


def make(settings: dict[str, Any]) -> ImageModel:
    torch.manual_seed(settings["seed"])
    frame = settings["frame"]
    return create_model(settings["model"], image_shape=(1, frame, frame), num_classes=10, **settings["options"])


def loss_of(output: Output, images: Tensor, targets: Tensor, settings: dict[str, Any]) -> Tensor:
    if output.logits is not None:
        return losses.cross_entropy(output.logits, targets).mean()
    loss = losses.margin_loss(output.lengths, targets)
    if output.reconstruction is not None:
        loss = loss + settings["reconstruction"] * losses.reconstruction_loss(output.reconstruction, images)
    if output.disagreement is not None and settings["disagreement"]:
        loss = loss + settings["disagreement"] * output.disagreement
    if output.absence is not None:
        loss = loss + 0.5 * output.absence
    return loss.mean()


def train(model: ImageModel, images: Tensor, targets: Tensor, settings: dict[str, Any]) -> float:
    """Returns milliseconds a step."""
    device, cuda = images.device, images.is_cuda
    model.to(device).train()
    if cuda:
        model.to(memory_format=torch.channels_last)
    lr = torch.tensor(settings["lr"], device=device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=lr, weight_decay=settings["decay"], fused=cuda or None, capturable=cuda
    )
    network = torch.compile(model, dynamic=False) if settings["compile"] else model

    def step() -> None:
        index = torch.randint(len(images), (settings["batch"],), device=device)
        batch, labels = augment(images[index], shift=settings["shift"], erase=settings["erase"]), targets[index]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            output = network(batch, labels)
        loss_of(output, batch, labels, settings).backward()
        optimizer.step()

    take, start, warm_up = step, time.perf_counter(), 5
    for number in range(settings["steps"]):
        lr.fill_(settings["lr"] * (1 - number / settings["steps"]))
        if cuda and number == warm_up:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            take, start = graph.replay, time.perf_counter()
        take()
    if cuda:
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / max(1, settings["steps"] - warm_up * cuda)


@torch.no_grad()
def ask(model: ImageModel, images: Tensor) -> dict[str, Tensor]:
    """Lengths (N, J), every score of familiarity (N,), and of a model that tells it x, y, angle and scale (N, J)."""
    found: dict[str, list[Tensor]] = {}
    for part in images.split(250):
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            output = model(part)
        row = {"lengths": output.lengths, **scores(model, part, output)}
        if output.placement is not None:
            row |= {name: getattr(output.placement, name) for name in ("x", "y", "angle", "scale")}
        for name, value in row.items():
            found.setdefault(name, []).append(value.float())
    return {name: torch.cat(values) for name, values in found.items()}


def measure(model: ImageModel, data: dict[str, Tensor], settings: dict[str, Any]) -> dict[str, Any]:
    model.eval()
    held, y = data["held"], data["held_y"]
    draw = torch.Generator(held.device).manual_seed(0)
    changed = {"clean": held, "noise": perturb.noise(held, 0.2, draw), "blur": perturb.blur(held, 1.0)}
    if settings["frame"] == 40:
        digits = held[..., 6:34, 6:34]
        changed["covered"] = F.pad(perturb.occlude(digits, 10, draw), (6, 6, 6, 6))
        changed["affine"] = data["affine"]
        for degrees in (30, 45):
            turned = perturb.rotate(held, degrees)
            turned[1::2] = perturb.rotate(held[1::2], -degrees)
            changed[f"turn{degrees}"] = turned
    found: dict[str, Any] = {}
    for name, images in changed.items():
        found[name] = right(model, images, y)
    if settings["per_class"]:
        if isinstance(model, PoseCaps):
            model.search_linear = model.lattice.poses().linear.to(model.search_linear)
            found["clean, whole lattice"] = right(model, held, y)
        return found
    familiar = ask(model, held[:2000])
    size = tuple(held.shape[1:])
    for name in ("letters", "splines", "uniform noise", "constants"):
        made = unfamiliar.UNFAMILIAR[name](500, size, 3)
        other = ask(model, (made[0] if isinstance(made, tuple) else made).to(held.device))
        for score in familiar.keys() & {"max length", "energy", "familiarity"}:
            found[f"{name} {score}"] = auroc_and_fpr95(familiar[score].cpu(), other[score].cpu())["auroc"]
    if isinstance(model, PoseCaps) and settings["frame"] == 40:
        found |= follow(model, held[:1000], y[:1000].cpu())
    return found


def right(model: ImageModel, images: Tensor, y: Tensor) -> float:
    """Percent of the images whose class is found."""
    return round(100 * (ask(model, images)["lengths"].argmax(1) == y).float().mean().item(), 2)


def run(name: str, settings: dict[str, Any], out: Path, held: int) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load(settings, device)
    data |= {part: data[part][:held] for part in ("held", "held_y", "affine")}
    model = make(settings)
    ms = train(model, data["train"], data["train_y"], settings)
    row = {"trial": name, "ms": round(ms, 3), **measure(model, data, settings)}
    if settings["keep"]:
        torch.save({"settings": settings, "model": model.state_dict()}, out.parent / f"{name}.pt")
    parameters = sum(part.numel() for label, part in model.named_parameters() if not label.startswith("decoder"))
    return {**row, "parameters": parameters}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("trials.jsonl"))
    parser.add_argument("--steps", type=int, help="instead of the trial's own number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held", type=int, default=5000, help="held-out digits to measure on")
    parser.add_argument("names", nargs="+", choices=TRIALS, metavar="NAME")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    for name in args.names:
        settings = {**TRIALS[name], "seed": args.seed}
        if args.steps:
            settings["steps"] = args.steps
        row = run(name, settings, args.out, args.held)
        print(json.dumps(row), flush=True)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "settings": settings}) + "\n")


if __name__ == "__main__":
    main()
