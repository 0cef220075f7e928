"""Which layers attend through a sliding window, as config.json says it."""

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
        return windows(num_layers, window, has_window)
    kinds = keys.strings("layer_types")
    if len(kinds) != num_layers:
        raise keys.error("layer_types", f"has {len(kinds)} entries for {num_layers} layers")
    for kind in kinds:
        if kind not in _KINDS:
            raise keys.error("layer_types", f"names {kind!r}; implemented are {', '.join(_KINDS)}")
    return windows(num_layers, window, lambda layer: kinds[layer] == "sliding_attention")


def windows(num_layers: int, window: int, has_window: Callable[[int], bool]) -> tuple[int, ...]:
    """Per layer, 0 for none; empty if none has one."""
    sizes = tuple(window if has_window(layer) else 0 for layer in range(num_layers))
    return sizes if any(sizes) else ()
