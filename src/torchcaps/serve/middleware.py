"""What stands before the application: whose name is asked for, how much is read, and what every answer declares."""

from __future__ import annotations

import json
from collections.abc import Sequence

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 2 << 20  # of a body: a picture of 1 MiB in base64, and room for the JSON around it
MAX_BODY_SECONDS = 10.0  # that a client may take to send it
REST_BYTES, REST_SECONDS = 16 << 20, 2.0  # of a body that was refused: how much is still read
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), usb=(), payment=()",
    "cache-control": "no-cache",
}


class Refused(Exception):
    def __init__(self, status: int, sentence: str):
        self.status, self.sentence = status, sentence


class Guard:
    """The whole body is read here, up to its limit, so that nothing behind has to think of it.

    hosts  names that a Host header may have, whatever the port; None for any
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None = None):
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def declare(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_host(headers.get("host", ""))
            if scope["method"] == "POST":
                _check_type(headers.get("content-type", ""))
            body = await _read(headers, receive)
        except Refused as refusal:
            await _answer(refusal, receive, declare)
            return
        if body is None:  # the client went away
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, replay, declare)

    def _check_host(self, host: str) -> None:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.hosts is not None and name.lower() not in self.hosts:
            raise Refused(400, "the Host header names another machine: this server answers to localhost only")


def _check_type(declared: str) -> None:
    """A page of another site can send plain text and forms without asking; to send JSON it would have to ask."""
    if declared.partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "the body must be declared as application/json")


async def _read(headers: Headers, receive: Receive) -> bytes | None:
    """The body, however it is sent: Content-Length may be missing or lie, so what arrives is counted."""
    too_large = Refused(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > MAX_BODY_BYTES:
        raise too_large
    body, more = bytearray(), True
    try:
        with anyio.fail_after(MAX_BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {MAX_BODY_SECONDS:.0f} seconds") from None
    return bytes(body)


async def _answer(refusal: Refused, receive: Receive, send: Send) -> None:
    body = json.dumps({"detail": refusal.sentence}).encode()
    # The rest of the body is not wanted: without `close` the next request would begin in the middle of it.
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await _discard(receive)
    await send({"type": "http.response.body", "body": b""})


async def _discard(receive: Receive) -> None:
    """Most clients send all before they read anything. To hang up on what they send would lose them the answer."""
    left, more = REST_BYTES, True
    with anyio.move_on_after(REST_SECONDS):
        while more and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            more = message.get("more_body", False)
