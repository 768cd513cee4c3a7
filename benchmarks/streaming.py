"""Training on a folder of JPEGs that does not fit in memory: memory, speed, and what kills do to it.

    .venv/bin/python benchmarks/streaming.py memory --images 100000     (15 GB of disk for its cache at 224×224)
    .venv/bin/python benchmarks/streaming.py speed                      (four networks)
    .venv/bin/python benchmarks/streaming.py decoding                   (threads and processes that decode)
    .venv/bin/python benchmarks/streaming.py kills --images 2000 --kills 10

A folder of 256×256 JPEGs is made under --work and deleted at the end, and so is the cache. Each part writes
benchmarks/results/streaming-<part>.csv and exits with 1 if a bound is broken:

memory    the most anonymous memory (RssAnon, which does not count pages of the cache) that any process of `torchcaps
          train --data` takes, from decoding to the report: at most 3 GiB
speed     images a second of a training step on batches from the cache, over those of the same step on tensors in
          memory. The two take turns, and the ratio is the median of the rounds: at least 0.9. cpu_ratio is that of CPU
          time, reading threads included, which does not depend on what else runs on the machine
decoding  images a second by threads over those by as many processes, by turns; no bound
kills     a run killed at random moments and resumed has the weights and the history of one left alone, bit for bit, and
          every image of its cache has the right digest
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image

from torchcaps.bench.timing import median_seconds
from torchcaps.data import Dataset, epoch_order, load_data, make_loader
from torchcaps.data.images import decode
from torchcaps.data.loader import plan_epoch
from torchcaps.train.distributed import Distributed, make_fabric
from torchcaps.train.environment import machine
from torchcaps.train.experiments.rerun import compare_runs
from torchcaps.train.nonfinite import NonfiniteGuard
from torchcaps.train.recipe import Recipe, load_recipe
from torchcaps.train.run import resume_run, start_run
from torchcaps.train.setup import make_state
from torchcaps.train.tasks.base import StepContext
from torchcaps.train.totals import Totals

RESULTS = Path(__file__).parent / "results"
SIDE, TRAINED_SIDE, CLASSES, PICTURES = 256, 224, 10, 64
MAX_ANONYMOUS_GIB, LEAST_RATIO = 3.0, 0.9
CPU = torch.device("cpu")
CHEAP = "baseline_cnn 4-8-8-8-8"  # the cheapest step is the hardest to feed
NETWORKS: dict[str, dict[str, Any]] = {
    CHEAP: {
        "name": "baseline_cnn",
        "channels": [4, 8, 8, 8, 8],
        "kernel": 3,
        "pool": True,
        "hidden": [16],
        "dropout": 0,
    },
    "small_resnet 4-8-16": {"name": "small_resnet", "channels": [4, 8, 16]},
    "small_resnet 16-32-64": {"name": "small_resnet"},
    "strong_cnn 8": {"name": "strong_cnn", "width": 8},
}


def make_folder(folder: Path, count: int, seed: int) -> Path:
    """Write JPEGs of 256×256 into ten classes: 64 different pictures, each file with a comment of its own."""
    rng, pictures = np.random.default_rng(seed), []
    for _ in range(PICTURES):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8))
        content = io.BytesIO()
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
        pictures.append(content.getvalue())
    for number in range(count):
        place = folder / f"class-{number % CLASSES}"
        if number < CLASSES:
            place.mkdir(parents=True)
        start, rest = pictures[number % PICTURES][:2], pictures[number % PICTURES][2:]
        comment = f"{number:010d}".encode()
        marker = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big")
        (place / f"{number:07d}.jpg").write_bytes(start + marker + comment + rest)
    return folder


def write_recipe(work: Path, folder: Path, network: str, args: argparse.Namespace, **settings: Any) -> Path:
    """Write the recipe of a network on the folder, with further settings of its section `train`."""
    data = {"source": "folder", "path": str(folder), "image_size": TRAINED_SIDE, "cache_dir": str(work / "caches")}
    train = {"batch_size": args.batch, "seed": args.seed, "epochs": 1, **settings}
    data["storage"] = args.storage
    tree = {"data": data, "augment": {"shift": 2, "flip": True}, "model": NETWORKS[network], "train": train}
    path = work / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def measure_memory(args: argparse.Namespace, work: Path) -> tuple[list[dict[str, Any]], bool]:
    folder = make_folder(work / "images", args.images, args.seed)
    rows, broken = [], False
    for filled in ("no", "yes"):
        run = work / f"run-{filled}"
        recipe = write_recipe(work, folder, CHEAP, args)
        where = ["--data", str(folder), "--device", "cpu", "--devices", str(args.devices), "--out", str(run)]
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "torchcaps", "train", str(recipe), *where])
        peaks: dict[int, int] = {}
        while process.poll() is None:
            for each in (process.pid, *children(process.pid)):
                peaks[each] = max(peaks.get(each, 0), anonymous_bytes(each))
            time.sleep(0.05)
        if process.returncode:
            raise SystemExit(f"training ended with {process.returncode}")
        summary = json.loads((run / "summary.json").read_text())
        peak = max(peaks.values()) / 2**30
        row = {"images": args.images, "cache_filled": filled, "storage": args.storage, "processes": args.devices}
        row |= {"anonymous_gib": f"{peak:.2f}", "bound_gib": MAX_ANONYMOUS_GIB, "n": 1}
        row |= {"images_per_second": summary["images_per_second"], "seconds": f"{time.perf_counter() - began:.0f}"}
        rows.append(row)
        print(row, flush=True)
        broken |= peak > MAX_ANONYMOUS_GIB
        if args.once:
            break
    return rows, broken


def children(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def anonymous_bytes(process: int) -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return 0


def measure_speed(args: argparse.Namespace, work: Path) -> tuple[list[dict[str, Any]], bool]:
    folder = make_folder(work / "images", args.images, args.seed)
    options = {"image_size": TRAINED_SIDE, "validation": 0, "test": 0, "cache_dir": work / "caches"}
    load_data("folder", path=folder, storage="cache", **options)  # fills it
    memory = load_data("folder", path=folder, **options).train
    rows, broken = [], False
    for name in args.networks or NETWORKS:
        recipe = load_recipe(str(write_recipe(work, folder, name, args)))
        cache = load_data("folder", path=folder, storage="cache", **options).train  # as a new run: digests are checked
        steps = {kind: make_steps(recipe, data, args) for kind, data in (("memory", memory), ("cache", cache))}
        rounds = [{kind: timed(steps[kind], args.steps) for kind in steps} for _ in range(args.rounds)]
        wall = [each["memory"][0] / each["cache"][0] for each in rounds]
        spent = {kind: sum(each[kind][1] for each in rounds) for kind in steps}
        row = {"network": name, "images": args.images, "batch": args.batch, "ratio": f"{statistics.median(wall):.3f}"}
        row |= {"mean": f"{statistics.mean(wall):.3f}", "std": f"{statistics.stdev(wall):.3f}", "n": len(wall)}
        row |= {"cpu_ratio": f"{spent['memory'] / spent['cache']:.3f}"}
        rate = args.batch * args.steps / statistics.median(each["cache"][0] for each in rounds)
        rows.append({**row, "images_per_second": f"{rate:.0f}", "bound": LEAST_RATIO})
        print(rows[-1], flush=True)
        broken |= statistics.median(wall) < LEAST_RATIO
    return rows, broken


def make_steps(recipe: Recipe, data: Dataset, args: argparse.Namespace) -> Iterator[None]:
    """Training steps, batches included, that are taken one by one; two of them are taken already."""
    fabric = make_fabric("cpu", "fp32")
    state, task = make_state(recipe, data, CPU)
    loader = make_loader(data, CPU, **recipe.augment.model_dump())
    guard = NonfiniteGuard(CPU, state.optimizers.values(), 0, False)
    parts = state, loader, recipe.optim, fabric, Distributed(fabric), Totals(CPU, task.measure), guard
    step = task.make_step(StepContext(*parts))
    needed = (2 + args.rounds * args.steps) * args.batch
    order = torch.cat([epoch_order(len(data), args.seed, epoch) for epoch in range(1 + needed // len(data))])[:needed]
    plan_epoch(loader, order, args.batch)
    taken = map(step, order.split(args.batch))
    next(taken)
    next(taken)
    return taken


def timed(steps: Iterator[None], count: int) -> tuple[float, float]:
    """Seconds that some steps take, and seconds of CPU time of all threads."""
    began, spent = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(steps)
    return time.perf_counter() - began, time.process_time() - spent


def measure_decoding(args: argparse.Namespace, work: Path) -> tuple[list[dict[str, Any]], bool]:
    folder = make_folder(work / "images", args.images, args.seed)
    blocks = np.array_split(sorted(folder.rglob("*.jpg")), 8 * args.workers)
    rows = []
    with ProcessPoolExecutor(args.workers) as processes, ThreadPoolExecutor(args.workers) as threads:
        pools = {"threads": threads, "processes": processes}
        ways = {name: lambda pool=pool: sum(pool.map(decode_block, blocks)) for name, pool in pools.items()}
        ways["one thread"] = lambda: sum(map(decode_block, blocks))
        seconds = median_seconds(ways, CPU, rounds=args.rounds)
    for name, each in seconds.items():
        row = {"way": name, "workers": 1 if name == "one thread" else args.workers, "images": args.images}
        rows.append({**row, "images_per_second": f"{args.images / each:.0f}", "n": args.rounds})
        print(rows[-1], flush=True)
    return rows, False


def decode_block(paths: list[Path]) -> int:
    return sum(decode(path, (TRAINED_SIDE, TRAINED_SIDE), 3).shape[0] for path in paths)


def measure_kills(args: argparse.Namespace, work: Path) -> tuple[list[dict[str, Any]], bool]:
    folder, chance = make_folder(work / "images", args.images, args.seed), random.Random(args.seed)
    args.storage, whole, run = "cache", work / "whole", work / "run"
    recipe = write_recipe(work, folder, CHEAP, args, epochs=1, read_test=False, save_every=0.5)
    began = time.perf_counter()
    assert ended(spawn(whole, recipe)) == 0
    usual = time.perf_counter() - began
    shutil.rmtree(work / "caches")  # the other run fills its own, killed as it does
    kills = while_filling = 0
    while kills < args.kills:
        process = spawn(run, recipe)
        early = kills < args.kills // 3  # while the cache is filled
        time.sleep(chance.uniform(0.01, 0.06 if early else 0.4) * usual)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        code = ended(process)
        kills += code == -signal.SIGKILL
        while_filling += code == -signal.SIGKILL and not (run / "recipe.yaml").exists()
        print(f"attempt ended with {code}; {kills} kills, {while_filling} of them before training", flush=True)
        if (run / "summary.json").exists():  # it has reached its end between kills: begin the next one
            if compare_runs(whole, run)[0]:
                break
            shutil.rmtree(run)
    if not (run / "summary.json").exists():
        assert ended(spawn(run, recipe)) == 0
    differences = [each.what for each in compare_runs(whole, run)[0]]
    damaged = load_data(**load_recipe(str(recipe)).data.model_dump()).train.images.reader.damaged()
    row = {"images": args.images, "kills": kills, "while_filling": while_filling, "differences": len(differences)}
    row |= {"damaged_images": len(damaged), "n": 1}
    print(row, differences)
    return [row], bool(differences or damaged)


def spawn(run: Path, recipe: Path) -> int:
    """Start or resume a run in a forked process; returns its id. Nothing has been computed here before."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        torch.set_num_threads(1)
        if (run / "recipe.yaml").is_file():
            resume_run(run, device="cpu")
        else:
            shutil.rmtree(run, ignore_errors=True)
            start_run(load_recipe(str(recipe)), out=run, device="cpu")
        code = 0
    finally:
        os._exit(code)


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@contextlib.contextmanager
def workplace(parent: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="torchcaps-streaming-", dir=parent) as place:
        yield Path(place)


PARTS = {"memory": measure_memory, "speed": measure_speed, "decoding": measure_decoding, "kills": measure_kills}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage", default="auto", help="memory: data.storage")
    parser.add_argument("--devices", type=int, default=1, help="memory: processes that train together")
    parser.add_argument("--once", action="store_true", help="memory: without the second run, on the filled cache")
    parser.add_argument("--rounds", type=int, default=25, help="speed, decoding: rounds by turns")
    parser.add_argument("--steps", type=int, default=4, help="speed: steps of a round")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, help="speed: by default all")
    parser.add_argument("--workers", type=int, default=2, help="decoding: threads, and processes")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--work", type=Path, help="folder for images, caches and runs; all is deleted at the end")
    parser.add_argument("--out", type=Path, help="by default benchmarks/results/streaming-<part>.csv")
    args = parser.parse_args()
    with workplace(args.work) as work:
        rows, broken = PARTS[args.part](args, work)
    about = {"seed": args.seed, "load": f"{os.getloadavg()[0]:.1f}", "machine": machine(CPU)}
    out = args.out or RESULTS / f"streaming-{args.part}.csv"
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0], *about], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, **about} for row in rows)
    sys.exit(broken)


if __name__ == "__main__":
    main()
