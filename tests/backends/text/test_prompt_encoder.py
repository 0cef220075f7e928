from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from backends.errors import BackendRejected
from backends.text.folder_tokenizer import read_folder
from backends.text.prompt_encoder import PromptEncoder
from backends.text.tokenizer import Tokenizer, load_tokenizer
from backends.types import ChatPrompt, Message, Prompt, TextPrompt, TokenPrompt
from tests.backends.text.tiny import CHATML, IM_START, save_folder, save_gguf

BOS_WRITING = "{{ bos_token }}" + CHATML
DATED = "{{ strftime_now('%d %b') }}{{ messages[0].content }}"


def midnight() -> datetime:
    return datetime(2026, 7, 26, tzinfo=UTC)


def chat(content: str, **options: object) -> ChatPrompt:
    return ChatPrompt(messages=(Message(role="user", content=content),), **options)  # type: ignore[arg-type]


@pytest.fixture
def encoder(tokenizer: Tokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, now=midnight)


class CountingTokenizer(Tokenizer):
    """Counts the texts it encodes."""

    encoded = 0

    def encode(
        self, text: str, *, add_special_tokens: bool, parse_special: bool = True
    ) -> list[int]:
        self.encoded += 1
        return super().encode(
            text, add_special_tokens=add_special_tokens, parse_special=parse_special
        )


@pytest.fixture
def counting(tmp_path: Path) -> CountingTokenizer:
    return CountingTokenizer(
        read_folder(save_folder(tmp_path, files={"chat_template.jinja": DATED}))
    )


def test_a_chat_has_the_ids_of_the_reference(encoder: PromptEncoder, tmp_path: Path) -> None:
    """E-BOS-DUP, L-TEMPLATE-FILE: as `apply_chat_template(tokenize=True)` counts them."""
    reference: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(save_folder(tmp_path) / "tokenizer.json"), chat_template=CHATML
    )
    content = "Hi <|im_end|> 漢字"
    expected = reference.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, return_dict=False
    )
    assert list(encoder.ids(chat(content))) == expected


@pytest.mark.parametrize("template", [CHATML, BOS_WRITING])
def test_a_chat_gets_only_the_bos_that_its_template_writes(tmp_path: Path, template: str) -> None:
    """E-BOS-DUP"""
    path = save_gguf(tmp_path / "m.gguf", add_bos_token=True, chat_template=template)
    encoder = PromptEncoder(load_tokenizer(path), now=midnight)
    text = encoder.render(chat("Hi"))
    ids = encoder.ids(chat("Hi"))
    assert ids.count(IM_START) == text.count("<|im_start|>")


def test_text_gets_a_bos_once_if_the_model_has_the_habit(tmp_path: Path) -> None:
    """E-BOS-DUP"""
    path = save_gguf(tmp_path / "m.gguf", add_bos_token=True)
    encoder = PromptEncoder(load_tokenizer(path), now=midnight)
    ids = encoder.ids(TextPrompt(text="Paris"))
    assert ids[0] == IM_START
    assert ids[1:] == encoder.ids(TextPrompt(text="Paris", add_special_tokens=False))
    assert IM_START not in ids[1:]


def test_a_model_without_the_habit_gets_no_bos(encoder: PromptEncoder) -> None:
    """E-BOS-DUP"""
    assert IM_START not in encoder.ids(TextPrompt(text="Paris"))


def test_truncation_keeps_the_last_tokens(encoder: PromptEncoder) -> None:
    whole = encoder.ids(TextPrompt(text="one two three"))
    assert encoder.ids(TextPrompt(text="one two three", truncate=2)) == whole[-2:]
    assert encoder.ids(TextPrompt(text="one two three", truncate=999)) == whole
    tokens = encoder.tokens(TextPrompt(text="one two three", truncate=2))
    assert tuple(token.token_id for token in tokens) == whole[-2:]


def test_token_ids_are_used_as_they_are(encoder: PromptEncoder) -> None:
    assert encoder.ids(TokenPrompt(token_ids=(5, 0, 5))) == (5, 0, 5)


@pytest.mark.parametrize("bad", [999999999, -1])
def test_refuses_a_token_id_outside_the_vocabulary(
    encoder: PromptEncoder, tokenizer: Tokenizer, bad: int
) -> None:
    message = f"token id {bad} is out of range: the vocabulary has {tokenizer.num_token_ids} entr"
    for call in (encoder.ids, encoder.tokens):
        with pytest.raises(BackendRejected, match=message) as caught:
            call(TokenPrompt(token_ids=(5, bad)))
        assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", [TextPrompt(text=""), TokenPrompt(token_ids=())])
