"""The response of /api/routing: couplings and support by place and type, what they decide, and the votes in a plane."""

from __future__ import annotations

from torch import Tensor

from torchcaps.errors import UserError
from torchcaps.explain.decisions import decide, describe_decision
from torchcaps.explain.receptive_field import receptive_field
from torchcaps.explain.vote_plane import VotePlane
from torchcaps.explain.votes import RoutingTrace
from torchcaps.serve import requests, routing_responses
from torchcaps.serve.pictures import data_url
from torchcaps.serve.responses import numbers
from torchcaps.serve.served_models import ServedModel


def check_part(served: ServedModel, part: requests.Part | None) -> None:
    """Raise unless the model has this part."""
    types, rows, columns = served.part_grid
    if part is not None and not (part.type < types and part.row < rows and part.column < columns):
        raise UserError(f"part: {served.name} has {types} types of parts in {rows} rows and {columns} columns")


def routing_response(
    served: ServedModel, image: Tensor, trace: RoutingTrace, plane: VotePlane, part: requests.Part | None
) -> routing_responses.RoutingResponse:
    """Arrange a trace of routing by class, place and type."""
    grid = served.part_grid
    support_RJTHW, couplings_RJTHW = (
        values_RIJ.unflatten(1, grid).movedim(-1, 1) for values_RIJ in (trace.support, trace.couplings)
    )
    lengths_THW = trace.parts.view(grid)
    coupling_RJHW = (couplings_RJTHW * lengths_THW).sum(2) / lengths_THW.sum(0).clamp_min(1e-12)
    columns_R = (
        *(trace.lengths, trace.entropy, trace.decided),
        *(support_RJTHW.sum(2), support_RJTHW.sum((3, 4)), coupling_RJHW),
    )
    return routing_responses.RoutingResponse(
        model=served.name,
        seen=data_url(image),
        lengths_of_parts=numbers(lengths_THW),
        steps=[
            routing_responses.RoutingStep(
                lengths=lengths, entropy=entropy, decided=decided, support=support, types=by_type, coupling=coupling
            )
            for lengths, entropy, decided, support, by_type, coupling in zip(*map(numbers, columns_R))
        ],
        finding=_finding(served, trace),
        votes=_votes(served, trace, plane),
        part=None if part is None else _part(served, trace, part),
    )


def _finding(served: ServedModel, trace: RoutingTrace) -> routing_responses.Finding:
    """What routing decides with the model's own number of iterations, or with fewer if the trace has fewer."""
    own = served.capsules.classes.iterations
    steps = {name: getattr(trace, name)[:own] for name in ("couplings", "poses", "lengths")}
    found = decide(trace._replace(**steps))
    return routing_responses.Finding(
        kind=found.kind,
        sentence=describe_decision(found, served.model.class_names),
        winners=found.winners,
        undecided=round(found.undecided, 6),
        decided=found.decided,
        parts=found.parts,
        strongest=round(found.share, 6),
        starts_uniform=found.starts_uniform,
    )


def _votes(served: ServedModel, trace: RoutingTrace, plane: VotePlane) -> routing_responses.Votes:
    _, rows, columns = served.part_grid
    places = [divmod(index, columns) for index in (plane.parts % (rows * columns)).tolist()]
    types = (plane.parts // (rows * columns)).tolist()
    couplings_RNM = trace.couplings[:, plane.parts][..., plane.classes]
    return routing_responses.Votes(
        classes=plane.classes.tolist(),
        kept=numbers(plane.kept),
        parts=[
            routing_responses.VotingPart(type=kind, row=row, column=column, ink=ink, votes=votes)
            for kind, (row, column), ink, votes in zip(types, places, numbers(plane.ink), numbers(plane.votes))
        ],
        couplings=numbers(couplings_RNM),
        capsules=numbers(plane.capsules),
        agreement=numbers(plane.agreement),
    )


def _part(served: ServedModel, trace: RoutingTrace, part: requests.Part) -> routing_responses.PartResponse:
    model, (_, rows, columns) = served.capsules, served.part_grid
    index = (part.type * rows + part.row) * columns + part.column
    _, height, width = model.image_shape
    rows_of, columns_of = receptive_field(model, 0), receptive_field(model, 1)
    (top, bottom), (left, right) = rows_of.pixels(part.row, height), columns_of.pixels(part.column, width)
    votes = numbers(trace.votes[index].norm(dim=-1))
    return routing_responses.PartResponse(
        type=part.type,
        row=part.row,
        column=part.column,
        length=numbers(trace.parts[index]),
        box=[top, left, bottom, right],
        steps=[
            routing_responses.PartStep(couplings=numbers(couplings), votes=votes, agreement=numbers(agreement))
            for couplings, agreement in zip(trace.couplings[:, index], trace.agreement[:, index])
        ],
    )
