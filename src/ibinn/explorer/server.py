"""JSON over a loaded run: an endpoint for each question of the page, and the page itself."""

import asyncio
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Annotated, Any, TypeVar

import uvicorn
from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

import ibinn
from ibinn.data.inputs import InputForm
from ibinn.explorer import schema
from ibinn.explorer.guard import Guard
from ibinn.explorer.service import Explorer, Unknown

T = TypeVar("T")
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PORT = 8765
LONGEST = 300  # characters of a told mistake
MOST_CONNECTIONS = 300
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Problem} for status in (400, 403, 404, 408, 413, 422, 503)
}
IMAGE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}}}
BINARY = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


def make_app(explorer: Explorer, names: frozenset[str] = frozenset()) -> Guard:
    """The app behind its guard."""
    app = FastAPI(
        title="ibinn explore",
        description="Questions about one trained model. Nothing is kept between two of them.",
        version=ibinn.__version__,
        docs_url=None,
        redoc_url=None,
        responses=PROBLEMS,
    )
    app.add_exception_handler(RequestValidationError, told_mistake)
    add_page(app)
    model, pictures = Desk(), Desk()
    add_run(app, explorer, model, pictures)
    add_questions(app, explorer, model, pictures)
    return Guard(app, names, room_for(explorer.form))


def add_page(app: FastAPI) -> None:
    """The files of the page, read once: nothing else of the disk can be asked for."""
    for file in files("ibinn.explorer").joinpath("static").iterdir():
        content, suffix = file.read_bytes(), file.name[file.name.rfind(".") :]
        path = "/" if file.name == "index.html" else f"/static/{file.name}"
        app.add_api_route(
            path, as_is(content, KINDS[suffix]), include_in_schema=False, methods=["GET", "HEAD"]
        )


def as_is(content: bytes, kind: str) -> Callable[[], Response]:
    def give() -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return give


class Desk:
    """Where questions wait: one thread, since there is one model. A mistake becomes its sentence."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)

    async def ask(self, answer: Callable[..., T], *question: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, answer, *question)
        except Unknown as error:
            raise HTTPException(404, shortened(str(error))) from error
        except ValueError as error:
            raise HTTPException(422, shortened(str(error))) from error


def add_run(app: FastAPI, explorer: Explorer, model: Desk, pictures: Desk) -> None:
    """What there is to look at."""

    @app.get("/api/about")
    async def about() -> schema.About:
        return explorer.about

    @app.get("/api/map")
    async def map_part(
        start: Annotated[int, Query(ge=0)] = 0,
        count: Annotated[int, Query(ge=1, le=schema.MOST_POINTS)] = schema.MOST_POINTS,
    ) -> schema.MapPart:
        return await model.ask(explorer.map_part, start, count)

    @app.get("/api/inputs/{index}.png", response_class=Response, responses=IMAGE)
    async def picture(index: Annotated[int, Path(ge=0)]) -> Response:
        return Response(await pictures.ask(explorer.picture, index), media_type="image/png")

    @app.get("/api/samples")
    async def samples(
        label: Annotated[int, Query(ge=0, description="the number of the class")],
        n: Annotated[int, Query(ge=1, le=schema.MOST_SAMPLES)] = 24,
        temperature: Annotated[float, Query(ge=0, le=3)] = 1.0,
        seed: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    ) -> schema.Way:
        return await model.ask(explorer.samples, label, n, temperature, seed)

    @app.get("/api/quality")
    async def quality() -> schema.Quality:
        return await pictures.ask(explorer.quality)


def add_questions(app: FastAPI, explorer: Explorer, model: Desk, pictures: Desk) -> None:
    """What the model makes of an input."""

    @app.post("/api/upload", openapi_extra={"requestBody": {"required": True, **BINARY}})
    async def upload(request: Request) -> schema.Upload:
        return await pictures.ask(explorer.upload, await request.body())

    @app.post("/api/decision")
    async def decision(ask: schema.AskDecision) -> schema.Decision:
        return await model.ask(explorer.decision, ask.input)

    @app.post("/api/evidence")
    async def evidence(ask: schema.AskEvidence) -> schema.Evidence:
        return await model.ask(explorer.evidence, ask.input, ask.a, ask.b)

    @app.post("/api/interpolation")
    async def interpolation(ask: schema.AskInterpolation) -> schema.Way:
        return await model.ask(explorer.interpolation, ask.start, ask.end, ask.steps)

    @app.post("/api/drift")
    async def drift(ask: schema.AskDrift) -> schema.Way:
        return await model.ask(explorer.drift, ask.input, ask.kind, ask.steps)


def told_mistake(request: Request, error: Exception) -> JSONResponse:
    """What does not fit the schema, without the values themselves: not all can be sent back."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:] if part != "body")
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid" or (first["type"] == "model_attributes_type" and not where):
        where, text = "", "the body is no JSON object; send one, as application/json"
    return JSONResponse({"detail": shortened(f"{where}: {text}" if where else text)}, 422)


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def room_for(form: InputForm) -> int:
    """Bytes that a question may have: two inputs, and some more."""
    return 100_000 + 2 * (3 if form.is_images else 30) * form.n_values


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket; without a port the usual one, or any where that is taken."""
    if not host:
        raise ValueError("--host is empty; leave it out, or give an address")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in (PORT, 0) if port is None else (port,):
        sock = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":  # elsewhere it would let two servers share a port
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
    """Answer until Ctrl-C."""
    config = uvicorn.Config(
        app,
        log_level="critical",  # the guard tells of errors, and being stopped is none
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
        limit_concurrency=MOST_CONNECTIONS,
    )
    uvicorn.Server(config).run(sockets=[sock])
