"""A tiny sentencepiece vocabulary: bytes, some characters, pieces of several with their scores."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFWriter

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BOS, EOS = 1, 2
CHARACTERS = "▁abcdehilnorst."
WORDS = (
    "▁t", "he", "▁a", "in", "on", "▁th", "an", "at", "▁the", "or", "er", "is", "▁c", "▁s", "▁ca",
    "tion", "ti", "▁an", "▁in", "es", "▁cat", "▁is", "aa", "aaa", "▁▁", "al", "or▁the",
)  # fmt: skip


def entries() -> list[tuple[str, int, float]]:
    """(text, type, score), the later a piece the worse; by their ids."""
    controls = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    single_bytes = [(f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)]
    words = [(word, NORMAL, float(-index)) for index, word in enumerate(WORDS)]
    characters = [
        (character, NORMAL, float(-len(WORDS) - index))
        for index, character in enumerate(CHARACTERS)
    ]
    return [*controls, *single_bytes, *words, *characters, ("<b>", USER_DEFINED, 0.0)]


def save_pieces_gguf(path: Path, *, drop: str = "", **keys: object) -> Path:
    """A GGUF file without tensors; `keys` replace metadata under `tokenizer.ggml.`."""
    texts, types, scores = zip(*entries(), strict=True)
    metadata: dict[str, object] = {
        "model": "llama",
        "tokens": list(texts),
        "token_type": list(types),
        "scores": list(scores),
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        **keys,
    }
    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        name = f"tokenizer.ggml.{key}"
        if key == drop:
            continue
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            assert isinstance(value, list)
            writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
