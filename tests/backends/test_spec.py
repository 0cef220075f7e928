from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from backends.spec import BackendConfigError, OptionValue, read_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    path: str
    num_rows: int = 1
    delay_s: float = 0.0
    is_open: bool = False
    color: Literal["red", "blue"] = "red"

    def __post_init__(self) -> None:
        if self.num_rows < 1:
            raise ValueError("num_rows must be at least 1")


def read(values: dict[str, OptionValue]) -> Options:
    return read_options(Options, values, where="fast", given={"path": "/here"})


def test_reads_each_option_and_takes_a_whole_number_for_a_float() -> None:
    options = read({"num_rows": 2, "delay_s": 3, "is_open": True, "color": "blue"})

    assert options == Options(path="/here", num_rows=2, delay_s=3.0, is_open=True, color="blue")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_row": 2}, "fast: no option is named 'num_row'; did you mean 'num_rows'?"),
        (
            {"zzz": 2},
            "fast: no option is named 'zzz'; there are num_rows, delay_s, is_open, color",
        ),
        ({"path": "/there"}, "fast: no option is named 'path'; there are"),
        ({"num_rows": "2"}, "fast: option 'num_rows' must be int, not '2'"),
        ({"num_rows": True}, "fast: option 'num_rows' must be int, not True"),
        ({"is_open": 1}, "fast: option 'is_open' must be bool, not 1"),
        ({"color": "pink"}, "fast: option 'color' must be one of 'red', 'blue', not 'pink'"),
        ({"num_rows": 0}, "fast: num_rows must be at least 1"),
    ],
)
def test_says_which_option_is_wrong_and_what_would_be_right(
    values: dict[str, OptionValue], message: str
) -> None:
    with pytest.raises(BackendConfigError) as caught:
        read(values)

    assert str(caught.value).startswith(message)
