"""The web server of `blackout demo`, for browsers on this machine only.

Other sites' pages can send requests to this machine. Only requests for this machine's own names are
answered, and their number, size and duration are limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from blackout.cli.local_requests import HOST, is_local_request
from blackout.errors import UserError

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_CONNECTIONS = 64  # at the same time; a page holds a few
MAX_HEADER_BYTES = 1 << 16  # of a request
MAX_BODY_BYTES = 1 << 23  # of a request; the picture that is drawn into has far less
SILENT_SECONDS = 10.0  # in which the head of a request, and each part of its body, must arrive
FORBIDDEN = 403
TOO_LARGE = 413
TIMED_OUT = 408


def serve(page: Any, port: int) -> None:
    """Serve a page of Gradio on 127.0.0.1 until Ctrl-C.

    Raises:
        UserError: the port cannot be used.
    """
    import fastapi
    import gradio
    import uvicorn

    application = gradio.mount_gradio_app(
        fastapi.FastAPI(), page, path="", footer_links=[], max_file_size=MAX_BODY_BYTES
    )
    config = uvicorn.Config(
        LocalRequests(application, port),
        host=HOST,
        port=port,
        log_level="warning",
        http=_limited_protocol(),
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        limit_concurrency=MAX_CONNECTIONS,
    )
    try:
        listener = config.bind_socket()
    except (SystemExit, OverflowError) as error:  # uvicorn ends the process where a port is taken
        raise UserError(
            f"--port {port} is in use, or is not from 0 to 65535: choose another port"
        ) from error
    print(f"http://{HOST}:{port}/ shows the demo; Ctrl-C stops the server", flush=True)
    uvicorn.Server(config).run([listener])


def _limited_protocol() -> Any:
    """Return uvicorn's HTTP protocol, which also closes connections without a whole request."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class LimitedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.loop.call_later(SILENT_SECONDS, self._close_without_request)

        def _close_without_request(self) -> None:
            if self.cycle is None:
                self.transport.close()

    return LimitedProtocol


class LocalRequests:
    """An ASGI application that passes on what a browser on this machine asks its own page for.

    Args:
        application: the ASGI application that answers.
        port: of the server, which is part of its origin.
    """

    def __init__(self, application: Application, port: int) -> None:
        self._application = application
        self._port = port

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer an HTTP request; `lifespan` messages come from the server itself."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        length = headers.get(b"content-length", "0")
        is_local = is_local_request(host, headers.get(b"origin"), self._port)
        if scope["type"] != "http" or not is_local:
            await _answer(scope, send, FORBIDDEN)
        elif not _is_allowed_length(length):
            await _answer(scope, send, TOO_LARGE)
        else:
            await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let the application answer, within the limits of size and time of the body."""
        num_bytes = 0
        is_whole = False
        has_started = False

        async def limited_receive() -> Message:
            nonlocal num_bytes, is_whole
            if is_whole:  # what follows is the end of the connection, whenever it comes
                return await receive()
            async with asyncio.timeout(SILENT_SECONDS):
                message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > MAX_BODY_BYTES:
                raise _BodyTooLargeError
            is_whole = not message.get("more_body", False)
            return message

        async def noted_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._application(scope, limited_receive, noted_send)
        except (TimeoutError, _BodyTooLargeError) as error:
            if not has_started:
                status = TIMED_OUT if isinstance(error, TimeoutError) else TOO_LARGE
                await _answer(scope, send, status)


def _is_allowed_length(text: str) -> bool:
    """Return whether the announced length of a body is a number that is not too large."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_BODY_BYTES))
    return is_number and int(text) <= MAX_BODY_BYTES


class _BodyTooLargeError(Exception):
    """The body of a request has more bytes than it may have."""


async def _answer(scope: Message, send: Send, status: int) -> None:
    """Answer with a status and nothing else."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
