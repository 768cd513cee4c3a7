"""The tables of claims, for a page with all claims and for the README."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.claims.plan import BASELINES, COLUMNS, NETWORKS

MARKERS = re.compile(r"(<!-- claims: (\S+) -->\n).*?(<!-- end of claims -->)", re.DOTALL)
OWN_SCORE = "familiarity"  # the score that pose capsules compare with their threshold
MIN_STANDARD_ERRORS = 2.0  # by which one network must be ahead of another


class Row(NamedTuple):
    """One line of the table.

    Attributes:
        claim: The claim of the literature.
        words: What is measured.
        study: A name in STUDIES.
        measure: Name of the result; "WHAT by" means a network's best score.
        digits: Decimals to show.
        lower: Whether lower is better.
        short: Whether the README shows it too.
    """

    claim: str
    words: str
    study: str
    measure: str
    digits: int = 2
    lower: bool = False
    short: bool = False


ROWS = (
    Row("affine robustness", "affNIST-like, 40,000 digits, % right", "affine", "affine", short=True),
    Row("", "as in training: moved only, % right", "affine", "as in training"),
    Row("novel viewpoints", "turned by ±30°, % right", "affine", "turned 30"),
    Row("", "turned by ±45°, % right", "affine", "turned 45", short=True),
    Row("", "scaled by 0.7 and 1.3, % right", "affine", "scaled"),
    Row("less data", "1 image a class, % wrong", "few-1", "error", lower=True, digits=1),
    Row("", "10 images a class, % wrong", "few-10", "error", lower=True),
    Row("", "100 images a class, % wrong", "few-100", "error", lower=True),
    Row("", "1,000 images a class, % wrong", "few-1000", "error", lower=True),
    Row("noise", "Gaussian, σ = 0.2, % right", "affine", "noise", short=True),
    Row("blur", "Gaussian, 1 px, % right", "affine", "blur", short=True),
    Row("occlusion", "a square of 10×10 covered, % right", "affine", "covered", short=True),
    Row("wrong parts", "quarters shuffled, % rejected", "affine", "shuffled rejected by", digits=1, short=True),
    Row("two objects", "overlaid digits, % with both on top", "affine", "two digits", digits=1),
    Row("attacks", "PGD, ε = 0.1, % right", "affine", "PGD on cross-entropy", digits=1),
    Row("", "attacks told from digits, AUROC", "affine", "attacks told by", digits=3),
    Row("none of these", "Fashion-MNIST, AUROC", "affine", "Fashion-MNIST told by", digits=3),
    Row("", "printed letters, AUROC", "affine", "letters told by", digits=3),
    Row("", "letters that look like digits, AUROC", "affine", "look-alikes told by", digits=3),
    Row("", "random curves, AUROC", "affine", "splines told by", digits=3),
    Row("", "uniform noise, AUROC", "affine", "uniform noise told by", digits=3),
    Row("", "Gaussian noise, AUROC", "affine", "Gaussian noise told by", digits=3),
    Row("", "constant images, % rejected", "affine", "constants rejected by", digits=1),
    Row("", "single dots, AUROC", "affine", "dots told by", digits=3),
    Row("", "gradients, AUROC", "affine", "gradients told by", digits=3),
)
POSES = (
    Row("", "angle read of digits turned by −40…40°: slope", "affine", "angle slope", digits=3),
    Row("", "… median error, degrees", "affine", "angle error"),
    Row("", "position, median error, pixels", "affine", "place error"),
    Row("", "scale, median error, %", "affine", "scale error"),
    Row(
        "",
        "lengths on the lattice, digit turned by one step of 15°: mean difference",
        "affine",
        "equivariance error",
        3,
    ),
    Row("", "pose on a straight line while the digit turns, R²", "affine", "pose R²"),
)
OTHERS = ("affine", "as in training", "turned 30", "turned 45", "scaled", "noise", "blur", "covered")


def write_page(out: Path) -> Path:
    """Fill the tables of `out.md`; create the page if it does not exist."""
    page = out.with_name(f"{out.name}.md")
    if not page.is_file():
        names = "\n\n".join(f"<!-- claims: {name} -->\n<!-- end of claims -->" for name in ("all", "poses", "others"))
        page.write_text(f"# Claims\n\n{names}\n", encoding="utf-8")
    fill_claims(page, out)
    return page


def fill_claims(page: Path, folder: Path) -> bool:
    """Write the tables between the markers of a page: <!-- claims: all -->, short, poses or others.

    Args:
        page: A Markdown file.
        folder: Folder of the results.

    Returns:
        Whether the page has any markers.
    """
    studies = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    tables = {
        "all": lambda: _claims(studies, ROWS),
        "short": lambda: _claims(studies, [row for row in ROWS if row.short]),
        "poses": lambda: _poses(studies),
        "others": lambda: _others(studies),
    }

    def table(match: re.Match[str]) -> str:
        rows = tables[match[2]]()
        return match[1] + "".join(f"| {' | '.join(row)} |\n" for row in rows) + match[3]

    text, count = MARKERS.subn(table, page.read_text(encoding="utf-8"))
    page.write_text(text, encoding="utf-8")
    return count > 0


def compare(own: Sequence[float], other: Sequence[float], *, lower: bool, paired: bool) -> tuple[float, float]:
    """How far one network is ahead of another, and the standard error of the difference.

    Args:
        own: Its results, one per run.
        other: The other network's results.
        lower: Whether lower is better.
        paired: Whether runs with the same index used the same images.
    """
    sign = -1 if lower else 1
    if paired and len(own) == len(other):
        ahead = [sign * (a - b) for a, b in zip(own, other)]
        return statistics.mean(ahead), _error(ahead)
    difference = sign * (statistics.mean(own) - statistics.mean(other))
    return difference, (_error(own) ** 2 + _error(other) ** 2) ** 0.5


def verdict(studies: dict[str, Any], row: Row) -> str:
    """Whether pose capsules are ahead of the best baseline by more than two standard errors."""
    own = values(studies, row, "posecaps")
    against = {name: found for name in BASELINES if (found := values(studies, row, name))}
    if not own or not against:
        return ""
    best = (min if row.lower else max)(against, key=lambda name: statistics.mean(against[name]))
    if min(len(own), len(against[best])) < 2:
        return "one run"
    ahead, error = compare(own, against[best], lower=row.lower, paired=row.study.startswith("few"))
    word = (
        "ahead" if ahead > MIN_STANDARD_ERRORS * error else "behind" if ahead < -MIN_STANDARD_ERRORS * error else "even"
    )
    return f"{word} ({ahead:+.{row.digits}f} ± {error:.{row.digits}f}, {NETWORKS[best].title})"


def values(studies: dict[str, Any], row: Row, network: str) -> list[float]:
    """A network's results, one per run. Of several scores: pose capsules' own, or another network's best."""
    found = studies.get(row.study, {}).get("networks", {}).get(network)
    if found is None:
        return []
    measured: dict[str, list[float]] = found["values"]
    if not row.measure.endswith(" by"):
        return measured.get(row.measure, [])
    if network == "posecaps":
        return measured.get(f"{row.measure} {OWN_SCORE}", [])
    choices = [each for name, each in measured.items() if name.startswith(f"{row.measure} ")]
    return max(choices, key=statistics.mean, default=[])


