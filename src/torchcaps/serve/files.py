"""The page and the viewer of the API's description, as files that were listed when the server started."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException

HERE = Path(__file__).parent
READ = ["GET", "HEAD"]
SWAGGER = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png")


def file_routes() -> APIRouter:
    """A client's path is a key to look up, and never a path to open."""
    page, viewer = _listed(HERE / "static"), _listed(HERE / "viewer")
    swagger = Path(str(resources.files("fastapi_swagger.resources")))
    viewer |= {name: swagger / name for name in SWAGGER}
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=READ)
    def index() -> Response:
        return _send(page, "index.html")

    @router.api_route("/static/{name:path}", methods=READ)
    def static(name: str) -> Response:
        return _send(page, name)

    @router.api_route("/docs", methods=READ)
    def docs() -> Response:
        return _send(viewer, "index.html")

    @router.api_route("/docs/{name}", methods=READ)
    def docs_file(name: str) -> Response:
        return _send(viewer, name)

    return router


def _listed(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _send(files: dict[str, Path], name: str) -> Response:
    if name not in files:
        raise HTTPException(404, "there is no such file")
    return FileResponse(files[name])
