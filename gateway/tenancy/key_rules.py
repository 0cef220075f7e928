"""What one key may be used for, inside what its tenant's plan allows. Pure.

A rule only ever narrows: a key cannot give what the plan does not. Each fails closed: an empty set
of scopes or models allows nothing. Knows no database, no policy and no HTTP.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.networks import Address, Network, contains, parse_network


class KeyScope(enum.StrEnum):
    """What routes ask of a key: each asks for one of these."""

    INFERENCE = "inference"  # everything that generates
    MODELS = "models"  # to list models
    TOKENIZE = "tokenize"  # to cut texts into tokens


ALL_SCOPES = frozenset(KeyScope)
ANY_MODEL = ("*",)

_MODEL_GLOB = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._:/@+*-]{0,199}", re.ASCII)


class KeyRulesError(ValueError):
    """A rule that cannot be; the message says which, and how to write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRules:
    """The rules of a key; by default those of a key that may do all that its plan allows."""

    scopes: frozenset[KeyScope] = ALL_SCOPES
    models: tuple[str, ...] = ANY_MODEL  # public names; `*` stands for any run of characters
    networks: tuple[Network, ...] | None = None  # None: from anywhere

    def allows_address(self, address: Address | None) -> bool:
        """Whether the key may be used from there. None is an address that is not known."""
        return self.networks is None or contains(self.networks, address)

    def scope_words(self) -> list[str]:
        """The scopes in their own order."""
        return [scope.value for scope in KeyScope if scope in self.scopes]

    def network_words(self) -> list[str] | None:
        """The networks as text; None for anywhere."""
        return None if self.networks is None else [str(network) for network in self.networks]


def parse_rules(
    *, scopes: Sequence[str] = (), models: Sequence[str] = (), networks: Sequence[str] = ()
) -> KeyRules:
    """Rules as an operator writes them; what is left empty does not narrow.

    Raises:
        KeyRulesError: an unknown scope, or what is no model's name or no network.
    """
    return KeyRules(
        scopes=frozenset(map(_scope, scopes)) or ALL_SCOPES,
        models=tuple(map(_model, models)) or ANY_MODEL,
        networks=tuple(map(_network, networks)) or None,
    )


def _scope(text: str) -> KeyScope:
    try:
        return KeyScope(text)
    except ValueError:
        raise KeyRulesError(f"{text!r} is no scope; the scopes are {', '.join(KeyScope)}") from None


def _model(text: str) -> str:
    if not _MODEL_GLOB.fullmatch(text):
        raise KeyRulesError(
            f"{text!r} cannot be a model's name; write the public name from the policy, or a "
            "pattern such as 'team/*'"
        )
    return text


def _network(text: str) -> Network:
    try:
        return parse_network(text)
    except ValueError as error:
        raise KeyRulesError(str(error)) from None
