"""In front of the app: checks of host and origin, limits of requests and bodies, headers of each response."""

import asyncio
import ipaddress
import json
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import nullcontext
from typing import Any

MAX_UPLOAD = 20_000_000  # bytes
MAX_REQUESTS = 64  # at once
MAX_UPLOADS = 4  # at once
BODY_TIMEOUT = 30.0  # seconds
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Refusal(Exception):
    """A request that the app does not see: the status and one sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Guard:
    """An ASGI app around another.

    Parameters
    ----------
    app
        The app to guard.
    names
        Host names of this server besides localhost. Addresses are always accepted.
    max_json
        Bytes of a request that is not an upload.
    """

    def __init__(self, app: App, names: frozenset[str], max_json: int) -> None:
        self.app, self.names, self.max_json = app, names | {"localhost"}, max_json
        self.requests, self.uploads = asyncio.Semaphore(MAX_REQUESTS), asyncio.Semaphore(MAX_UPLOADS)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", [])}
                more = HEADERS if b"cache-control" in present else HEADERS | {"cache-control": "no-store"}
                message["headers"] = [
                    *message.get("headers", []),
                    *((k.encode(), v.encode()) for k, v in more.items()),
                ]
            await send(message)

        try:
            self.check_origin(scope)
            is_upload = scope["path"] == "/api/upload"
            async with if_free(self.uploads) if is_upload else nullcontext():
                body = await read_body(scope, receive, MAX_UPLOAD if is_upload else self.max_json)
                async with if_free(self.requests):
                    await self.app(scope, replay(body, receive), send_with_headers)
        except Refusal as refusal:
            await send_refusal(send_with_headers, refusal)
        except Exception:  # the app has already responded with 500
            traceback.print_exc()

    def check_origin(self, scope: Message) -> None:
        """Only pages of this server may send requests: no other site, not even through a name that points here."""
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        host = headers.get("host", "")
        if not self.is_own(host):
            raise Refusal(
                403, "this server does not have that name; open the address that ibinn explore printed"
            )
        origin = headers.get("origin")
        is_foreign = origin is not None and origin.partition("://")[2] != host
        is_cross_site = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if is_foreign or (is_cross_site and scope["path"].startswith("/api/")):
            raise Refusal(
                403, "the request comes from another site; open the address that ibinn explore printed"
            )

    def is_own(self, host: str) -> bool:
        """A known name or an address, with or without a port. DNS rebinding needs a name, never an address."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name.lower() in self.names
        return True


def if_free(semaphore: asyncio.Semaphore) -> asyncio.Semaphore:
    """The semaphore; a 503 where entering it would wait."""
    if semaphore.locked():
        raise Refusal(503, "too many requests at once; try again in a moment")
    return semaphore


async def read_body(scope: Message, receive: Receive, most: int) -> bytes:
    """The body, if it is short enough and arrives in time.

    A body of up to ten times the limit is read to its end and dropped: a client reads no response before it has
    sent its body.
    """
    size, parts = 0, []
    too_long = Refusal(413, f"the request has more than {most / 1e6:.3g} MB; send something smaller")
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > 10 * most:
        raise too_long
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the request ended too early; send it again")
                part = message.get("body", b"")
                size += len(part)
                if size <= most:
                    parts.append(part)
                else:
                    parts.clear()
                if size > 10 * most:
                    raise too_long
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Refusal(
            408, f"the request took more than {BODY_TIMEOUT:.0f} s to arrive; send it again"
        ) from None
    if size > most:
        raise too_long
    return b"".join(parts)


def replay(body: bytes, receive: Receive) -> Receive:
    """The body again, then the messages after it."""
    is_read = False

    async def next_message() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message


async def send_refusal(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refusal.status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
