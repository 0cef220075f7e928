"""What happens to every HTTP request before it is routed: its path is tidied, its id settled,
and web pages of others are let in where they may.

Plain ASGI callables; nothing here reads or buffers a body.
"""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.redaction import redact

SANE_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")


class TidyPath:
    """`//v1/x/` is `/v1/x`.

    Clients join base URLs carelessly, and a redirect would lose their body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = "/" + re.sub("/{2,}", "/", scope["path"]).strip("/")
        await self._app(scope, receive, send)


class PublicCors(CORSMiddleware):
    """CORS for every path but the admin API's, where no web page of others has any business."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and f"{scope['path']}/".startswith("/admin/"):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class RequestId:
    """Echoes the client's `x-request-id` if it is harmless, else makes one up.

    The id is for logs and the client's own use only: inside, requests are told apart by ids of
    ours, so that two requests with the same header never meet.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        is_harmless = SANE_ID.fullmatch(given) and redact(given) == given
        request_id = given if is_harmless else f"req_{secrets.token_hex(13)}"
        scope["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_with_id)
