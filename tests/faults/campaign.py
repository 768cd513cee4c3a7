"""Faults on purpose: training processes killed, checkpoints spoiled, disks filled; every run must end as if nothing had
happened.

python tests/faults/campaign.py [--kills 50] [--damaged 20] [--full 10] [--seed 0]     (make faults)

Runs are processes of their own, forked from this one, which has imported everything and computed nothing: a kill is a
real SIGKILL, and does not have to wait for imports.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib.figure  # noqa: F401  (these three so that children need not import them)
import sklearn.datasets  # noqa: F401
import torch
from torch.utils import tensorboard  # noqa: F401

from torchcaps.errors import UserError
from torchcaps.train.checkpoint import LAST, has_checkpoint, saved_step
from torchcaps.train.experiments.rerun import compare_runs
from torchcaps.train.loop import Interrupted
from torchcaps.train.recipe import load_recipe
from torchcaps.train.run import resume_run, start_run

SETTINGS = [
    # Nothing is tested: drawing a report would take longer than training.
    *("data.image_size=12", "data.limit=320", "data.validation=0", "train.read_test=no", "augment.shift=1"),
    *("model.channels=4", "model.types=2", "model.hidden=[16]", "train.ema=0.9"),
    *("train.batch_size=16", "train.epochs=12", "train.save_every=0.02"),  # within epochs, too
]
MIDWAY = 2 * 20  # steps, when the run has long not ended
REFUSED, STOPPED = 2, 130  # exit codes of a run that ended with a sentence, and of one that was asked to stop


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults on purpose.")
    for name, usual in (("kills", 50), ("damaged", 20), ("full", 10), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    chances = [
        random.Random(f"{asked.seed} {kind}") for kind in ("killed", "damaged", "filled")
    ]  # one by one repeatable
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        began = time.perf_counter()
        assert ended(spawn(folder / "whole")) == 0
        usual = time.perf_counter() - began
        lost = [
            killed(folder, asked.kills, chances[0], usual),
            damaged(folder, asked.damaged, chances[1]),
            filled(folder, asked.full, chances[2]),
        ]
    print("nothing was lost" if not any(lost) else f"{sum(lost)} faults were not survived")
    return int(any(lost))


def killed(folder: Path, count: int, chance: random.Random, usual: float) -> int:
    """A run killed at random moments and resumed each time, until enough kills hit a running process."""
    kills = lost = finished = 0
    while kills < count:
        run = folder / f"killed-{finished}"
        while True:
            process = spawn(run)
            time.sleep(chance.uniform(0.02, 0.6 * usual))
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            code = ended(process)
            kills += code == -signal.SIGKILL
            if code == 0 or kills == count or (run / "summary.json").exists():  # killed when all was done
                break
            lost += code != -signal.SIGKILL
        if not (run / "summary.json").exists():
            lost += ended(spawn(run)) != 0
        lost += not the_same(folder / "whole", run)
        finished += 1
    print(f"{kills} kills in {finished} runs: {lost} lost, weights as in the run that was left alone")
    return lost


def damaged(folder: Path, count: int, chance: random.Random) -> int:
    """A run stopped in the middle, its newest checkpoint spoiled in some way, and resumed."""
    lost, said = 0, 0
    stopped = stopped_midway(folder / "midway")
    for number in range(count):
        run = folder / f"damaged-{number}"
        shutil.copytree(stopped, run)
        path = run / "checkpoints" / LAST
        path.write_bytes(spoiled(path.read_bytes(), number, chance))
        log = run / "log"
        lost += ended(spawn(run, log=log)) != 0
        said += LAST in log.read_text()
        lost += not the_same(folder / "whole", run)
        shutil.rmtree(run)
    print(f"{count} spoiled checkpoints: {lost} lost, {said} fell back on the one before and said so")
    return lost + (said != count)


def stopped_midway(run: Path) -> Path:
    process = spawn(run)
    while (saved_step(run / "checkpoints") or 0) < MIDWAY:
        time.sleep(0.01)
    os.kill(process, signal.SIGTERM)
    assert ended(process) == STOPPED
    return run


def spoiled(content: bytes, number: int, chance: random.Random) -> bytes:
    if number % 4 == 0:
        return content[: chance.randrange(len(content))]
    if number % 4 == 1:
        place = chance.randrange(len(content))
        return content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]
    if number % 4 == 2:
        start = chance.randrange(len(content))
        return content[:start] + bytes(len(content) - start)
    return b""


def filled(folder: Path, count: int, chance: random.Random) -> int:
    """A run on a disk with some room left, but not enough; then there is enough, and it goes on."""
    corrupted = lost = refused = 0
    for number in range(count):
        with small_disk(folder / f"disk-{number}", chance) as (place, make_room, limit):
            run = place / "run"
            code = ended(spawn(run, limit=limit))
            refused += code == REFUSED
            lost += code not in (0, REFUSED)
            make_room()
            corrupted += has_checkpoint(run / "checkpoints") and saved_step(run / "checkpoints") is None
            if not (run / "summary.json").exists():
                lost += ended(spawn(run)) != 0
            lost += not the_same(folder / "whole", run)
            corrupted += any((run / "checkpoints").glob("*.damaged"))
    print(f"disk full at {count} points: {refused} runs ended with a sentence, {corrupted} corrupted, {lost} lost")
    return lost + corrupted + (refused == 0)


@contextlib.contextmanager
def small_disk(place: Path, chance: random.Random) -> Iterator[tuple[Path, Callable[[], object], int | None]]:
    """A file system of its own that is nearly full, where one may be made; else a limit for the size of any file."""
    place.mkdir()
    made = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True).returncode == 0
    )
    if not made:
        yield place, lambda: None, chance.randrange(100, 60_000)
        return
    filler = place / "filler"
    filler.write_bytes(bytes(2**23 - chance.randrange(8_000, 600_000)))
    try:
        yield place, filler.unlink, None
    finally:
        subprocess.run(["umount", place], check=True)


def spawn(run: Path, *, log: Path | None = None, limit: int | None = None) -> int:
    """Start a run, or go on with it, in a process of its own; returns its number."""
    process = os.fork()
    if process:
        return process
    try:
        code = 1
        torch.set_num_threads(1)
        with open(log or os.devnull, "w") as words, contextlib.redirect_stdout(words):
            code = _train(run, limit)
    except BaseException:  # whatever it is, this process ends here and not in what its parent was doing
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _train(run: Path, limit: int | None) -> int:
    from rich.console import Console

    console = Console(force_terminal=False, width=300)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        if (run / "recipe.yaml").is_file():
            resume_run(run, device="cpu", console=console)
        else:
            shutil.rmtree(run, ignore_errors=True)  # killed before there was anything to go on with
            start_run(load_recipe("digits", SETTINGS), out=run, device="cpu", console=console)
    except UserError as error:
        console.print(str(error))
        return REFUSED
    except Interrupted:
        return STOPPED
    return 0


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def the_same(whole: Path, run: Path) -> bool:
    """History, figures and weights, bit for bit."""
    try:
        found, _ = compare_runs(whole, run)
    except UserError as error:
        print(error)
        return False
    for each in found:
        print(f"{run.name}: {each.what}: {each.before}, {each.now}")
    return not found


if __name__ == "__main__":
    sys.exit(main())
