"""What is wrong with a policy file, each thing with its place, and how it is shown to a person.

Knows no YAML and no schema: others find the problems, this module holds and prints them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# what YAML 1.2 takes for a line break, and two more that PyYAML counts as one
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_NUMBER_WIDTH = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one line: line and column count from 1, `width` in characters.

    `file` is empty in the policy's main file.
    """

    line: int
    column: int
    width: int = 1
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to put right.

    `hint` stands beside the caret, `write` is the text to write instead, `also` a second place
    that the problem is about.
    """

    code: str
    message: str
    span: Span
    hint: str = ""
    write: str = ""
    also: Span | None = None


class PolicyError(Exception):
    """A policy cannot be used. Holds every problem found; as text, one block for each.

    `included` are the texts of other files that it is made of.
    """

    def __init__(
        self,
        file_name: str,
        text: str,
        problems: Iterable[Problem],
        included: Mapping[str, str] | None = None,
    ) -> None:
        self.file_name = file_name
        self.problems: tuple[Problem, ...] = tuple(
            sorted(
                problems,
                key=lambda each: (each.span.file, each.span.line, each.span.column),
            )
        )
        texts = {"": text, **(included or {})}
        lines = {name: _LINE_BREAK.split(each) for name, each in texts.items()}
        super().__init__("\n\n".join(_block(file_name, lines, each) for each in self.problems))

    def file_of(self, problem: Problem) -> str:
        """The name of the file that a problem is in."""
        return problem.span.file or self.file_name


class Refusal(ValueError):
    """A value that cannot be used, raised where its place is not known.

    Whoever knows the place turns it into a `Problem`. `write` is the value to write instead, `key`
    the one that is at fault, if the value is a map.
    """

    def __init__(
        self, code: str, message: str, *, hint: str = "", write: str = "", key: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.write = write
        self.key = key


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that `name` was most likely meant to be; empty when none is near.

    Letter case counts for nothing here, since it is a common slip.
    """
    by_folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[close[0]] if close else ""


def did_you_mean(suggestion: str) -> str:
    """The question to put beside a caret; empty without a suggestion."""
    return f"did you mean '{suggestion}'?" if suggestion else ""


def _block(file_name: str, lines: Mapping[str, Sequence[str]], problem: Problem) -> str:
    span, also = problem.span, problem.also
    place = f"{span.file or file_name}:{span.line}:{span.column}"
    rows = [f"{place}  error[{problem.code}]  {problem.message}"]
    if also is not None:
        elsewhere = f", in {also.file or file_name}" if also.file != span.file else ""
        rows += _excerpt(lines[also.file], also, f"first here{elsewhere}")
    rows += _excerpt(lines[span.file], span, problem.hint)
    if problem.write:
        rows.append(f"  write: {problem.write}")
    return "\n".join(rows)


def _excerpt(lines: Sequence[str], span: Span, hint: str) -> list[str]:
    line = lines[span.line - 1] if span.line <= len(lines) else ""
    # one column per character, and nothing that a terminal would act on
    shown = "".join(char if char.isprintable() else " " for char in line)
    caret = " " * (span.column - 1) + "^" * max(1, span.width)
    return [
        f"{span.line:>{_NUMBER_WIDTH}} | {shown}".rstrip(),
        f"{'':>{_NUMBER_WIDTH}} | {caret} {hint}".rstrip(),
    ]