def test_refuses_a_prompt_of_no_tokens(encoder: PromptEncoder, prompt: Prompt) -> None:
    """I-EMPTY-PROMPT"""
    for call in (encoder.ids, encoder.tokens):
        with pytest.raises(BackendRejected, match="no tokens") as caught:
            call(prompt)
        assert caught.value.param == "prompt"


def test_an_empty_text_starts_from_the_bos_of_a_model_that_adds_one(tmp_path: Path) -> None:
    """I-EMPTY-PROMPT"""
    path = save_gguf(tmp_path / "m.gguf", add_bos_token=True)
    encoder = PromptEncoder(load_tokenizer(path), now=midnight)
    assert encoder.ids(TextPrompt(text="")) == (IM_START,)
    with pytest.raises(BackendRejected, match="no tokens"):
        encoder.ids(TextPrompt(text="", add_special_tokens=False))


def test_an_empty_message_is_fine(encoder: PromptEncoder) -> None:
    """I-EMPTY-PROMPT"""
    assert encoder.ids(chat(""))[0] == IM_START


def test_refuses_a_chat_for_a_model_without_a_template(tmp_path: Path) -> None:
    """L-TEMPLATE-FILE: plain prompts still work."""
    encoder = PromptEncoder(load_tokenizer(save_folder(tmp_path)), now=midnight)
    with pytest.raises(BackendRejected, match="no chat template; send a plain prompt") as caught:
        encoder.ids(chat("Hi"))
    assert caught.value.param == "messages"
    assert encoder.ids(TextPrompt(text="Hi"))


@pytest.mark.parametrize(
    ("prompt", "param"),
    [(TextPrompt(text="a\ud800b"), "prompt"), (chat("a\udc00b"), "messages")],
)
def test_refuses_a_lone_surrogate_in_a_message_that_can_be_sent(
    encoder: PromptEncoder, prompt: Prompt, param: str
) -> None:
    """I-SURROGATE"""
    for call in (encoder.ids, encoder.tokens):
        with pytest.raises(BackendRejected, match=r"lone surrogate \(U\+D[8C]00\)") as caught:
            call(prompt)
        assert caught.value.param == param
        assert caught.value.message.encode()


def test_tokens_of_a_text_span_it(encoder: PromptEncoder) -> None:
    text = "one 🌶 two"
    tokens = encoder.tokens(TextPrompt(text=text))
    assert tuple(token.token_id for token in tokens) == encoder.ids(TextPrompt(text=text))
    assert all(token.text == text[token.start : token.stop] for token in tokens)
    assert tokens[-1].stop == len(text)


def test_a_bos_among_the_tokens_shows_its_own_text(tmp_path: Path) -> None:
    path = save_gguf(tmp_path / "m.gguf", add_bos_token=True)
    first = PromptEncoder(load_tokenizer(path), now=midnight).tokens(TextPrompt(text="x"))[0]
    assert (first.text, first.start, first.stop) == ("<|im_start|>", 0, 0)


def test_tokens_of_a_chat_span_its_rendered_text(encoder: PromptEncoder) -> None:
    text = encoder.render(chat("Hi"))
    tokens = encoder.tokens(chat("Hi"))
    assert tuple(token.token_id for token in tokens) == encoder.ids(chat("Hi"))
    assert "".join(token.text for token in tokens) == text


def test_tokens_of_ids_show_their_entries_one_after_the_other(encoder: PromptEncoder) -> None:
    ids = encoder.ids(TextPrompt(text="one two"))
    tokens = encoder.tokens(TokenPrompt(token_ids=ids))
    assert "".join(token.text for token in tokens) == "one two"
    assert [token.start for token in tokens[1:]] == [token.stop for token in tokens[:-1]]


def test_counting_and_generating_encode_once(counting: CountingTokenizer) -> None:
    encoder = PromptEncoder(counting, now=midnight)
    for _ in range(3):
        encoder.ids(TextPrompt(text="one two"))
        encoder.ids(chat("Hi"))
    assert counting.encoded == 2


