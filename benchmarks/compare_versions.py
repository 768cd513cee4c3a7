"""Compare the speed of two versions of the package, by turns in one run.

    git worktree add ../before COMMIT
    python benchmarks/compare_versions.py ../before/src src --rounds 3

Each round runs `torchcaps bench` (routing by every backend, the whole step) and `torchcaps bench --routing all
--epochs 0` (every kind of routing) once with each version. For every time in the rows, the script prints the median of
each version and their ratio. The exit code is 1 if a ratio exceeds --bound.
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
        environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
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
    for _ in range(args.rounds):
        for options in BENCHES:
            for source in (args.old, args.new):
                for key, value in measure(source, args.device, options).items():
                    times[key][source].append(value)
    slower = 0
    for key, by_source in times.items():
        if len(by_source) == 2:
            old, new = (statistics.median(by_source[source]) for source in (args.old, args.new))
            slower += new > args.bound * old
            print(f"{new / old:7.3f}  {old:10.4f} → {new:10.4f} ms  {' '.join(key)}")
    print(f"{slower} of {len(times)} times are more than {args.bound} times the old one")
    sys.exit(bool(slower))


if __name__ == "__main__":
    main()
