from __future__ import annotations

from gateway.policy.problems import PolicyError, Problem, Span, nearest

TEXT = "version: 1\nroutes:\n\t- fallbacks: [a]\x1b[31m\n"


def problem(line: int, column: int, width: int = 1, *, hint: str = "", write: str = "") -> Problem:
    span = Span(line=line, column=column, width=width)
    return Problem(code="bad-value", message="no", span=span, hint=hint, write=write)


def test_shows_place_excerpt_caret_hint_and_what_to_write() -> None:
    error = PolicyError("p.yaml", TEXT, [problem(1, 1, 7, hint="did you mean 'x'?", write="x: 1")])
    assert str(error).splitlines() == [
        "p.yaml:1:1  error[bad-value]  no",
        "    1 | version: 1",
        "      | ^^^^^^^ did you mean 'x'?",
        "  write: x: 1",
    ]


def test_lists_all_problems_in_the_order_of_the_file() -> None:
    error = PolicyError("p.yaml", TEXT, [problem(2, 1), problem(1, 5), problem(1, 1)])
    assert [(each.span.line, each.span.column) for each in error.problems] == [
        (1, 1),
        (1, 5),
        (2, 1),
    ]
    assert str(error).count("error[") == 3
    assert str(error).count("\n\n") == 2


def test_shows_the_second_place_first() -> None:
    twice = Problem(
        code="duplicate-key",
        message="twice",
        span=Span(line=2, column=1),
        also=Span(line=1, column=1),
    )
    lines = str(PolicyError("p.yaml", TEXT, [twice])).splitlines()
    assert lines[1:3] == ["    1 | version: 1", "      | ^ first here"]
    assert lines[3] == "    2 | routes:"


def test_never_sends_control_characters_to_a_terminal() -> None:
    shown = str(PolicyError("p.yaml", TEXT, [problem(3, 4, 9)]))
    assert "\x1b" not in shown
    assert "    3 |  - fallbacks: [a] [31m\n      |    ^^^^^^^^^" in shown


def test_a_place_past_the_end_of_the_file_is_an_empty_line() -> None:
    assert "    9 |\n      | ^" in str(PolicyError("p.yaml", TEXT, [problem(9, 1)]))


def test_finds_the_nearest_name_whatever_its_case() -> None:
    assert nearest("fallbacks", ["use", "fallback"]) == "fallback"
    assert nearest("SMALL", ["small", "large"]) == "small"
    assert nearest("xyz", ["small"]) == ""
