"""Static files: the page and the API viewer, listed once when the server starts."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException

HERE = Path(__file__).parent
READ_METHODS = ["GET", "HEAD"]
SWAGGER_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png")


def file_routes() -> APIRouter:
    """Routes for static files. A client's path is only looked up in a list, never opened."""
    page, viewer = _listed(HERE / "static"), _listed(HERE / "viewer")
    swagger = Path(str(resources.files("fastapi_swagger.resources")))
    viewer |= {name: swagger / name for name in SWAGGER_FILES}
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=READ_METHODS)
    def index() -> Response:
        return _send(page, "index.html")

    @router.api_route("/static/{name:path}", methods=READ_METHODS)
    def static(name: str) -> Response:
        return _send(page, name)

    @router.api_route("/docs", methods=READ_METHODS)
    def docs() -> Response:
        return _send(viewer, "index.html")

    @router.api_route("/docs/{name}", methods=READ_METHODS)
    def docs_file(name: str) -> Response:
        return _send(viewer, name)

    return router


def _listed(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _send(files: dict[str, Path], name: str) -> Response:
    if name not in files:
        raise HTTPException(404, "no such file")
    return FileResponse(files[name])
