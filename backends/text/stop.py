"""Find stop strings in a growing text, holding back no more than must be.

An Aho-Corasick automaton reads each character once. After every character its state is the longest
suffix of the text that some stop string begins with: just what may still turn out to be a stop and
must not be shown yet. The match that is complete first wins; of several that are complete at the
same character, the longest.

Knows no tokens. Source: Aho and Corasick, Efficient string matching, CACM 18(6), 1975.
"""

from __future__ import annotations

from collections import deque


class StopStrings:
    """The stop strings of a request, compiled; immutable, shared by its choices."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        """Build the automaton in time and memory linear in `stops`, none of which is empty."""
        self.strings = frozenset(stops)
        self.children: list[dict[str, int]] = [{}]  # state -> character -> state; 0 is the root
        self.depth = [0]  # state -> length of the prefix it stands for
        self.match: list[str | None] = [None]  # state -> the longest stop that ends here
        self.fallback = [0]  # state -> the state of its longest proper suffix
        for stop in stops:
            self._insert(stop)
        self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            children = self.children[state]
            if character not in children:
                children[character] = len(self.children)
                self.children.append({})
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
                self.fallback.append(0)
            state = children[character]
        self.match[state] = stop

    def _link(self) -> None:
        """Set `fallback` breadth first, and pass matches on: a suffix of a state may be a stop."""
        queue = deque(self.children[0].values())
        while queue:
            state = queue.popleft()
            if self.match[state] is None:
                self.match[state] = self.match[self.fallback[state]]
            for character, child in self.children[state].items():
                self.fallback[child] = self.step(self.fallback[state], character)
                queue.append(child)

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while character not in self.children[state]:
            if state == 0:
                return 0
            state = self.fallback[state]
        return self.children[state][character]


NO_STOPS = StopStrings(())


class StopMatcher:
    """Reads the text of one choice."""

    def __init__(self, stops: StopStrings, *, include_stop_str: bool = False) -> None:
        self._stops = stops
        self._include_stop_str = include_stop_str
        self._state = 0
        self._held = ""  # the end of the text so far that may become a stop

    def push(self, text: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """(text that can be shown now, the stop string that ended it or None).

        Text behind a match is dropped, and nothing may be pushed after one. Without `may_stop` a
        stop that is complete is text like any other; one that has begun may still complete later.
        """
        if not self._stops.strings:
            return text, None
        stops, state = self._stops, self._state
        known = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            state = stops.step(state, character)
            stop = stops.match[state]
            if stop is not None and may_stop:
                self._held = ""
                return known[: end if self._include_stop_str else end - len(stop)], stop
        self._state = state
        shown = len(known) - stops.depth[state]
        self._held = known[shown:]
        return known[:shown], None

    def finish(self) -> str:
        """The text held back, now that nothing can complete it."""
        held, self._held = self._held, ""
        return held
