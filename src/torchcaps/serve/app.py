"""The explorer as a web application: routes, and what each of them may answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from torchcaps._version import __version__
from torchcaps.errors import UserError
from torchcaps.serve import answers, requests
from torchcaps.serve.explorer import Explorer
from torchcaps.serve.guard import Guard

STATIC = Path(__file__).parent / "static"
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": answers.Problem, "description": "The body is no JSON, or the Host header names another machine."},
    413: {"model": answers.Problem, "description": "The body is larger than 2 MiB."},
    415: {"model": answers.Problem, "description": "The body is not declared as application/json."},
    422: {"model": answers.Problem, "description": "A field is missing, unknown, out of range, or no picture."},
}


def create_app(explorer: Explorer, hosts: Sequence[str] | None = LOOPBACK) -> FastAPI:
    """The page, its API and its documentation.

    hosts  names that a Host header may have; None for any. Without this check, a page of another site could have its
           own name lead to 127.0.0.1, and read what is served here.
    """
    app = FastAPI(title="torchcaps explorer", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, hosts=hosts)
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)

    @app.get("/healthz", tags=["server"])
    def healthz() -> answers.Health:
        """Whether the server is there."""
        return answers.Health(version=__version__)

    @app.get("/api/model", tags=["models"])
    def model() -> answers.ModelsAnswer:
        """The networks that can be asked, and all there is to know about them."""
        return explorer.models()

    @app.post("/api/predict", tags=["questions"], responses=PROBLEMS)
    def predict(request: requests.PredictRequest) -> answers.PredictAnswer:
        """How present each class is in a picture, and the picture as its capsules describe it."""
        return explorer.predict(request)

    @app.post("/api/reconstruct", tags=["questions"], responses=PROBLEMS)
    def reconstruct(request: requests.ReconstructRequest) -> answers.ReconstructAnswer:
        """The picture that a pose stands for."""
        return explorer.reconstruct(request)

    @app.post("/api/routing", tags=["questions"], responses=PROBLEMS)
    def routing(request: requests.RoutingRequest) -> answers.RoutingAnswer:
        """Which parts of a picture speak for which class, iteration by iteration."""
        return explorer.routing(request)

    @app.post("/api/transform", tags=["questions"], responses=PROBLEMS)
    def transform(request: requests.TransformRequest) -> answers.TransformAnswer:
        """What becomes of the answers when the picture is turned, moved, scaled or slanted."""
        return explorer.transform(request)

    # The files are listed once: a client's path is a key to look up, and never a path to open.
    files = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}

    @app.get("/static/{name:path}", include_in_schema=False)
    def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        return FileResponse(files[name])

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return static("index.html")

    return app


def _problem(status: int, sentence: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"detail": sentence}, status, headers)


def _user_error(request: Request, error: Exception) -> Response:
    return _problem(422, str(error))


def _invalid(request: Request, error: Exception) -> Response:
    """The first thing that is wrong, and where; what the client sent is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return _problem(422, f"{place}: {first['msg']}" if place else first["msg"])


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = f"there is no {request.url.path}" if error.status_code == 404 else str(error.detail)
    return _problem(error.status_code, sentence, error.headers)
