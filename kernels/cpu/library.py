"""The compiled kernels, loaded by ctypes, which lets other Python threads run during a call.

Where they cannot be built, that is logged once, with what is lost, and torch's operators do the
work. Pointers and strides are trusted: whoever calls checks them.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from kernels.cpu.build import SOURCES, BuildError, build, cache_directory, find_compiler

_logger = logging.getLogger(__name__)

_TYPES = {"p": ctypes.c_void_p, "l": ctypes.c_long, "f": ctypes.c_float, "i": ctypes.c_int}

# Arguments: pointer, long, float, int. What they mean stands in the C sources.
_SIGNATURES = {
    "turnout_rms_norm": "ppplllfi",
    "turnout_silu_mul": "ppllli",
    "turnout_rotary": "pppplllll",
    "turnout_store": "ppplllll",
    "turnout_paged_attention": "pppppppllllllllfi",
    "turnout_linear": "ppplllli",
    "turnout_panel_width": "",
    "turnout_max_head_dim": "",
}


@cache
def library() -> ctypes.CDLL | None:
    """The kernels, built at the first call; None where that failed."""
    return load(os.environ)


def load(environment: Mapping[str, str]) -> ctypes.CDLL | None:
    """As `library`, anew. `environment` may name the compiler and the cache directory."""
    try:
        compiler = find_compiler(environment)
        path = build(SOURCES, compiler=compiler, directory=cache_directory(environment))
        loaded = ctypes.CDLL(str(path))
    except (BuildError, OSError) as error:
        _logger.warning(
            "the CPU computes with torch's operators, at a half to a third of the speed, because "
            "its own kernels could not be built: %s",
            error,
        )
        return None
    for name, arguments in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = [_TYPES[letter] for letter in arguments]
        function.restype = ctypes.c_long if not arguments else None
    return loaded


def loaded_library() -> ctypes.CDLL:
    """The kernels, for those who run only where they are.

    Raises:
        RuntimeError: they could not be built.
    """
    found = library()
    if found is None:
        raise RuntimeError("the C kernels could not be built: see the log, or install gcc")
    return found


def require_rows(op: str, *tensors: Tensor) -> None:
    """Refuse what the kernels would read wrongly.

    Raises:
        ValueError: one is not float32, or the elements of its rows do not lie side by side.
    """
    for tensor in tensors:
        if tensor.dtype != torch.float32 or tensor.stride(-1) != 1:
            raise ValueError(
                f"{op}: the C kernel takes float32 with the elements of a row side by side, not "
                f"{tensor.dtype} with strides {tensor.stride()}"
            )


def require_contiguous(op: str, what: str, *tensors: Tensor) -> None:
    """Refuse what the kernels would read wrongly.

    Raises:
        ValueError: one has gaps.
    """
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(f"{op}: {what} must be contiguous")
