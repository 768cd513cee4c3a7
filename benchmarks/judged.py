"""What several judges found, of generators with other seeds, as one: the file that docs/synthesis.md shows.

    for s in 0 1 2; do torchcaps eval runs/isbi-capspix2pix-$s --against runs/isbi-pix2pix-$s \
        --seeds 1 --seed $s --out judged/$s; done
    .venv/bin/python benchmarks/judged.py judged/*/judge.json --out docs/judged/isbi.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from torchcaps.errors import UserError
from torchcaps.train.experiments.judge import pool


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    asked = parser.parse_args()
    try:
        pooled = pool([json.loads(path.read_text(encoding="utf-8")) for path in asked.files])
    except UserError as error:
        parser.error(str(error))
    asked.out.write_text(json.dumps(pooled, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for kind, found in pooled["trained"].items():
        print(f"{kind:<30} {100 * found['mean']:.2f} % Dice, n = {found['n']}, {100 * found['of_real']:.1f} % of real")


if __name__ == "__main__":
    main()
