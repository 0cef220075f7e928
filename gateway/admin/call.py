"""One request to the admin API whose key was good, and how handlers read it: strictly.

A field of the body or a parameter of the query that nobody reads is an error, never ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from gateway.body import check_media_type, read_body
from gateway.call import Services
from gateway.dialects.fields import Body, read_object, validate
from gateway.errors import InvalidRequest
from gateway.networks import Address
from gateway.tenancy.tenants import AdminKey

PAGE = 100
MAX_PAGE = 1000

_BodyT = TypeVar("_BodyT", bound=Body)


@dataclass(slots=True, kw_only=True)
class AdminCall:
    """A request, who sends it, and what the audit line will say of it."""

    services: Services
    request: Request
    admin: AdminKey
    address: Address | None
    now_s: float
    target: str = ""  # what is changed; handlers add what to
    _query: dict[str, str] = field(init=False, default_factory=dict[str, str])

    def check_query(self, known: Collection[str]) -> None:
        """See that the query has nothing but `known`, each once.

        Raises:
            InvalidRequest: names the parameter.
        """
        for name, value in self.request.query_params.multi_items():
            if name not in known:
                raise _unknown("parameter", name, known)
            if name in self._query:
                raise InvalidRequest(f"{name} is given twice; give it once.", param=name)
            self._query[name] = value

    def path(self, name: str) -> str:
        """A part of the path."""
        value: str = self.request.path_params[name]
        return value

    def query(self, name: str, default: str = "") -> str:
        """A parameter of the query; `default` if it is not there, or empty."""
        return self._query.get(name) or default

    def page_size(self) -> int:
        """How many to list: the parameter `limit`.

        Raises:
            InvalidRequest: it is no number from 1 to `MAX_PAGE`.
        """
        text = self.query("limit", str(PAGE))
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= MAX_PAGE):
            raise InvalidRequest(f"limit must be a number from 1 to {MAX_PAGE}.", param="limit")
        return int(text)

    async def body(self, model: type[_BodyT]) -> _BodyT:
        """The body as `model` has it; none at all is an empty object.

        Raises:
            InvalidRequest: it does not fit, or has fields that `model` does not know.
            ClientGone: the client left.
        """
        raw = await self._raw_body()
        if raw:
            check_media_type(self.request.headers)
        document = read_object(raw or b"{}")
        if unknown := [name for name in document if name not in model.model_fields]:
            raise _unknown("field", unknown[0], model.model_fields)
        return validate(model, document)

    async def no_body(self) -> None:
        """See that there is none.

        Raises:
            InvalidRequest: there is.
            ClientGone: the client left.
        """
        if await self._raw_body():
            raise InvalidRequest(
                f"{self.request.method} {self.request.url.path} takes no body; send none."
            )

    async def _raw_body(self) -> bytes:
        return await read_body(
            self.request.headers,
            self.request.receive,
            limit_bytes=self.services.body_limit_bytes,
            timeout_s=self.services.body_timeout_s,
        )


def page_of(found: Sequence[tuple[str, dict[str, object]]], size: int) -> dict[str, object]:
    """A page of a list, of what was found behind the last one: cursors, and what to show.

    found: up to `size + 1` of them. `next` is what to send as `after` for the next page, or null.
    """
    page = found[:size]
    return {
        "data": [shown for _, shown in page],
        "next": page[-1][0] if len(found) > size else None,
    }


def _unknown(kind: str, name: str, known: Collection[str]) -> InvalidRequest:
    known_ones = f"known here: {', '.join(known)}" if known else "there are none here"
    return InvalidRequest(
        f"Unknown {kind} {name[:60]!r}; {known_ones}.", param=name[:60], code="unknown_parameter"
    )
