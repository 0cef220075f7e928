"""FastChat's own worker with a canned model; run by `test_fastchat_workers` in its environment.

Takes a port, the controller's address and a name. Answers a chat with its name and the last word of
the prompt, a word at a time. Told "hold", it says its name and then nothing; told "die", it dies.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastchat.conversation import (  # type: ignore[import-not-found]
    Conversation,
    SeparatorStyle,
)
from fastchat.serve.base_model_worker import (  # type: ignore[import-not-found]
    BaseModelWorker,
    app,
)

MODEL = "vicuna"
NUM_WORDS = 6


class Tokenizer:
    """Words are tokens."""

    def __call__(self, text: str) -> Any:
        return type("Encoded", (), {"input_ids": text.split()})


class CannedModelWorker(BaseModelWorker):  # type: ignore[misc]
    def __init__(self, port: int, controller: str, name: str) -> None:
        super().__init__(controller, f"http://localhost:{port}", name, MODEL, [MODEL], 5)
        self.tokenizer = Tokenizer()
        self.context_len = 64
        self.name = name
        self.init_heart_beat()

    def make_conv_template(self, conv_template: Any = None, model_path: Any = None) -> Any:
        return Conversation(
            name="canned",
            system_message="Be kind.",
            roles=("USER", "ASSISTANT"),
            messages=[],
            sep_style=SeparatorStyle.ADD_COLON_TWO,
            sep=" ",
            sep2="</s>",
        )

    def generate_stream_gate(self, params: dict[str, Any]) -> Iterator[bytes]:
        self.call_ct += 1
        said = params["prompt"].removesuffix("ASSISTANT:").split()
        if said[-1] == "die":
            os._exit(1)
        text = f"I am {self.name}."
        yield self._frame(text, said, 3)
        while said[-1] == "hold":
            time.sleep(0.01)
            yield self._frame(text, said, 3)
        limit = params["max_new_tokens"]
        for number, word in enumerate(itertools.repeat(said[-1], NUM_WORDS), start=4):
            if number > limit:
                break
            text += f" {word}"
            yield self._frame(text, said, number)
        yield self._frame(text, said, number, "length" if limit < number else "stop")

    def generate_gate(self, params: dict[str, Any]) -> Any:
        *_, last = self.generate_stream_gate(params)
        return json.loads(last[:-1])

    def _frame(
        self, text: str, prompt: list[str], number: int, finish_reason: str | None = None
    ) -> bytes:
        usage = {"prompt_tokens": len(prompt) + 1, "completion_tokens": number}
        body = {"text": text, "error_code": 0, "usage": usage, "finish_reason": finish_reason}
        return json.dumps(body).encode() + b"\0"


def main() -> None:
    port, controller, name = sys.argv[1:]
    CannedModelWorker(int(port), controller, name)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