def test_prompts_that_only_look_equal_are_not_mixed_up(tmp_path: Path) -> None:
    source = "{{ x }}{{ messages[0].content }}"
    loaded = load_tokenizer(save_folder(tmp_path, files={"chat_template.jinja": source}))
    encoder = PromptEncoder(loaded, now=midnight)
    prompts = [chat("Hi", template_kwargs=(("x", value),)) for value in (True, 1, 1.0)]
    assert prompts[0] == prompts[1] == prompts[2]
    decoded = [loaded.decode(encoder.ids(prompt)) for prompt in prompts]
    assert decoded == ["TrueHi", "1Hi", "1.0Hi"]


def test_a_remembered_prompt_does_not_keep_yesterdays_date(counting: CountingTokenizer) -> None:
    today = [midnight()]
    encoder = PromptEncoder(counting, now=lambda: today[-1])
    assert counting.decode(encoder.ids(chat("Hi"))) == "26 JulHi"
    today.append(midnight() + timedelta(days=1))
    assert counting.decode(encoder.ids(chat("Hi"))) == "27 JulHi"


def test_the_memory_for_prompts_is_bounded(counting: CountingTokenizer) -> None:
    encoder = PromptEncoder(counting, now=midnight, memo_bytes=3_000)
    first, last = TextPrompt(text="a" * 50), TextPrompt(text="f" * 50)
    for letter in "abcdef":
        encoder.ids(TextPrompt(text=letter * 50))
    encoder.ids(last)
    assert counting.encoded == 6
    encoder.ids(first)
    assert counting.encoded == 7


def test_a_prompt_too_big_to_remember_is_encoded_all_the_same(counting: CountingTokenizer) -> None:
    encoder = PromptEncoder(counting, now=midnight, memo_bytes=10)
    assert encoder.ids(TextPrompt(text="one")) == encoder.ids(TextPrompt(text="one"))
    assert counting.encoded == 2


@pytest.mark.weights
def test_the_real_template_adds_its_system_message(real_tokenizer: Tokenizer) -> None:
    """E-BOS-DUP: SmolLM2 adds no BOS, though its BOS is the token that opens turns."""
    encoder = PromptEncoder(real_tokenizer, now=midnight)
    text = encoder.render(chat("Hi"))
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = encoder.ids(chat("Hi"))
    assert ids[0] == 1
    assert ids.count(1) == 3
    with pytest.raises(BackendRejected, match="no tokens"):
        encoder.ids(TextPrompt(text=""))


@pytest.mark.parametrize(
    "text",
    ["The quick brown fox", "  two  spaces\n\n", "Žluťoučký 漢字🌶️ 1234", "a <|im_end|> b", "x"],
)
def test_every_token_starts_where_its_text_is(tokenizer: Tokenizer, text: str) -> None:
    """Of the text, and of its ids: those inside a character start at that one."""
    encoder = PromptEncoder(tokenizer, now=midnight)
    prompt = TextPrompt(text=text, add_special_tokens=False)
    starts = encoder.starts(prompt)
    ids = encoder.ids(prompt)
    assert starts == encoder.starts(TokenPrompt(token_ids=ids))
    before = b""
    for start, token_id in zip(starts, ids, strict=True):
        num_chars = len(before.decode("utf-8", "ignore"))
        assert start == num_chars
        before += tokenizer.token_bytes(token_id)
    assert before.decode() == text


def test_a_token_that_the_tokenizer_adds_takes_no_room(tmp_path: Path) -> None:
    folder = save_folder(tmp_path)
    document = json.loads((folder / "tokenizer.json").read_text())
    bos = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    eos = {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [bos, text, eos],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            name: {"id": name, "ids": [token_id], "tokens": [name]}
            for name, token_id in (("<|im_start|>", IM_START), ("<|im_end|>", IM_START + 1))
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    encoder = PromptEncoder(load_tokenizer(folder), now=midnight)
    starts = encoder.starts(TextPrompt(text="ab 漢"))
    assert (starts[0], starts[1]) == (0, 0)
    assert starts[-1] == 4


def test_white_space_that_spans_leave_out_is_the_next_word_s(tmp_path: Path) -> None:
    """A byte-level post-processor with `trim_offsets`, as many model folders have it."""
    folder = save_folder(tmp_path)
    document = json.loads((folder / "tokenizer.json").read_text())
    document["post_processor"] = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(document))
    encoder = PromptEncoder(load_tokenizer(folder), now=midnight)
    prompt = TextPrompt(text="The capital of France")
    ids = encoder.ids(prompt)
    assert encoder.starts(prompt) == encoder.starts(TokenPrompt(token_ids=ids))
    assert [token.start for token in encoder.tokens(prompt)] != list(encoder.starts(prompt))
