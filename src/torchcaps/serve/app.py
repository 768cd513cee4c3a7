"""The explorer as a web application: its questions as routes, each with everything that it may answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException

from torchcaps._version import __version__
from torchcaps.errors import UserError
from torchcaps.serve import answers, requests
from torchcaps.serve.explorer import Explorer
from torchcaps.serve.files import file_routes
from torchcaps.serve.guard import Guard

Q = TypeVar("Q")
A = TypeVar("A")
THREADS = 4  # that decode and think: each may hold a picture of 2048×2048, and the model is asked by one at a time
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ABOUT = """What a capsule network sees in a picture. Pictures come in as base64 or as an array of grey values, and go
out as PNG data URLs; numbers have six decimals. Nothing is kept: every answer depends on its question alone."""


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    reasons = {
        400: "The body is no JSON, or the Host header names another machine.",
        408: "The body did not arrive in time.",
        413: "The body is larger than 2 MiB.",
        415: "The body is not declared as application/json.",
        422: "A field is missing, unknown, of another type or out of range, or the picture cannot be read.",
    }
    return {status: {"model": answers.Problem, "description": reasons[status]} for status in statuses}


def create_app(explorer: Explorer, hosts: Sequence[str] | None = LOOPBACK) -> FastAPI:
    """The page, its API and its documentation.

    hosts  names that a Host header may have; None for any. Without this check, a page of another site could have its
           own name lead to 127.0.0.1, and read what is served here.
    """
    app = FastAPI(title="torchcaps explorer", version=__version__, description=ABOUT, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, hosts=hosts)
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
    return app


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
        prefix="/api", tags=["questions"], responses=_problems(400, 408, 413, 415, 422), route_class=_StrictRoute
    )
    threads = ThreadPoolExecutor(THREADS, "explorer")

    async def ask(answer: Callable[[Q], A], question: Q) -> A:
        return await asyncio.get_running_loop().run_in_executor(threads, answer, question)

    @router.post("/predict")
    async def predict(question: requests.PredictRequest) -> answers.PredictAnswer:
        """How present each class is in a picture, and the picture as its capsules describe it."""
        return await ask(explorer.predict, question)

    @router.post("/reconstruct")
    async def reconstruct(question: requests.ReconstructRequest) -> answers.ReconstructAnswer:
        """The picture that a pose stands for; if asked, with each of its dimensions changed in turn."""
        return await ask(explorer.reconstruct, question)

    @router.post("/routing")
    async def routing(question: requests.RoutingRequest) -> answers.RoutingAnswer:
        """Which parts of a picture speak for which class, iteration by iteration."""
        return await ask(explorer.routing, question)

    @router.post("/transform")
    async def transform(question: requests.TransformRequest) -> answers.TransformAnswer:
        """What becomes of the answers when the picture is turned, moved, scaled or slanted."""
        return await ask(explorer.transform, question)

    return router


class _StrictRequest(Request):
    """Its JSON is read by a parser that stops at 200 levels, and knows neither NaN nor Infinity."""

    async def json(self) -> Any:
        try:
            return from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is no JSON: {error}") from None


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
    """The first thing that is wrong, and where; what the client sent is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    loc = first["loc"][1:]  # without "body"
    place = ".".join(str(part) for part, above in zip(loc, ("", *loc)) if above not in requests.IMAGES)
    return _problem(422, f"{place}: {first['msg']}" if place else first["msg"])


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, str(error.detail), error.headers)


def _broken(request: Request, error: Exception) -> Response:
    return _problem(500, "the server made a mistake; its own terminal says more")
