from __future__ import annotations

import pytest

from gateway.policy.problems import Span
from gateway.policy.yaml_nodes import MAX_DEPTH, Node, Plain, core_scalar, read


def plain(text: str) -> Plain:
    root, problems = read(text)
    assert root is not None
    assert problems == []
    return root.plain()


def only_problem(text: str) -> tuple[str, str, Span]:
    _, problems = read(text)
    (problem,) = problems
    return problem.code, problem.message, problem.span


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"), ("no", "no"), ("yes", "yes"), ("on", "on"), ("12:30", "12:30"),
        ("10_000", "10_000"), ("2024-01-01", "2024-01-01"), ("1.2.3", "1.2.3"), ("<", "<"),
        ("true", True), ("FALSE", False), ("~", None), ("", None), ("null", None),
        ("60", 60), ("-7", -7), ("007", 7), ("0o17", 15), ("0x1F", 31),
        ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("5.", 5.0),
        (".inf", ".inf"), (".nan", ".nan"), ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_types_plain_scalars_by_the_core_schema(text: str, value: object) -> None:
    typed = core_scalar(text)
    assert typed == value
    assert type(typed) is type(value)


def test_reads_a_tree_as_plain_values() -> None:
    text = "a: [1, two, '3', off]\nb: {c: , d: \"x\"}\n1: true\n"
    assert plain(text) == {
        "a": [1, "two", "3", "off"],
        "b": {"c": None, "d": "x"},
        "1": True,
    }


def test_keeps_the_place_of_every_key_and_value() -> None:
    root, _ = read("a:\n  - x\n  - {long: 'value'}\n")
    assert root is not None
    node = root.at(("a", 1, "long"))
    assert node.key_span == Span(line=3, column=6, width=4)
    assert node.span == Span(line=3, column=12, width=7)
    assert node.source == "'value'"


def test_goes_as_deep_as_the_path_leads() -> None:
    root, _ = read("a: {b: 1}")
    assert root is not None
    assert root.at(("a", "b", "c", 0)).value == 1
    assert root.at(("a", "z")).entries().keys() == {"b"}


def test_follows_anchors_and_aliases() -> None:
    assert plain("a: &x [1]\nb: *x") == {"a": [1], "b": [1]}


def test_counts_columns_after_a_byte_order_mark_from_one() -> None:
    root, _ = read("\ufeffa: 1")
    assert root is not None
    assert root.at(("a",)).span == Span(line=1, column=4)
    assert root.at(("a",)).source == "1"


def test_refuses_a_duplicate_key_showing_both_places() -> None:
    root, problems = read("a: 1\nb: 2\na: 3\n")
    (problem,) = problems
    assert problem.code == "duplicate-key"
    assert problem.span == Span(line=3, column=1)
    assert problem.also == Span(line=1, column=1)
    assert root is not None
    assert root.plain() == {"a": 1, "b": 2}


def test_refuses_a_merge_key_saying_what_to_write() -> None:
    _, problems = read("a: &base {x: 1, y: off}\nb:\n  <<: *base\n  z: 2\n")
    (problem,) = problems
    assert (problem.code, problem.span.line) == ("merge-key", 3)
    assert problem.write == "x: 1, y: off"


def test_takes_a_quoted_merge_sign_for_a_key_like_any_other() -> None:
    assert plain('"<<": 1') == {"<<": 1}


@pytest.mark.parametrize(
    ("text", "words", "span"),
    [
        ("", "is empty", Span(line=1, column=1)),
        ("# only a comment\n", "is empty", Span(line=1, column=1)),
        ("a: 1\nb: [1, 2\nc: 3", "not YAML", Span(line=3, column=2)),
        ("a: !x", "is a tag", Span(line=1, column=4)),
        ("a: !!python/name:os.system ''", "is a tag", Span(line=1, column=4)),
        ("a: 1\n---\nb: 2", "not YAML", Span(line=2, column=1)),
        ("a: 1\nb: \x07", "not a character", Span(line=2, column=4)),
        ("a: *nowhere", "undefined alias", Span(line=1, column=4)),
        ("a: 1\n\tb: 2", "not YAML", Span(line=2, column=1)),
        ("[" * 3000, "deep", Span(line=1, column=MAX_DEPTH + 1)),
    ],
)
def test_refuses_what_is_not_plain_yaml_naming_the_place(text: str, words: str, span: Span) -> None:
    code, message, where = only_problem(text)
    assert code == "syntax"
    assert words in message
    assert where == span


def test_refuses_a_key_that_is_no_word() -> None:
    assert only_problem("? [a, b]\n: 1")[:2] == (
        "bad-value",
        "a key must be a word, not a list or a map",
    )


def test_refuses_a_value_that_contains_itself() -> None:
    code, message, _ = only_problem("a: &loop [1, *loop]")
    assert code == "bad-value"
    assert "contains itself" in message


def test_refuses_a_bomb_of_aliases_without_building_it() -> None:
    """Case R-RELOAD-BAD: a few lines must not grow to 10^10 values."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 11)]
    code, message, _ = only_problem("\n".join(lines))
    assert code == "bad-value"
    assert "through aliases" in message


def test_refuses_depth_that_aliases_hide() -> None:
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 2 * MAX_DEPTH))]
    assert "through aliases" in only_problem("\n".join(lines))[1]


def test_a_scalar_is_a_list_of_one_and_has_no_entries() -> None:
    node = Node(value="x", span=Span(line=1, column=1))
    assert node.items() == (node,)
    assert node.entries() == {}
    assert node.get("x") is None
    assert node.get(0) is None
