"""The process's own settings. The one place where the gateway reads its environment.

What is served to whom is the policy file's business, not ours.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.networks import Network, is_loopback, parse_network

PREFIX = "TURNOUT_"
OIDC_PREFIX = "TURNOUT_OIDC_"

Count = int
"""One or more."""

ProviderUrl = str
"""What `provider_url` lets pass."""

Issuer = str
"""A `ProviderUrl` that a path can be put behind."""

STORES = ("sqlite", "memory")
STORE_URL_SCHEMES = ("redis", "rediss", "unix")

NOT_FOR_ENGINES = (
    "TURNOUT_DATABASE",
    "TURNOUT_STORE",
    "PGPASSWORD",  # asyncpg's
    "OTEL_EXPORTER_OTLP_HEADERS",  # OpenTelemetry's; a token of the collector's is one of them
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
)
"""Variables that may hold a password."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where limits are counted: one of `STORES`, or the URL of a Redis or Valkey server.

    The URL may hold a password: nothing shows it but `text`.

    Raises:
        ValueError: it is neither.
    """

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.text not in STORES and not self.is_url:
            raise ValueError("must be sqlite, memory, redis://host:port/db, rediss://… or unix://…")

    def __str__(self) -> str:
        return f"{self._scheme} server" if self.is_url else self.text

    @property
    def is_url(self) -> bool:
        """Whether a server is meant."""
        return self._scheme in STORE_URL_SCHEMES

    @property
    def _scheme(self) -> str:
        return self.text.partition("://")[0] if "://" in self.text else ""


@dataclass(frozen=True, slots=True)
class ClaimPath:
    """Where in a token something stands: `tenant`, or `org.tenant` for what is in an object. A name
    with a colon is a URI, whose dots are its own: `https://acme.example/tenant`.

    Raises:
        ValueError: a part of it is empty.
    """

    text: str

    def __post_init__(self) -> None:
        if not all(self.names):
            raise ValueError("must be a claim such as tenant, org.tenant or https://acme.example/t")

    def __str__(self) -> str:
        return self.text

    @property
    def names(self) -> tuple[str, ...]:
        """From the outermost object to the innermost."""
        return (self.text,) if ":" in self.text else tuple(self.text.split("."))


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """The identity provider whose tokens are taken beside keys. The environment variable of each is
    its name in capitals after `TURNOUT_OIDC_`.
    """

    issuer: Issuer  # the tokens' `iss`, to the letter
    audience: str  # their `aud`, or one of it
    tenant_claim: ClaimPath = ClaimPath("tenant")
    plan_claim: ClaimPath | None = None  # unset: the tenant's own plan
    jwks_url: ProviderUrl | None = None  # unset: what the issuer's metadata say


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. The environment variable of each is its name in capitals after `TURNOUT_`."""

    home: Path = Path(".turnout")  # databases, secrets, models
    database: str = field(default="sqlite", repr=False)  # of tenants and keys: or a PostgreSQL URL
    database_password_file: Path | None = None  # if the URL holds no password
    pepper_file: Path | None = None  # unset: `pepper` in `home`
    trusted_proxies: tuple[Network, ...] = ()  # whose `x-forwarded-for` counts
    auth_failures_per_min: int = 60  # of one address, until it is refused unseen; 0: any number
    admin_auth_failures_per_min: int = 10  # the same, on /admin
    admin_requests_per_min: int = 300  # of one address, on /admin; 0: any number
    policy: Path = Path("policies/default.yaml")
    host: str = "127.0.0.1"
    port: int = 8000  # 0 takes any free one
    workers: Count = 1  # gateway processes that share the port
    run_dir: Path = Path(".turnout/run")  # sockets of engine processes; the supervisor sets it
    body_limit_bytes: int = 2_000_000
    body_timeout_s: float = 30.0  # from the headers until the whole body is there
    keep_alive_s: float = 15.0  # of silence, until a stream gets a comment
    drain_timeout_s: float = 30.0  # for running requests, after SIGTERM
    usage_retention: timedelta | None = None  # None keeps usage records for ever
    log_level: str = "info"
    log_json: bool = False
    store: StoreAddress = StoreAddress("sqlite")  # where limits are counted
    store_password_file: Path | None = None  # instead of a password in the URL
    oidc: OidcSettings | None = None  # None: keys alone open anything

    def to_environment(self) -> dict[str, str]:
        """The same settings for a child process."""
        oidc = {} if self.oidc is None else _written(self.oidc, OIDC_PREFIX)
        return _written(self, PREFIX) | oidc

    def to_engine_environment(self) -> dict[str, str]:
        """The same for an engine's process, which counts nothing and asks for no key: what may hold
        a password is emptied there, even what the process would inherit.
        """
        return self.to_environment() | dict.fromkeys(NOT_FOR_ENGINES, "")


