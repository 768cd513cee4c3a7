"""How long the first training step of a capsule layer takes, in fresh processes: what it imports is in that time.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/first_call.py [--rounds 5]

Prints medians of the seconds, the megabytes and the modules that the first forward and backward pass added, and the
seconds as a share of importing torch in the same process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

LAYERS = {
    "Linear": "torch.nn.Linear(128, 160), torch.randn(4, 128)",
    "PrimaryCaps": "layers.PrimaryCaps(4, 2, 8, kernel_size=3), torch.randn(4, 4, 8, 8)",
    "DenseCaps": "layers.DenseCaps(16, 8, 10, 16), torch.randn(4, 16, 8)",
    "DenseCaps em": "layers.DenseCaps(16, 4, 10, 4, routing='em'), torch.randn(4, 16, 4)",
    "ConvCaps2d": "layers.ConvCaps2d(2, 4, 3, 4, kernel=3), torch.randn(4, 2, 4, 6, 6)",
}
STEP = """
import json, resource, sys, time
start = time.perf_counter()
import torch
imported = time.perf_counter() - start
from torchcaps import layers

def step(layer, x):
    found = layer(x)
    (found if isinstance(found, torch.Tensor) else found.pose).sum().backward()

layer, x = {layer}
modules, memory = len(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
times = []
for _ in range(2):
    start = time.perf_counter()
    step(layer, x)
    times.append(time.perf_counter() - start)
added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
print(json.dumps([times[0], times[1], added, len(sys.modules) - modules, times[0] / imported]))
"""


def measure(layer: str) -> list[float]:
    """One process: seconds of the first and of the second step, megabytes, modules, seconds / those of import torch."""
    code = STEP.replace("{layer}", layer)
    return json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{'layer':14}{'first s':>10}{'second s':>10}{'MB':>7}{'modules':>9}{'/ import torch':>16}")
    for name, layer in LAYERS.items():
        first, second, memory, modules, share = map(statistics.median, zip(*(measure(layer) for _ in range(rounds))))
        print(f"{name:14}{first:10.4f}{second:10.4f}{memory:7.0f}{modules:9.0f}{share:16.3f}")


if __name__ == "__main__":
    main()
