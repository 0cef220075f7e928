"""Which tenant is owed service: virtual token counters.

A tenant's counter is what it has been served so far: 1 for a prompt token that was computed for it,
2 for a token that was generated, both divided by its weight. Whoever has the least goes next, so
tenants that always have work waiting get tokens in the ratio of their weights. Knows neither
sequences nor classes.

Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, arXiv:2401.00588. Ours
differs in three points. Only tokens that are computed count: what the prefix cache had is free, and
recomputing after a preemption is the engine's affair. A prompt is charged as a whole on admission,
so that a tenant is not admitted again and again before its first step has run, and what was not
computed in the end is given back. And a tenant that leaves and comes back finds its counter again,
while there are others that it could have run away from.
"""

from __future__ import annotations

import bisect

INPUT_COST = 1.0
OUTPUT_COST = 2.0


class Account:
    """The counter of a tenant that has sequences in the engine."""

    __slots__ = ("counter", "num_sequences", "tenant")

    def __init__(self, tenant: str, counter: float) -> None:
        self.tenant = tenant
        self.counter = counter
        self.num_sequences = 0  # waiting or running


class FairShares:
    """The accounts of all tenants that matter: those with sequences, and those ahead of one.

    An idle tenant that is not ahead of anyone has nothing to remember: it would be lifted anyway.
    """

    def __init__(self) -> None:
        self._active: dict[str, Account] = {}
        self._idle: dict[str, float] = {}  # the counters of tenants without sequences
        self._by_counter: list[tuple[float, str]] = []  # the same, least first

    def __len__(self) -> int:
        """Of tenants whose counters are known."""
        return len(self._active) + len(self._idle)

    def join(self, tenant: str) -> Account:
        """Count one more sequence of a tenant.

        One that had none is lifted to the least counter of those that have: it has no claim on
        what it did not ask for.
        """
        account = self._active.get(tenant)
        if account is None:
            least = self._least()
            account = Account(tenant, max(self._recall(tenant), least))
            self._active[tenant] = account
            self._forget_up_to(least)
        account.num_sequences += 1
        return account

    def leave(self, account: Account) -> None:
        """Count one sequence less. The last one's account is closed."""
        account.num_sequences -= 1
        if account.num_sequences:
            return
        del self._active[account.tenant]
        if self._active:
            self._idle[account.tenant] = account.counter
            bisect.insort(self._by_counter, (account.counter, account.tenant))
            self._forget_up_to(self._least())
        else:
            self._idle.clear()
            self._by_counter.clear()

    def _least(self) -> float:
        return min((account.counter for account in self._active.values()), default=0.0)

    def _recall(self, tenant: str) -> float:
        counter = self._idle.pop(tenant, None)
        if counter is None:
            return 0.0
        del self._by_counter[bisect.bisect_left(self._by_counter, (counter, tenant))]
        return counter

    def _forget_up_to(self, counter: float) -> None:
        stop = bisect.bisect_right(self._by_counter, counter, key=lambda entry: entry[0])
        for _, tenant in self._by_counter[:stop]:
            del self._idle[tenant]
        del self._by_counter[:stop]
