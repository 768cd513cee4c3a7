"""The explorer as a web application: routes, request validation and error responses."""

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
from torchcaps.serve import requests, responses
from torchcaps.serve.explorer import Explorer
from torchcaps.serve.files import file_routes
from torchcaps.serve.middleware import SecurityMiddleware
from torchcaps.serve.request_queue import RequestQueue, single_core
from torchcaps.serve.routing_responses import RoutingResponse
from torchcaps.serve.shapes import ShapesResponse, find_wholes

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")  # as written in a Host header
MAX_PATH_CHARACTERS = 100  # of a field's path in an error message: the client chose its names
DESCRIPTION = """What a capsule network sees in an image. Send images as base64 or as an array of grey values; responses
contain images as PNG data URLs and numbers with six decimals. The server keeps no state: every response depends on its
request alone."""


def _error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    reasons = {
        400: "The body is not valid JSON, or the Host header names another machine.",
        408: "The body did not arrive in time.",
        413: "The body is larger than 2 MiB.",
        415: "The Content-Type is not application/json.",
        422: "A field is missing, unknown, of the wrong type or out of range, or the image cannot be decoded.",
        503: "Too many requests are waiting.",
    }
    return {status: {"model": responses.ErrorResponse, "description": reasons[status]} for status in statuses}


def create_app(explorer: Explorer, hosts: Sequence[str] | None = LOOPBACK) -> ASGIApp:
    """Create the application: the page, its API and the API's documentation.

    Args:
        explorer: The models to serve.
        hosts: Host names to accept in the Host header; None accepts all. Without this check another site could point
            its own name to 127.0.0.1 and read the responses (DNS rebinding).
    """
    app = FastAPI(
        title="torchcaps explorer", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None
    )
    for kind, handler in (
        (UserError, _user_error),
        (RequestValidationError, _validation_error),
        (HTTPException, _http_error),
        (Exception, _internal_error),
    ):
        app.add_exception_handler(kind, handler)
    app.include_router(_info_routes(explorer))
    app.include_router(_model_routes(explorer))
    app.include_router(file_routes())
    # Wrapped around the app rather than added with add_middleware, which does not see responses to unhandled errors.
    return SecurityMiddleware(app, hosts)


def _info_routes(explorer: Explorer) -> APIRouter:
    router = APIRouter(tags=["info"], responses=_error_responses(400))

    @router.get("/healthz")
    def healthz() -> responses.Health:
        """Health check."""
        return responses.Health(version=__version__)

    @router.get("/api/model")
    def model() -> responses.ModelsResponse:
        """The served models and their properties."""
        return explorer.models()

    return router


def _model_routes(explorer: Explorer) -> APIRouter:
    router = APIRouter(
        prefix="/api",
        tags=["inference"],
        responses=_error_responses(400, 408, 413, 415, 422, 503),
        route_class=_StrictRoute,
    )
    queue, small = RequestQueue(), RequestQueue(threads=1, pool=single_core())

    @router.post("/predict")
    async def predict(client: Request, body: requests.PredictRequest) -> responses.PredictResponse:
        """How present each class is in an image, and the image as its capsules reconstruct it."""
        return await queue.run(client, explorer.predict, body)

    @router.post("/reconstruct")
    async def reconstruct(client: Request, body: requests.ReconstructRequest) -> responses.ReconstructResponse:
        """The image decoded from a pose; optionally also with each dimension varied in turn."""
        return await queue.run(client, explorer.reconstruct, body)

    @router.post("/routing")
    async def routing(client: Request, body: requests.RoutingRequest) -> RoutingResponse:
        """Which parts of an image support which class, for each iteration of routing."""
        return await queue.run(client, explorer.routing, body)

    @router.post("/lattice")
    async def lattice(client: Request, body: requests.LatticeRequest) -> responses.LatticeResponse:
        """The length of each class capsule in each view of an image, for models of kind `poses`."""
        return await queue.run(client, explorer.lattice, body)

    @router.post("/transform")
    async def transform(client: Request, body: requests.TransformRequest) -> responses.TransformResponse:
        """How predictions change when the image is rotated, moved, scaled or sheared."""
        return await queue.run(client, explorer.transform, body)

    @router.post("/shapes")
    async def shapes(client: Request, body: requests.ShapesRequest) -> ShapesResponse:
        """Boats and houses that placed rectangles and triangles vote for, whatever model is served."""
        return await small.run(client, find_wholes, body)

    return router


class _StrictRequest(Request):
    """Parses JSON with a parser that accepts at most 200 levels and rejects NaN and Infinity."""

    async def json(self) -> Any:
        try:
            body = from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is not valid JSON: {error}") from None
        if requests.too_many_fields(body):
            raise HTTPException(422, f"an object has more than {requests.MAX_FIELDS} fields")
        return body


class _StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict_handler(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict_handler


def _error(status: int, detail: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers)


def _user_error(request: Request, error: Exception) -> Response:
    return _error(422, str(error))


def _validation_error(request: Request, error: Exception) -> Response:
    """Report the first error and the path of its field; of the client's own text, only a few printable characters."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    loc = first["loc"][1:]  # without "body"
    path = ".".join(str(part) for part, parent in zip(loc, ("", *loc)) if parent not in requests.IMAGE_FIELDS)
    path = "".join(letter if letter.isprintable() else "�" for letter in path[:MAX_PATH_CHARACTERS])
    return _error(422, f"{path}: {first['msg']}" if path else first["msg"])


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, str(error.detail), error.headers)


def _internal_error(request: Request, error: Exception) -> Response:
    return _error(500, "internal server error; see the server's terminal for details")
