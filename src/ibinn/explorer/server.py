"""The explorer's HTTP server: an endpoint for each request of the page, and the page itself."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Annotated, Any, TypeVar

import uvicorn
from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

import ibinn
from ibinn.data.inputs import InputForm
from ibinn.explorer import schema
from ibinn.explorer.guard import Guard
from ibinn.explorer.service import Explorer, NotFound

Reply = TypeVar("Reply")
MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PORT = 8765
MAX_CHARACTERS = 300  # of the detail of a problem
MAX_CONNECTIONS = 300
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Problem} for status in (400, 403, 404, 408, 413, 422, 503)
}
IMAGE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}}
BINARY = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


def make_app(explorer: Explorer, names: frozenset[str] = frozenset()) -> Guard:
    """The app behind its guard."""
    app = FastAPI(
        title="ibinn explore",
        description="Questions about one trained model. The server stores nothing between requests.",
        version=ibinn.__version__,
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
    )
    app.add_exception_handler(RequestValidationError, validation_problem)
    add_page(app)
    model, files = Worker(), Worker()
    add_run(app, explorer, model, files)
    add_inputs(app, explorer, model, files)
    return Guard(app, names, body_limit(explorer.form))


def add_page(app: FastAPI) -> None:
    """The files of the page, read once at the start. No request reads other files."""
    for file in resources.files("ibinn.explorer").joinpath("static").iterdir():
        content, suffix = file.read_bytes(), file.name[file.name.rfind(".") :]
        path = "/" if file.name == "index.html" else f"/static/{file.name}"
        endpoint = file_endpoint(content, MEDIA_TYPES[suffix])
        app.add_api_route(path, endpoint, include_in_schema=False, methods=["GET", "HEAD"])


def file_endpoint(content: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def endpoint() -> Response:
        return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

    return endpoint


class Worker:
    """A thread that answers one request at a time. A ValueError becomes an HTTP error with its sentence."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)

    async def run(self, work: Callable[..., Reply], *arguments: Any) -> Reply:
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, work, *arguments)
        except NotFound as error:
            raise HTTPException(404, shorten(str(error))) from error
        except ValueError as error:
            raise HTTPException(422, shorten(str(error))) from error


def add_run(app: FastAPI, explorer: Explorer, model: Worker, files: Worker) -> None:
    """Endpoints about the run, its map and its samples."""

    @app.get("/api/about")
    async def about() -> schema.AboutReply:
        return explorer.about

    @app.get("/api/map")
    async def map_part(
        start: Annotated[int, Query(ge=0)] = 0,
        count: Annotated[int, Query(ge=1, le=schema.MAX_REPLY_POINTS)] = schema.MAX_REPLY_POINTS,
    ) -> schema.MapReply:
        return await model.run(explorer.map_part, start, count)

    @app.get("/api/inputs/{index}.png", response_class=Response, responses=IMAGE)
    async def picture(index: Annotated[int, Path(ge=0)]) -> Response:
        return Response(await files.run(explorer.picture, index), media_type="image/png")

    @app.get("/api/samples")
    async def samples(
        label: Annotated[int, Query(ge=0, description="the number of the class")],
        n: Annotated[int, Query(ge=1, le=schema.MAX_SAMPLES)] = 24,
        temperature: Annotated[float, Query(ge=0, le=3)] = 1.0,
        seed: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    ) -> schema.SeriesReply:
        return await model.run(explorer.samples, label, n, temperature, seed)

    @app.get("/api/quality")
    async def quality() -> schema.QualityReply:
        return await files.run(explorer.quality)


def add_inputs(app: FastAPI, explorer: Explorer, model: Worker, files: Worker) -> None:
    """Endpoints about single inputs."""

    @app.post("/api/upload", openapi_extra={"requestBody": {"required": True, **BINARY}})
    async def upload(request: Request) -> schema.UploadReply:
        return await files.run(explorer.codec.upload, await request.body())

    @app.post("/api/decision")
    async def decision(body: schema.DecisionRequest) -> schema.DecisionReply:
        return await model.run(explorer.decision, body.input)

    @app.post("/api/evidence")
    async def evidence(body: schema.EvidenceRequest) -> schema.EvidenceReply:
        return await model.run(explorer.evidence, body.input, body.a, body.b)

    @app.post("/api/interpolation")
    async def interpolation(body: schema.InterpolationRequest) -> schema.SeriesReply:
        return await model.run(explorer.interpolation, body.start, body.end, body.steps)

    @app.post("/api/drift")
    async def drift(body: schema.DriftRequest) -> schema.SeriesReply:
        return await model.run(explorer.drift, body.input, body.kind, body.steps)


def validation_problem(request: Request, error: Exception) -> JSONResponse:
    """The first error of a request that does not fit the schema, without its values: JSON cannot hold them all."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:] if part != "body")
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid" or (first["type"] == "model_attributes_type" and not where):
        where, text = "", "the body is not a JSON object; send one, as application/json"
    return JSONResponse({"detail": shorten(f"{where}: {text}" if where else text)}, 422)


def shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def body_limit(form: InputForm) -> int:
    """Bytes of a JSON request: room for two inputs, and some more."""
    return 100_000 + 2 * (3 if form.is_images else 30) * form.n_values


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket. Without a port: 8765, or a free one where that is in use."""
    if not host:
        raise ValueError("--host is empty; leave it out, or give an address")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in (PORT, 0) if port is None else (port,):
        sock = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":  # on Windows two servers could share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, number))
            sock.listen()
            return sock
        except (OSError, OverflowError) as error:
            sock.close()
            reason = error
    raise ValueError(f"cannot listen on {host}, port {number} ({reason}); give another --host or --port")


def serve(app: Guard, sock: socket.socket) -> None:
    """Serve until Ctrl-C."""
    config = uvicorn.Config(
        app,
        log_level="critical",  # the guard prints errors; a shutdown is not one
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
        limit_concurrency=MAX_CONNECTIONS,
    )
    uvicorn.Server(config).run(sockets=[sock])
