"""ASGI middleware: checks the Host header and content type, limits the body, and adds the security headers."""

from __future__ import annotations

import json
from collections.abc import Sequence

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 2 << 20  # an image of 1 MiB in base64, and the JSON around it
MAX_BODY_SECONDS = 10.0  # for the whole body to arrive
MAX_DISCARDED_BYTES, MAX_DISCARD_SECONDS = 16 << 20, 2.0  # still read from a body that was rejected
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), usb=(), payment=()",
    "cache-control": "no-cache",
}


class RequestRejected(Exception):
    def __init__(self, status: int, detail: str):
        self.status, self.detail = status, detail


class SecurityMiddleware:
    """Reads the whole body, up to its limit, before the application sees the request.

    Args:
        app: The application to wrap.
        hosts: Host names to accept in the Host header, on any port; None accepts all.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None = None):
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            headers = Headers(scope=scope)
            self._check_host(headers.get("host", ""))
            if scope["method"] == "POST":
                _check_content_type(headers.get("content-type", ""))
            body = await _read_body(headers, receive)
        except RequestRejected as error:
            await _send_error(error, receive, send_with_headers)
            return
        if body is None:  # the client disconnected
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, replay, send_with_headers)

    def _check_host(self, host: str) -> None:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.hosts is not None and name.lower() not in self.hosts:
            raise RequestRejected(400, "the Host header names another machine; this server accepts only localhost")


def _check_content_type(content_type: str) -> None:
    """Require JSON. Another site can send text and forms here, but JSON only after a CORS preflight, which fails."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise RequestRejected(415, "the Content-Type must be application/json")


async def _read_body(headers: Headers, receive: Receive) -> bytes | None:
    """Read the body and count its bytes, because Content-Length may be missing or wrong."""
    too_large = RequestRejected(413, f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")
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
        raise RequestRejected(408, f"the body did not arrive within {MAX_BODY_SECONDS:.0f} seconds") from None
    return bytes(body)


async def _send_error(error: RequestRejected, receive: Receive, send: Send) -> None:
    body = json.dumps({"detail": error.detail}).encode()
    # Close the connection: otherwise the rest of this body would be parsed as the next request.
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await _discard(receive)
    await send({"type": "http.response.body", "body": b""})


async def _discard(receive: Receive) -> None:
    """Read the rest of a rejected body: most clients send all of it before they read the response."""
    left, more = MAX_DISCARDED_BYTES, True
    with anyio.move_on_after(MAX_DISCARD_SECONDS):
        while more and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            more = message.get("more_body", False)
