"""What this server says it serves: `/v1/models` and TGI's `/info`, from plain values.

Knows no policy and no backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from gateway.dialects.base import Reply
from gateway.dialects.tgi_fields import MAX_BEST_OF, MAX_STOP_SEQUENCES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One public model. `max_model_len` is 0 when unknown."""

    id: str
    root: str  # the model behind the name
    created_s: int
    max_model_len: int


def models_reply(cards: Sequence[ModelCard]) -> Reply:
    """`GET /v1/models`."""
    return Reply(body=orjson.dumps({"object": "list", "data": [_card(card) for card in cards]}))


def model_reply(card: ModelCard) -> Reply:
    """`GET /v1/models/{id}`."""
    return Reply(body=orjson.dumps(_card(card)))


def info_reply(
    *,
    model_id: str,
    max_model_len: int,
    max_concurrent_requests: int,
    version: str,
    deterministic: bool,
) -> Reply:
    """`GET /info`. One prompt a request and no validation processes: this server has neither.

    `deterministic` is ours: whether the same request yields the same tokens, whatever else runs.
    """
    return Reply(
        body=orjson.dumps(
            {
                "model_id": model_id,
                "model_sha": None,
                "model_pipeline_tag": "text-generation",
                "max_concurrent_requests": max_concurrent_requests,
                "max_best_of": MAX_BEST_OF,
                "max_stop_sequences": MAX_STOP_SEQUENCES,
                "max_input_tokens": max(max_model_len - 1, 0),
                "max_total_tokens": max_model_len,
                "validation_workers": 1,
                "max_client_batch_size": 1,
                "router": "text-generation-router",  # by which clients know the wire
                "version": version,
                "sha": None,
                "docker_label": None,
                "deterministic": deterministic,
            }
        )
    )


def _card(card: ModelCard) -> dict[str, object]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created_s,
        "owned_by": "turnout",
        "root": card.root,
        "parent": None,
        "max_model_len": card.max_model_len or None,
        "permission": [],
    }
