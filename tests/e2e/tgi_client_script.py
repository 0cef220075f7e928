"""TGI's own client at work; run by `test_tgi_client` in the environment that its old pins need.

Takes the base URL and the key; writes what came of each call as one JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from text_generation import Client  # type: ignore[import-not-found]
from text_generation.errors import ValidationError  # type: ignore[import-not-found]

PROMPT = "The capital of France is"


def main() -> None:
    base_url, key = sys.argv[1:]
    client = Client(base_url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
    whole = client.generate(PROMPT, max_new_tokens=6, decoder_input_details=False)
    events = list(client.generate_stream(PROMPT, max_new_tokens=6))
    try:
        client.generate(PROMPT, max_new_tokens=100_000)
        refusal = "none"
    except ValidationError as error:
        refusal = str(error)
    chat = client.chat(messages=[{"role": "user", "content": "Say hi"}], max_tokens=4)
    found: dict[str, Any] = {
        "text": whole.generated_text,
        "generated_tokens": whole.details.generated_tokens,
        "finish_reason": whole.details.finish_reason.value,
        "streamed": "".join(event.token.text for event in events),
        "final": events[-1].generated_text,
        "refusal": refusal,
        "chat": chat.choices[0].message.content,
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
