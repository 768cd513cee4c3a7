"""Every parser under many thousands of damaged files: python tests/fuzz/campaign.py --cases 100000

Each parser has a process of its own, in which atheris chooses what to change by which lines a change reaches; where it
is not installed, changes are drawn at random. A case that ends in anything but a result or a UserError is written to
the folder of finds, and belongs into a test from then on.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

GUIDED = importlib.util.find_spec("atheris") is not None
SECONDS_A_CASE, MEBIBYTES = 20, 2048  # more than either is a find as well


class Row(NamedTuple):
    parser: str
    cases: int
    accepted: int
    seconds: float
    mebibytes: int
    uncaught: int
    engine: str


class Case:
    """Runs one input after the other, and counts what becomes of them."""

    def __init__(self, name: str, cases: int, folder: Path) -> None:
        from targets import TARGETS

        self.target, self.cases, self.folder = TARGETS[name], cases, folder
        self.done = self.accepted = self.uncaught = 0
        self.start = time.perf_counter()
        (folder / "work").mkdir()

    def __call__(self, data: bytes) -> None:
        try:
            self.accepted += self.target.run(data, self.folder / "work")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.uncaught += 1
            find = self.folder / "finds" / f"{type(error).__name__}-{hashlib.sha256(data).hexdigest()[:12]}"
            find.parent.mkdir(exist_ok=True)
            find.write_bytes(data)
            find.with_suffix(".txt").write_text(traceback.format_exc(), errors="replace")
        self.done += 1
        if self.done == self.cases:  # atheris ends the process by itself, so that now is the time to say it
            self._report()

    def _report(self) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        seconds = round(time.perf_counter() - self.start, 1)
        engine = "atheris" if GUIDED else "random"
        row = Row(self.target.name, self.done, self.accepted, seconds, peak, self.uncaught, engine)
        (self.folder / "row.json").write_text(json.dumps(row))


def fuzz_one(name: str, cases: int, folder: Path, seed: int) -> None:
    """The whole of one parser, in this process."""
    if GUIDED:
        import atheris

        with atheris.instrument_imports(include=["torchcaps", "yaml", "tarfile", "csv"], enable_loader_override=False):
            import torchcaps.data
            import torchcaps.exchange.convert
            import torchcaps.train.checkpoint
            import torchcaps.train.recipe  # noqa: F401
    import torch
    from mutate import mutated

    torch.set_num_threads(1)
    case = Case(name, cases, folder)
    starts = case.target.seeds()
    if not GUIDED:
        rng = random.Random(seed)
        for _ in range(cases):
            case(mutated(rng.choice(starts), starts, case.target.tokens, rng))
        return
    corpus = folder / "corpus"
    corpus.mkdir()
    for i, start in enumerate(starts):
        (corpus / f"{i:03d}").write_bytes(start)

    def change(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.2:
            return atheris.Mutate(data, most)
        return mutated(data, starts, case.target.tokens, rng)[:most]

    longest = max(1 << 12, 2 * max(map(len, starts)))
    options = [f"-runs={cases}", f"-seed={seed + 1}", f"-max_len={longest}", f"-timeout={SECONDS_A_CASE}"]
    options += [f"-rss_limit_mb={MEBIBYTES}", f"-artifact_prefix={folder}/", "-verbosity=0", "-len_control=0"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], case, custom_mutator=change)
    atheris.Fuzz()


def fuzz_apart(name: str, cases: int, seed: int, finds: Path) -> Row:
    """In a process of its own, which may end in any way."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as made:
        folder = Path(made)
        command = [
            sys.executable,
            __file__,
            "--one",
            name,
            "--cases",
            str(cases),
            "--seed",
            str(seed),
            "--folder",
            made,
        ]
        with (folder / "log").open("wb") as log:
            ended = subprocess.run(
                command, stdout=log, stderr=log, env={**os.environ, "FUZZ_FOLDER": made}, check=False
            )
        keep = finds / name.replace(" ", "-")
        for path in [
            *folder.glob("finds/*"),
            *folder.glob("crash-*"),
            *folder.glob("timeout-*"),
            *folder.glob("oom-*"),
        ]:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / path.name).write_bytes(path.read_bytes())
        try:
            return Row(*json.loads((folder / "row.json").read_text()))
        except (OSError, ValueError):
            print(
                f"{name}: the process ended with {ended.returncode}",
                (folder / "log").read_text(errors="replace")[-2000:],
            )
            return Row(name, 0, 0, 0.0, 0, 1, "ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000, help="for each parser")
    parser.add_argument("--only", nargs="*", help="these parsers alone")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a CSV file for the table")
    parser.add_argument("--finds", type=Path, default=Path("fuzz-finds"), help="a folder for inputs that got through")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        return fuzz_one(arguments.one, arguments.cases, arguments.folder, arguments.seed)
    from targets import TARGETS

    names = arguments.only or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"--only {' '.join(sorted(unknown))}: the parsers are {', '.join(TARGETS)}")
    if not GUIDED:
        print("atheris is not installed: changes are drawn at random, not by what they reach")
    print(f"{'parser':16}{'cases':>10}{'accepted':>10}{'seconds':>10}{'peak MiB':>10}{'uncaught':>10}  engine")
    rows: list[Any] = []
    with ThreadPoolExecutor(arguments.processes) as pool:
        for row in pool.map(lambda name: fuzz_apart(name, arguments.cases, arguments.seed, arguments.finds), names):
            rows.append(row)
            figures = (f"{value:>10,}" for value in (row.cases, row.accepted, row.seconds, row.mebibytes, row.uncaught))
            print(f"{row.parser:16}{''.join(figures)}  {row.engine}", flush=True)
    if arguments.out:
        with arguments.out.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([Row._fields, *rows])
    uncaught = sum(row.uncaught for row in rows)
    print(
        f"{sum(row.cases for row in rows):,} cases, {uncaught} uncaught"
        + (f"; see {arguments.finds}" if uncaught else "")
    )
    sys.exit(1 if uncaught else 0)


if __name__ == "__main__":
    main()
