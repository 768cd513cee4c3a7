"""Compare the speed of two versions of the package, by turns in one run.

    git worktree add ../before COMMIT
    python benchmarks/compare_versions.py ../before/src src --rounds 3

Each round runs `torchcaps bench` (routing by every backend, the whole step) and `torchcaps bench --routing all
--epochs 0` (every kind of routing) once with each version. For every time in the rows, the script prints the median of
each version and their ratio, after each round. The exit code is 1 if a ratio exceeds --bound.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

BENCHES = ([], ["--routing", "all", "--epochs", "0"])
TIMES = ("forward_ms", "both_ms", "images_per_s")
KEYS = ("what", "name", "B", "I", "J", "r", "backend", "precision")
Key = tuple[str, ...]


def measure(source: Path, device: str, options: list[str]) -> dict[Key, float]:
    """The times of one `torchcaps bench` with the package in this folder, in milliseconds, by row and column."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "rows.csv"
        command = [sys.executable, "-m", "torchcaps", "bench", "--device", device, *options, "--out", str(table)]
        paths = os.pathsep.join(filter(None, (str(source.resolve()), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": paths}
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        with table.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    found = {}
    for row in rows:
        about = [row[key] for key in KEYS if row.get(key)]
        for column in TIMES:
            if row.get(column):
                value = float(row[column])
                found[(*about, column)] = 1000 / value if column == "images_per_s" else value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="src folder of the old version")
    parser.add_argument("new", type=Path, help="src folder of the new version")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bound", type=float, default=1.02, help="largest ratio of new to old")
    args = parser.parse_args()
    times: dict[Key, dict[Path, list[float]]] = defaultdict(lambda: defaultdict(list))
    slower = 0
    for number in range(args.rounds):
        for options in BENCHES:
            for source in (args.old, args.new) if number % 2 == 0 else (args.new, args.old):
                for key, value in measure(source, args.device, options).items():
                    times[key][source].append(value)
        print(f"after {number + 1} of {args.rounds} rounds")
        slower = report(times, args.old, args.new, args.bound)
    sys.exit(bool(slower))


def report(times: dict[Key, dict[Path, list[float]]], old: Path, new: Path, bound: float) -> int:
    """Print the medians and ratios of all rows that both versions have; return the number of ratios above `bound`."""
    slower = 0
    for key, by_source in times.items():
        if len(by_source) == 2:
            before, after = (statistics.median(by_source[source]) for source in (old, new))
            slower += after > bound * before
            print(f"{after / before:7.3f}  {before:10.4f} → {after:10.4f} ms  {' '.join(key)}")
    print(f"{slower} of {len(times)} times are more than {bound} times the old one", flush=True)
    return slower


if __name__ == "__main__":
    main()
