"""What stands before the app: who may ask, how much at once, how long a body; and the headers of each answer."""

import asyncio
import ipaddress
import json
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import nullcontext
from typing import Any

MOST_BYTES = 20_000_000  # of an upload
MOST_WAITING = 64  # requests at once, and of uploads
MOST_UPLOADS = 4
PATIENCE = 30.0  # seconds for a body to arrive
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


class Refused(Exception):
    """A request that gets no answer but this."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class Guard:
    """An ASGI app around another.

    names: host names under which it may be asked, beside addresses. most_json: bytes that a question may have.
    """

    def __init__(self, app: App, names: frozenset[str], most_json: int) -> None:
        self.app, self.names, self.most_json = app, names | {"localhost"}, most_json
        self.questions, self.uploads = asyncio.Semaphore(MOST_WAITING), asyncio.Semaphore(MOST_UPLOADS)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def send_dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message.get("headers", [])}
                more = HEADERS if b"cache-control" in there else HEADERS | {"cache-control": "no-store"}
                message["headers"] = [
                    *message.get("headers", []),
                    *((k.encode(), v.encode()) for k, v in more.items()),
                ]
            await send(message)

        try:
            self.check_origin(scope)
            is_upload = scope["path"] == "/api/upload"
            async with place_in(self.uploads) if is_upload else nullcontext():
                body = await whole_body(scope, receive, MOST_BYTES if is_upload else self.most_json)
                async with place_in(self.questions):
                    await self.app(scope, replayed(body, receive), send_dressed)
        except Refused as refused:
            await answer(send_dressed, refused)
        except Exception:  # which the app has answered with 500
            traceback.print_exc()

    def check_origin(self, scope: Message) -> None:
        """Only pages of this server may ask: no other site, even one whose name was made to point here."""
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        host = headers.get("host", "")
        if not self.knows(host):
            raise Refused(
                403, "this server is not asked by that name; open the address that ibinn explore printed"
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, "another site asks; open the address that ibinn explore printed")
        is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if is_foreign and scope["path"].startswith("/api/"):
            raise Refused(403, "another site asks; open the address that ibinn explore printed")

    def knows(self, host: str) -> bool:
        """A known name or an address, with or without a port. A forged name is a name: no address can be one."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name.lower() in self.names
        return True


def place_in(room: asyncio.Semaphore) -> asyncio.Semaphore:
    """To be entered at once, or a 503: nobody waits at the door."""
    if room.locked():
        raise Refused(503, "too many requests at once; try again in a moment")
    return room


async def whole_body(scope: Message, receive: Receive, most: int) -> bytes:
    """The body, if it is short enough and comes in time. What is too long is read to its end but not kept, so
    that the client gets to hear why; up to ten times too long."""
    size, parts = 0, []
    too_long = Refused(413, f"the request has more than {most / 1e6:.3g} MB; send something smaller")
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > 10 * most:
        raise too_long
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "the request ended too early; send it again")
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
        raise Refused(
            408, f"the request took more than {PATIENCE:.0f} s to arrive; send it again"
        ) from None
    if size > most:
        raise too_long
    return b"".join(parts)


def replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, then what comes after it."""
    is_read = False

    async def again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def answer(send: Send, refused: Refused) -> None:
    body = json.dumps({"detail": refused.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