def _claims(studies: dict[str, Any], rows: Sequence[Row]) -> list[list[str]]:
    titles = [NETWORKS[name].title for name in COLUMNS]
    table = [["claim", "measured", *titles, "pose capsules against the best CNN"]]
    table.append(["---"] * len(table[0]))
    for row in rows:
        cells = [_cell(values(studies, row, name), row.digits) for name in COLUMNS]
        table.append([row.claim, row.words, *cells, verdict(studies, row)])
    return table


def _poses(studies: dict[str, Any]) -> list[list[str]]:
    names = ("posecaps", "capsnet")
    table = [["measured", *(NETWORKS[name].title for name in names)]]
    table.append(["---"] * len(table[0]))
    for row in POSES:
        table.append([row.words, *(_cell(values(studies, row, name), row.digits) for name in names)])
    return table


def _others(studies: dict[str, Any]) -> list[list[str]]:
    found = studies.get("affine", {}).get("networks", {})
    table = [["network", "parameters", "learning rate", *OTHERS]]
    table.append(["---"] * len(table[0]))
    for name in NETWORKS:
        if name in found:
            cells = [_cell(found[name]["values"].get(measure, []), 2) for measure in OTHERS]
            rate = next(
                (each.split("=")[1] for each in found[name]["settings"] if each.startswith("optim.lr=")), "0.002"
            )
            table.append([found[name]["title"], f"{found[name]['parameters']:,}", rate, *cells])
    return table


def _cell(figures: Sequence[float], digits: int) -> str:
    if not figures:
        return "–"
    spread = f" ± {statistics.stdev(figures):.{digits}f}" if len(figures) > 1 else ""
    return f"{statistics.mean(figures):.{digits}f}{spread}"


def _error(figures: Sequence[float]) -> float:
    """The standard error of the mean; 0 for a single value."""
    return statistics.stdev(figures) / len(figures) ** 0.5 if len(figures) > 1 else 0.0
