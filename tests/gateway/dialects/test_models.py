from __future__ import annotations

import json

from openai.types import Model

from gateway.dialects.models import ModelCard, info_reply, model_reply, models_reply

CARD = ModelCard(id="chat", root="SmolLM2-135M-Instruct", created_s=5, max_model_len=8192)


def test_a_card_has_openai_s_fields_and_vllm_s() -> None:
    card = json.loads(model_reply(CARD).body)
    assert card == {
        "id": "chat",
        "object": "model",
        "created": 5,
        "owned_by": "turnout",
        "root": "SmolLM2-135M-Instruct",
        "parent": None,
        "max_model_len": 8192,
        "permission": [],
    }
    Model.model_validate(card, strict=True)


def test_the_list_holds_every_card() -> None:
    document = json.loads(models_reply([CARD, CARD]).body)
    assert document["object"] == "list"
    assert document["data"] == [json.loads(model_reply(CARD).body)] * 2


def test_an_unknown_context_is_null() -> None:
    card = ModelCard(id="a", root="b", created_s=0, max_model_len=0)
    assert json.loads(model_reply(card).body)["max_model_len"] is None


def test_info_leaves_room_for_one_token() -> None:
    reply = info_reply(
        model_id="m",
        max_model_len=8192,
        max_concurrent_requests=16,
        version="0.1.0",
        deterministic=True,
    )
    info = json.loads(reply.body)
    assert (info["max_input_tokens"], info["max_total_tokens"]) == (8191, 8192)
    assert (info["max_best_of"], info["max_stop_sequences"]) == (2, 4)
    assert info["max_concurrent_requests"] == 16
    assert info["deterministic"] is True
