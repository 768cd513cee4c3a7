"""What several judges found, of generators with other seeds, as one: the file that docs/synthesis.md shows.

    for s in 0 1 2; do torchcaps eval runs/isbi-capspix2pix-$s --against runs/isbi-pix2pix-$s \
        --seeds 1 --seed $s --out judged/$s; done
    .venv/bin/python benchmarks/judged.py judged/*/judge.json --out docs/judged/isbi.json
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchcaps.errors import UserError
from torchcaps.train.experiments.judge import spread


def pool(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What judges found of the same kinds of generators, trained with other seeds: as if one had judged them all."""
    first = results[0]
    for what in ("data", "windows", "draws", "test_n"):
        _check_alike(what, [result[what] for result in results])
    for what in ("recipe", "settings", "parameters"):
        _check_alike(f"{what} of the U-Net", [result["unet"].get(what) for result in results])
    seeds = [(result["unet"]["first_seed"], tuple(result["generator_seeds"].values())) for result in results]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"one of these was judged twice, by the seeds of U-Net and generators: {seeds}")
    kinds = [{_unnumbered(kind) for kind in result["trained"]} for result in results]
    if any(names != kinds[0] for names in kinds) or any(len(names) != len(first["trained"]) for names in kinds):
        raise UserError(f"these were not judged alike: they have {[sorted(names) for names in kinds]}")
    trained: dict[str, Any] = {}
    for kind in map(_unnumbered, first["trained"]):
        alike = [_by_kind(result["trained"])[kind] for result in results]
        found = spread([value for each in alike for value in each["values"]])
        usual = trained["real"]["mean"] if trained else found["mean"]  # real images come first
        trained[kind] = {
            **found,
            "of_real": found["mean"] / max(usual, 1e-12),
            "generator_parameters": alike[0]["generator_parameters"],
        }
    drawn: dict[str, Any] = {}
    for name in map(_unnumbered, first["drawn"]):
        some = [_by_kind(result["drawn"])[name] for result in results]
        keys = dict.fromkeys(key for each in some for key in each if key not in ("parameters", "n"))
        means = {key: _mean([each.get(key) for each in some]) for key in keys}
        drawn[name] = {"parameters": some[0]["parameters"], **means, "n": sum(each["n"] for each in some)}
    each_seed = {name: [_by_kind(result["generator_seeds"])[name] for result in results] for name in drawn}
    unet = {**first["unet"], "first_seed": [result["unet"]["first_seed"] for result in results]}
    together = {"unet": unet, "generator_seeds": each_seed, "trained": trained, "drawn": drawn}
    return {**first, **together, "kid_of_real": _mean([result["kid_of_real"] for result in results])}


def _check_alike(what: str, values: list[Any]) -> None:
    if any(value != values[0] for value in values):
        raise UserError(f"these were not judged alike: their {what} is {values}")


def _by_kind(found: dict[str, Any]) -> dict[str, Any]:
    return {_unnumbered(kind): each for kind, each in found.items()}


def _mean(values: list[float | None]) -> float | None:
    """None where one of them is."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if len(known) == len(values) else None


def _unnumbered(kind: str) -> str:
    """ "real + runs/mine-0" as "real + mine"."""
    before, plus, name = kind.rpartition(" + ")
    return before + plus + re.sub(r"-\d+$", "", Path(name).name)


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
