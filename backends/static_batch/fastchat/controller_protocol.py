"""FastChat's JSON as a controller reads it, checked at the door; and the frames of an answer.

An answer is a sequence of frames, each a JSON object and a zero byte; their text is cumulative.
Members that nobody here reads are let pass, as workers may say more. Source: FastChat 0.2.36.
Knows no HTTP.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backends.static_batch.fastchat.dispatch import WorkerStatus
from backends.static_batch.fastchat.error_codes import ErrorCode

MAX_FRAME_BYTES = 1 << 24  # an answer of 128k tokens has about 600 KB

FRAME_END = b"\0"


class _Wire(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


Count = Annotated[int, Field(ge=0)]


class StatusJson(_Wire):
    """What `/worker_get_status` answers."""

    model_names: tuple[str, ...]
    speed: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    queue_length: Count

    def status(self) -> WorkerStatus:
        return WorkerStatus(**self.model_dump())


class RegisterJson(_Wire):
    """The body of `/register_worker`. Without a status the controller asks the worker for it."""

    worker_name: str  # its address
    check_heart_beat: bool
    worker_status: StatusJson | None = None
    multimodal: bool = False


class HeartBeatJson(_Wire):
    """The body of `/receive_heart_beat`."""

    worker_name: str
    queue_length: Count


class ModelJson(_Wire):
    """The body of `/get_worker_address`, and what is read of that of `/worker_generate_stream`."""

    model: str


class UsageJson(_Wire):
    """So many tokens until this frame."""

    prompt_tokens: Count
    completion_tokens: Count


class Frame(_Wire):
    """One frame of an answer. With an error code, `text` says what is wrong."""

    text: str
    error_code: int
    usage: UsageJson | None = None
    finish_reason: str | None = None


class TokenCountJson(_Wire):
    """What `/count_token` answers; a worker without a tokenizer says 0."""

    count: Count


class ModelDetailsJson(_Wire):
    """What `/model_details` answers; a worker may not know."""

    context_length: Annotated[int, Field(ge=1)] | None


class ConversationJson(_Wire):
    """A conversation template, with the turns it begins with."""

    name: str
    system_template: str
    system_message: str
    roles: tuple[str, ...] = Field(min_length=2)  # the user's, the assistant's
    messages: tuple[tuple[str, str | None], ...]
    offset: int = 0  # of the messages, those that are examples; told for those who show chats
    sep_style: int
    sep: str | None
    sep2: str | None
    stop_str: str | tuple[str, ...] | None
    stop_token_ids: tuple[int, ...] | None


class ConversationReply(_Wire):
    """What `/worker_get_conv_template` answers."""

    conv: ConversationJson


WireType = TypeVar("WireType", bound=_Wire)


class BadJson(ValueError):
    """A body or frame that is not what it should be. The message names the member."""


def parse(kind: type[WireType], body: bytes) -> WireType:
    """Raises: BadJson."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise BadJson(f"{where}: {first['msg']}") from None


def error_frame(code: ErrorCode, message: str) -> bytes:
    """A frame that ends an answer with an error."""
    return orjson.dumps({"text": message, "error_code": int(code)}) + FRAME_END


class FrameSplitter:
    """Cuts bytes, in whatever pieces they come, into frames without their end."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._begun = bytearray()

    @property
    def has_begun_a_frame(self) -> bool:
        """Whether the bytes so far end within one."""
        return bool(self._begun)

    def push(self, chunk: bytes) -> list[bytes]:
        """The frames that are complete now, but for empty ones.

        Raises:
            BadJson: one is too long.
        """
        ended, *others = chunk.split(FRAME_END)
        self._begun += ended
        frames: list[bytes] = []
        for piece in others:
            frames.append(bytes(self._begun))
            self._begun = bytearray(piece)
        if len(self._begun) > self._max_frame_bytes:
            raise BadJson(f"a frame of more than {self._max_frame_bytes} bytes")
        return [frame for frame in frames if frame]
