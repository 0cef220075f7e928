"""Keeps child processes alive: starts them, restarts them when they end, stops them in order.

Knows command lines and environments; what the children do, it does not know. A child never outlives
the supervisor, not even one that is killed (Linux: prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One process to keep alive.

    `environment` is added to the supervisor's own; `pass_fds` are open files that it inherits.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    pass_fds: tuple[int, ...] = ()
    stop_timeout_s: float = 30.0  # from SIGTERM until SIGKILL
    on_exit: Callable[[int], None] | None = None  # takes the pid of each of its lives that ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before a restart: doubled from `first_s` to `max_s`."""

    first_s: float = 0.2
    max_s: float = 10.0
    reset_after_s: float = 30.0  # a child that lived so long begins anew

    def next_delay_s(self, last_delay_s: float, lived_s: float) -> float:
        """The delay after a life of `lived_s`; `last_delay_s` is 0 before the first restart."""
        if lived_s >= self.reset_after_s or not last_delay_s:
            return self.first_s
        return min(2 * last_delay_s, self.max_s)


class Supervisor:
    """Runs `stages` of children: started in order, stopped in reverse, one stage at a time.

    Runs once, in the main thread, on a loop it may take SIGTERM and SIGINT from.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[Child]],
        *,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stages = [
            [_Keeper(child, backoff or Backoff(), clock) for child in s] for s in stages
        ]
        self._stop = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Until SIGTERM or SIGINT, or until a child's first start ends with `os.EX_CONFIG`, its
        word that starting it again is of no use.

        A second signal kills at once. Returns the exit code: 0 after an ordered stop, 1 if a child
        had to be killed, `os.EX_CONFIG` (78) if one was hopeless.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            async with asyncio.TaskGroup() as group:
                for keeper in self._keepers():
                    group.create_task(self._keep(keeper))
                await self._stop.wait()
                for stage in reversed(self._stages):
                    await asyncio.gather(*(keeper.stop() for keeper in stage))
        finally:
            for keeper in self._keepers():
                keeper.kill()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        return self._exit_code or int(any(keeper.was_killed for keeper in self._keepers()))

    def _keepers(self) -> list[_Keeper]:
        return [keeper for stage in self._stages for keeper in stage]

    async def _keep(self, keeper: _Keeper) -> None:
        await keeper.run()
        if keeper.is_hopeless:
            self._exit_code = os.EX_CONFIG
            self._stop.set()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            logger.warning("%s again: killing what is left", number.name)
            for keeper in self._keepers():
                keeper.kill()
        else:
            logger.info("%s: stopping", number.name)
            self._stop.set()


class _Keeper:
    """One child through all its lives."""

    def __init__(self, child: Child, backoff: Backoff, clock: Callable[[], float]) -> None:
        self.is_hopeless = False  # by its own word, on its first start
        self.was_killed = False  # by us, because it did not stop when told
        self._child = child
        self._backoff = backoff
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Start it again and again, until it is stopped or hopeless."""
        delay_s = 0.0
        try:
            while not self._stopping.is_set():
                started_s = self._clock()
                exit_code = await self._live()
                if exit_code == os.EX_CONFIG and not delay_s:
                    self.is_hopeless = True
                    return
                delay_s = self._backoff.next_delay_s(delay_s, self._clock() - started_s)
                await self._pause(delay_s)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if it takes too long; returns when it has ended."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._ended.wait(), self._child.stop_timeout_s)
        except TimeoutError:
            logger.error("%s did not stop in %g s", self._child.name, self._child.stop_timeout_s)
            self.kill()
            await self._ended.wait()

    def kill(self) -> None:
        self._stopping.set()
        self.was_killed |= self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> bool:
        """Whether there was a process to send it to."""
        if self._process is None:
            return False
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            self._process.send_signal(number)
        return True

    async def _pause(self, delay_s: float) -> None:
        if not self._stopping.is_set():
            logger.warning("%s starts again in %.1f s", self._child.name, delay_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay_s)

    async def _live(self) -> int:
        """One life, from start to exit; returns the exit code, negative for a signal."""
        child = self._child
        try:
            self._process = await asyncio.create_subprocess_exec(
                *child.command,
                env=os.environ | child.environment,
                pass_fds=child.pass_fds,
                start_new_session=True,  # a Ctrl-C in the terminal is for the supervisor alone
                preexec_fn=_die_with(os.getpid()),
            )
        except OSError as error:
            logger.error("%s cannot start: %s", child.name, error)
            return os.EX_OSERR
        logger.info("%s started, pid %d", child.name, self._process.pid)
        if self._stopping.is_set():  # told so while it was starting
            self._signal(signal.SIGTERM)
        pid = self._process.pid
        exit_code = await self._process.wait()
        self._process = None
        if child.on_exit is not None:
            child.on_exit(pid)
        log = logger.info if self._stopping.is_set() else logger.error
        log("%s exited: %s", child.name, _describe(exit_code))
        return exit_code


def _describe(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by signal {-exit_code} ({signal.strsignal(-exit_code)})"
    return f"exit code {exit_code}"


def _die_with(parent_pid: int) -> Callable[[], None]:
    """What a child does before it becomes its command: ask to be killed when the parent ends."""

    libc = ctypes.CDLL(None)  # loaded here, since little is safe between fork and exec

    def ask() -> None:
        if sys.platform == "linux":
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:  # it ended before we could ask
            os._exit(1)

    return ask