class ConfigError(Exception):
    """A setting that cannot be used; the message names the variable."""


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the environment; unset and empty variables mean the default.

    Raises:
        ConfigError: a variable does not hold what it should.
    """
    return Settings(**_values(Settings, PREFIX, environ), oidc=_load_oidc(environ))


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where databases, secrets and models live. It may not exist yet."""
    return load_settings(environ).home


def provider_url(text: str) -> ProviderUrl:
    """A URL that an identity provider may be asked at: nobody on the way reads or changes it.

    Raises:
        ValueError: it is none.
    """
    parts = urlsplit(text)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))
    if not (is_safe and parts.hostname and text.isprintable() and " " not in text):
        raise ValueError("must be an https:// URL; http:// only to an address such as 127.0.0.1")
    if "@" in parts.netloc or parts.fragment:
        raise ValueError("must be a URL without a user, a password and a fragment")
    return text


def _issuer(text: str) -> Issuer:
    if "?" in text:
        raise ValueError("must be a URL without a query")
    return provider_url(text)


def _load_oidc(environ: Mapping[str, str]) -> OidcSettings | None:
    values = _values(OidcSettings, OIDC_PREFIX, environ)
    if not values:
        return None
    for one in fields(OidcSettings):
        if one.default is MISSING and one.name not in values:
            given = " and ".join(OIDC_PREFIX + name.upper() for name in values)
            raise ConfigError(
                f"{OIDC_PREFIX}{one.name.upper()}: needed with {given}; set it to "
                f"{_OIDC_NEEDS[one.name]}, or unset all {OIDC_PREFIX}* to take no tokens"
            )
    return OidcSettings(**values)


_OIDC_NEEDS = {
    "issuer": "the URL that tokens have as `iss`",
    "audience": "what the tokens for this gateway have as `aud`",
}


def _values(
    kind: type[Settings | OidcSettings], prefix: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Those of a kind's settings that are set."""
    values: dict[str, Any] = {}
    for one in _plain_fields(kind):
        name = prefix + one.name.upper()
        if text := environ.get(name, ""):
            values[one.name] = _read(name, text, _CONVERTERS[str(one.type)])
    return values


def _written(settings: Settings | OidcSettings, prefix: str) -> dict[str, str]:
    """As `_values` takes them."""
    return {
        prefix + one.name.upper(): _write(getattr(settings, one.name))
        for one in _plain_fields(type(settings))
    }


def _plain_fields(kind: type[Settings | OidcSettings]) -> list[Field[Any]]:
    """Those that have a variable: a group of settings has a prefix instead."""
    return [one for one in fields(kind) if one.name != "oidc"]


def _read(name: str, text: str, convert: Callable[[str], object]) -> object:
    try:
        return convert(text)
    except ValueError as error:
        shown = "" if convert in _MAY_HOLD_A_PASSWORD else f"={text!r}"
        raise ConfigError(f"{name}{shown}: {error}") from None


def _write(
    value: str | float | Path | timedelta | StoreAddress | ClaimPath | tuple[Network, ...] | None,
) -> str:
    """As `_read` takes it."""
    match value:
        case None:
            return ""
        case tuple():
            return ",".join(map(str, value))
        case timedelta():
            return f"{value.days}d"
        case StoreAddress():
            return value.text
        case _:
            return str(value)


def _days(text: str) -> timedelta:
    number, unit = text[:-1], text[-1:]
    if (
        unit != "d"
        or not (number.isascii() and number.isdecimal())
        or not 0 < int(number) <= 36_500
    ):
        raise ValueError("must be a number of days such as 90d, or unset to keep them for ever")
    return timedelta(days=int(number))


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("must be a whole number, zero or more")
    return int(text)


def _count(text: str) -> Count:
    if not text.isdecimal() or not int(text):
        raise ValueError("must be a whole number, one or more")
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError("must be a number of seconds above zero")
    return value


def _flag(text: str) -> bool:
    values = {"1": True, "true": True, "0": False, "false": False}
    if text.lower() not in values:
        raise ValueError("must be true or false")
    return values[text.lower()]


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(parse_network(part.strip()) for part in text.split(","))


_CONVERTERS: Mapping[str, Callable[[str], object]] = {
    "Path": Path,
    "Path | None": Path,
    "tuple[Network, ...]": _networks,
    "timedelta | None": _days,
    "StoreAddress": StoreAddress,
    "Issuer": _issuer,
    "ProviderUrl | None": provider_url,
    "ClaimPath": ClaimPath,
    "ClaimPath | None": ClaimPath,
    "str": str,
    "int": _whole,
    "Count": _count,
    "float": _seconds,
    "bool": _flag,
}

_MAY_HOLD_A_PASSWORD = (StoreAddress, _issuer, provider_url)
"""What these read is not repeated in a message."""
