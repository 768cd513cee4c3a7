"""The explorer as a web application: its questions as routes, each with everything that it may answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from torchcaps._version import __version__
from torchcaps.errors import UserError
from torchcaps.serve import answers, requests
from torchcaps.serve.explorer import Explorer
from torchcaps.serve.files import file_routes
from torchcaps.serve.middleware import Guard
from torchcaps.serve.request_queue import RequestQueue

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")  # as a Host header has them
MAX_FIELD_CHARACTERS = 100  # characters of a field's path in a sentence: its names are the client's own
ABOUT = """What a capsule network sees in a picture. Pictures come in as base64 or as an array of grey values, and go
out as PNG data URLs; numbers have six decimals. Nothing is kept: every answer depends on its question alone."""


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    reasons = {
        400: "The body is no JSON, or the Host header names another machine.",
        408: "The body did not arrive in time.",
        413: "The body is larger than 2 MiB.",
        415: "The body is not declared as application/json.",
        422: "A field is missing, unknown, of another type or out of range, or the picture cannot be read.",
        503: "Too many questions wait for an answer.",
    }
    return {status: {"model": answers.Problem, "description": reasons[status]} for status in statuses}


def create_app(explorer: Explorer, hosts: Sequence[str] | None = LOOPBACK) -> ASGIApp:
    """The page, its API and its documentation.

    hosts  names that a Host header may have; None for any. Without this check, a page of another site could have its
           own name lead to 127.0.0.1, and read what is served here.
    """
    app = FastAPI(title="torchcaps explorer", version=__version__, description=ABOUT, docs_url=None, redoc_url=None)
    for kind, handler in (
        (UserError, _user_error),
        (RequestValidationError, _invalid),
        (HTTPException, _refused),
        (Exception, _broken),
    ):
        app.add_exception_handler(kind, handler)
    app.include_router(_facts(explorer))
    app.include_router(_questions(explorer))
    app.include_router(file_routes())
    # Around the whole, not among its middleware: FastAPI answers for its own mistakes outside of that.
    return Guard(app, hosts)


def _facts(explorer: Explorer) -> APIRouter:
    router = APIRouter(tags=["facts"], responses=_problems(400))

    @router.get("/healthz")
    def healthz() -> answers.Health:
        """Whether the server is there."""
        return answers.Health(version=__version__)

    @router.get("/api/model")
    def model() -> answers.ModelsAnswer:
        """The networks that can be asked, and all there is to know about them."""
        return explorer.models()

    return router


def _questions(explorer: Explorer) -> APIRouter:
    router = APIRouter(
        prefix="/api", tags=["questions"], responses=_problems(400, 408, 413, 415, 422, 503), route_class=_StrictRoute
    )
    turns = RequestQueue()

    @router.post("/predict")
    async def predict(client: Request, question: requests.PredictRequest) -> answers.PredictAnswer:
        """How present each class is in a picture, and the picture as its capsules describe it."""
        return await turns.ask(client, explorer.predict, question)

    @router.post("/reconstruct")
    async def reconstruct(client: Request, question: requests.ReconstructRequest) -> answers.ReconstructAnswer:
        """The picture that a pose stands for; if asked, with each of its dimensions changed in turn."""
        return await turns.ask(client, explorer.reconstruct, question)

    @router.post("/routing")
    async def routing(client: Request, question: requests.RoutingRequest) -> answers.RoutingAnswer:
        """Which parts of a picture speak for which class, iteration by iteration."""
        return await turns.ask(client, explorer.routing, question)

    @router.post("/lattice")
    async def lattice(client: Request, question: requests.LatticeRequest) -> answers.LatticeAnswer:
        """How long each class capsule is in each view of a picture, for models of the kind `poses`."""
        return await turns.ask(client, explorer.lattice, question)

    @router.post("/transform")
    async def transform(client: Request, question: requests.TransformRequest) -> answers.TransformAnswer:
        """What becomes of the answers when the picture is turned, moved, scaled or slanted."""
        return await turns.ask(client, explorer.transform, question)

    return router


class _StrictRequest(Request):
    """Its JSON is read by a parser that stops at 200 levels, and knows neither NaN nor Infinity."""

    async def json(self) -> Any:
        try:
            body = from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is no JSON: {error}") from None
        if requests.too_many_fields(body):
            raise HTTPException(422, f"an object has more than {requests.MAX_FIELDS} fields")
        return body


class _StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await answer(_StrictRequest(request.scope, request.receive))

        return handler


def _problem(status: int, sentence: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"detail": sentence}, status, headers)


def _user_error(request: Request, error: Exception) -> Response:
    return _problem(422, str(error))


def _invalid(request: Request, error: Exception) -> Response:
    """The first thing that is wrong, and where; of what the client sent, at most a few printable characters."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    loc = first["loc"][1:]  # without "body"
    place = ".".join(str(part) for part, above in zip(loc, ("", *loc)) if above not in requests.IMAGES)
    place = "".join(letter if letter.isprintable() else "�" for letter in place[:MAX_FIELD_CHARACTERS])
    return _problem(422, f"{place}: {first['msg']}" if place else first["msg"])


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, str(error.detail), error.headers)


def _broken(request: Request, error: Exception) -> Response:
    return _problem(500, "the server made a mistake; its own terminal says more")
