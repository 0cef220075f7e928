"""A tiny trained byte-level BPE tokenizer, saved the two ways that models come in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers
from gguf import GGUFWriter
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from backends.text.tokenizer import Tokenizer, load_tokenizer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ENDOFTEXT, IM_START, IM_END = range(3)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CORPUS = (
    "Paris is the capital of France, and Berlin is the capital of Germany.",
    "The quick brown fox jumps over the lazy dog; it's 1234 times we've seen that.",
    "Žluťoučký kůň úpěl ďábelské ódy. 漢字 and かな, 🌶️ and 👩‍👩‍👧.",
    "def main():\n    return {'answer': 42}\n\n",
)


def trained_encoder() -> tokenizers.Tokenizer:
    """All 256 bytes, some merges, SPECIALS as ids 0 to 2; digits one token each, as SmolLM2's."""
    encoder = tokenizers.Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    encoder.train_from_iterator(CORPUS, trainer)
    return encoder


def save_folder(
    path: Path,
    *,
    encoder: tokenizers.Tokenizer | None = None,
    files: Mapping[str, object] | None = None,
) -> Path:
    """A model folder; `files` are written beside tokenizer.json, JSON values as JSON."""
    path.mkdir(parents=True, exist_ok=True)
    (encoder or trained_encoder()).save(str(path / "tokenizer.json"))
    default: Mapping[str, object] = {
        "tokenizer_config.json": {"bos_token": SPECIALS[IM_START], "eos_token": SPECIALS[IM_END]}
    }
    for name, content in (default if files is None else files).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name).write_text(text, encoding="utf-8", newline="")
    return path


def save_gguf(
    path: Path,
    *,
    encoder: tokenizers.Tokenizer | None = None,
    drop: tuple[str, ...] = (),
    **keys: object,
) -> Path:
    """A GGUF file without tensors; `keys` replace metadata under `tokenizer.ggml.`."""
    encoder = encoder or trained_encoder()
    model = json.loads(encoder.to_str())["model"]
    added = encoder.get_added_tokens_decoder()
    vocabulary = sorted(encoder.get_vocab().items(), key=lambda entry: entry[1])
    metadata: dict[str, object] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": [text for text, _ in vocabulary],
        "token_type": [_token_type(added.get(token_id)) for _, token_id in vocabulary],
        "merges": [" ".join(pair) for pair in model["merges"]],
        "bos_token_id": IM_START,
        "eos_token_id": IM_END,
    }
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(512)
    for key, value in (metadata | keys).items():
        if key not in drop:
            _write(writer, f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _token_type(added: AddedToken | None) -> int:
    return 1 if added is None else 3 if added.special else 4


def _write(writer: GGUFWriter, key: str, value: object) -> None:
    if key == "tokenizer.ggml.chat_template":
        key = "tokenizer.chat_template"
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        assert isinstance(value, list)
        writer.add_array(key, value)


def tiny_tokenizer(path: Path) -> Tokenizer:
    """The trained tokenizer with a ChatML template."""
    config = {
        "bos_token": SPECIALS[IM_START],
        "eos_token": SPECIALS[IM_END],
        "chat_template": CHATML,
    }
    return load_tokenizer(save_folder(path, files={"tokenizer_config.json": config}))
