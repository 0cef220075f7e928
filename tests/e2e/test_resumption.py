"""An engine that is killed under its streams, and another of the same model beside it."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.e2e.policies import NATIVE
from tests.e2e.running import MODEL_FILE, Server, serving
from tests.e2e.streaming import Answer, stream_chat
from tests.e2e.test_load import PATIENCE_S, POLL_S, client_of, gauge

NUM_STREAMS = 16
PAIR = NATIVE.replace(
    "models:\n", f"  spare: {{engine: native, model: {MODEL_FILE}}}\nmodels:\n"
).replace("use: smollm2}", "use: smollm2, fallback: [spare]}")


def body_of(number: int) -> dict[str, object]:
    """Greedy, so that each has one right answer; of different lengths, in prompt and answer."""
    prompt = f"Tell me about the number {number}. " + "Be brief. " * number
    return {
        "model": "smollm2",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": 40 + 5 * (number % 4),
        "ignore_eos": True,
    }


async def test_streams_go_on_when_their_engine_is_killed() -> None:
    """R-MIDSTREAM-DUP: every client has the whole answer, to the letter, in one stream."""
    with serving(PAIR) as server:
        async with client_of(server) as client:
            running = [
                asyncio.create_task(stream_chat(client, body_of(number)))
                for number in range(NUM_STREAMS)
            ]
            async with asyncio.timeout(PATIENCE_S):
                while await gauge(client, "vllm:generation_tokens_total") < 10 * NUM_STREAMS:
                    await asyncio.sleep(POLL_S)
            os.kill(engine_of(server, "smollm2.sock"), signal.SIGKILL)
            answers = await asyncio.gather(*running)
            assert await gauge(client, 'turnout_attempts_total{backend="spare"') >= NUM_STREAMS / 2
            for number, answer in enumerate(answers):
                assert answer.is_done, answer.error
                undisturbed: Answer = await stream_chat(client, body_of(number))
                assert answer == undisturbed


def engine_of(server: Server, socket: str) -> int:
    (pid,) = server.pids(socket)
    return pid
