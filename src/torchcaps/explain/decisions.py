"""What routing decides for one image, in numbers and in words: often the first iteration has decided already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torchcaps.explain.votes import RoutingTrace

PRESENT = 0.5  # length from which a class is present
NEARLY_EQUAL = 0.9  # entropy of couplings that are nearly equal: lengths change by them, but no part decides
LITTLE = 0.5  # share of the parts that decide; below, and with few answers changed, couplings decide little


class Decision(NamedTuple):
    """What the couplings of one image decide.

    Attributes:
        winners: the longest class of each iteration.
        lengths: of the last winner, in each iteration.
        undecided: normalised entropy of the last couplings: 1 if uniform, 0 if each part chose one class.
        decided: the number of parts that give more than half of their coupling to one class.
        parts: the number of parts.
        share: the share of the winner's positive support that comes from a single part.
        starts_uniform: whether the first iteration couples every part to all classes equally.
    """

    winners: list[int]
    lengths: list[float]
    undecided: float
    decided: int
    parts: int
    share: float
    starts_uniform: bool

    @property
    def changed_at(self) -> int | None:
        """The last iteration that changed the longest class, counted from 1; None if none did."""
        changes = [step + 1 for step in range(1, len(self.winners)) if self.winners[step] != self.winners[step - 1]]
        return changes[-1] if changes else None

    @property
    def present_at(self) -> int | None:
        """The first iteration, counted from 1, with the winner present; None if that is not due to couplings."""
        present = [length > PRESENT for length in self.lengths]
        emerges = present[-1] and not present[0] and self.undecided < NEARLY_EQUAL
        return present.index(True) + 1 if emerges else None

    @property
    def kind(self) -> str:
        """What routing decided.

        changed: the longest class; present: that it is present at all; parts: at least half of the parts decide; none:
        nothing of these.
        """
        if self.changed_at is not None:
            return "changed"
        if self.present_at is not None:
            return "present"
        return "parts" if 2 * self.decided >= self.parts else "none"


def decide(trace: RoutingTrace) -> Decision:
    """Summarise what the couplings of a trace decide."""
    winners = trace.winners
    support_I = trace.support[-1, :, winners[-1]].clamp_min(0)
    total = float(support_I.sum())
    return Decision(
        winners=winners,
        lengths=trace.lengths[:, winners[-1]].tolist(),
        undecided=float(trace.entropy[-1]),
        decided=round(float(trace.decided[-1]) * len(trace.parts)),
        parts=len(trace.parts),
        share=float(support_I.max()) / total if total > 0 else 0.0,
        starts_uniform=trace.starts_uniform,
    )


def describe_decision(found: Decision, class_names: Sequence[str]) -> str:
    """Say in words what the couplings decide: whether the answer changed, and how undecided the parts are."""
    first, last, steps = class_names[found.winners[0]], class_names[found.winners[-1]], len(found.winners)
    equal = ", where all couplings are equal" if found.starts_uniform else ""
    if found.kind == "changed":
        told = f"Routing changes the answer: {first} is longest at iteration 1{equal}, {last} from iteration "
        told += f"{found.changed_at} on."
    elif found.kind == "present":
        told = f"Routing decides that there is a {last}: with equal couplings, at iteration 1, its capsule is only "
        told += (
            f"{found.lengths[0]:.2f} long and no class is present. As votes that agree are coupled more, it grows to "
        )
        told += f"{found.lengths[-1]:.2f}."
    else:
        head = "Most parts decide, but not the answer" if found.kind == "parts" else "The couplings decide little here"
        stays = ", and stays so" if steps > 1 else ""
        told = f"{head}: {last} is longest already at iteration 1{equal}{stays}."
    told += (
        f" After iteration {steps} the couplings are {100 * found.undecided:.1f} % undecided (100 %: all equal), and "
        f"{found.decided:,} of {found.parts:,} parts give more than half of their coupling to one class."
    )
    if found.share > 0:
        told += f" The strongest part alone gives {100 * found.share:.0f} % of the support for {last}."
    return told


def describe_decisions(found: Sequence[Decision]) -> str:
    """Say in words what the couplings of several images decide, and whether that is little."""
    n = len(found)
    changed = sum(each.changed_at is not None for each in found)
    emerged = sum(each.present_at is not None for each in found)
    undecided = sum(each.undecided for each in found) / n
    parts = sum(each.decided for each in found) / sum(each.parts for each in found)
    little = 10 * (changed + emerged) < n and parts < LITTLE
    told = "The couplings decide little in this network. " if little else ""
    grown = f", and of {emerged} it is present only after routing" if emerged else ""
    images = f"the first {n} test image{'s' if n > 1 else ''}"
    return (
        f"{told}Of {images}, routing changes the longest class of {changed}; in the others it is the longest from "
        f"iteration 1 on{grown}. On average the couplings are {100 * undecided:.1f} % undecided (100 %: all equal), "
        f"and {100 * parts:.1f} % of the parts give more than half of their coupling to one class."
    )
