"""A worker's word to its controller: who it is, and that it is there.

It registers, and then says every `interval_s` how many requests it has. A controller that has
forgotten it, since it was started again or heard nothing for too long, is told anew; one that does
not answer is asked again every `RETRY_S`, for ever. A worker whose engine is not ready says
nothing, so that a controller that waits in vain sends it nobody.

Knows no backend. Source: FastChat 0.2.36, `serve/base_model_worker.py` and `serve/controller.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import httpx

logger = logging.getLogger(__name__)

DEFAULT_INTERVAL_S = 45.0
"""FastChat's; its controller forgets whoever it has not heard from for 90 s."""

RETRY_S = 5.0
REPLY_TIMEOUT_S = 5.0


class Told(Protocol):
    """What is said of a worker."""

    async def is_ready(self) -> bool: ...

    def status(self) -> Mapping[str, object]:
        """`model_names`, `speed` and `queue_length`."""
        ...


class Heartbeat:
    """One worker at one controller."""

    def __init__(
        self,
        worker: Told,
        http: httpx.AsyncClient,
        *,
        controller_address: str,
        worker_address: str,
        interval_s: float = DEFAULT_INTERVAL_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """worker_address: the URL under which the controller's clients reach the worker."""
        self._worker = worker
        self._http = http
        self._controller_address = controller_address.rstrip("/")
        self._worker_address = worker_address
        self._interval_s = interval_s
        self._sleep = sleep
        self._is_known = False
        self._trouble = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._is_known = await self._tell()
            await self._sleep(
                self._interval_s if self._is_known else min(RETRY_S, self._interval_s)
            )

    async def _tell(self) -> bool:
        """Whether the controller knows the worker now."""
        if not await self._worker.is_ready():
            return False
        try:
            if not (self._is_known and await self._beat()):
                await self._register()
        except (httpx.HTTPError, ValueError) as error:  # ValueError: the answer is no JSON
            self._complain(f"{type(error).__name__}: {error}")
            return False
        self._trouble = ""
        return True

    async def _register(self) -> None:
        await self._post(
            "/register_worker",
            {
                "worker_name": self._worker_address,
                "check_heart_beat": True,
                "worker_status": self._worker.status(),
                "multimodal": False,
            },
        )
        logger.info("registered %s with %s", self._worker_address, self._controller_address)

    async def _beat(self) -> bool:
        """Whether the controller knew the worker."""
        response = await self._post(
            "/receive_heart_beat",
            {
                "worker_name": self._worker_address,
                "queue_length": self._worker.status()["queue_length"],
            },
        )
        answer: object = response.json()
        if answer not in ({"exist": True}, {"exist": False}):
            raise ValueError(f"{response.url} answered {response.text[:100]!r}")
        return answer == {"exist": True}

    async def _post(self, path: str, body: Mapping[str, object]) -> httpx.Response:
        response = await self._http.post(
            self._controller_address + path, json=body, timeout=REPLY_TIMEOUT_S
        )
        return response.raise_for_status()

    def _complain(self, trouble: str) -> None:
        """Once for each kind of trouble, not every five seconds."""
        if trouble != self._trouble:
            logger.warning(
                "the controller %s does not answer (%s); asking again every %g s",
                self._controller_address,
                trouble,
                min(RETRY_S, self._interval_s),
            )
        self._trouble = trouble
