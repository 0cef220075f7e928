"""Which layers attend through a sliding window, as model files say it."""

from __future__ import annotations

from collections.abc import Callable

from native_engine.models.keys import Keys

_KINDS = ("full_attention", "sliding_attention")


def hf_windows(
    keys: Keys, num_layers: int, window: int, has_window: Callable[[int], bool]
) -> tuple[int, ...]:
    """Per layer: from `layer_types`, or in older files by the architecture's own rule.

    Raises:
        ModelFileError: `layer_types` does not fit the layers or names another kind.
    """
    if "layer_types" not in keys:
        return _windows(num_layers, window, has_window)
    kinds = keys.strings("layer_types")
    if len(kinds) != num_layers:
        raise keys.error("layer_types", f"has {len(kinds)} entries for {num_layers} layers")
    for kind in kinds:
        if kind not in _KINDS:
            raise keys.error("layer_types", f"names {kind!r}; implemented are {', '.join(_KINDS)}")
    return _windows(num_layers, window, lambda layer: kinds[layer] == "sliding_attention")


def gguf_windows(keys: Keys, num_layers: int, *, default_pattern: int) -> tuple[int, ...]:
    """Per layer; () if the file names no window. The pattern is a flag per layer, or says which
    layers have none: every so many-th.

    Raises:
        ModelFileError: the flags do not fit the layers.
    """
    if "attention.sliding_window" not in keys:
        return ()
    window, pattern = keys.integer("attention.sliding_window"), "attention.sliding_window_pattern"
    if not keys.is_list(pattern):
        every = keys.integer(pattern, default_pattern) if pattern in keys else default_pattern
        return _windows(num_layers, window, all_but_every(every) if every else lambda layer: True)
    flags = keys.flags(pattern)
    if len(flags) != num_layers:
        raise keys.error(pattern, f"has {len(flags)} entries for {num_layers} layers")
    return _windows(num_layers, window, lambda layer: flags[layer])


def all_but_every(nth: int) -> Callable[[int], bool]:
    """Layers `nth - 1`, `2 * nth - 1`, ... have none."""
    return lambda layer: (layer + 1) % nth != 0


def _windows(num_layers: int, window: int, has_window: Callable[[int], bool]) -> tuple[int, ...]:
    """Per layer, 0 for none; empty if none has one."""
    sizes = tuple(window if has_window(layer) else 0 for layer in range(num_layers))
    return sizes if any(sizes) else ()
