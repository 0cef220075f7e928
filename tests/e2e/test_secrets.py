"""Secrets and content are nowhere but where they belong, with everything on that could leak them.

One life of a real server, in front of PostgreSQL, Valkey and a collector of spans, with its log at
`debug`: keys used well and badly, faults, outages, the operator's commands, a shutdown. Then all
that it wrote, exported, answered and showed is searched. Each place was also given something that
it has to show, so that a search of the wrong place fails as well.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest
from redis import Redis

from gateway.config import Settings
from gateway.tenancy.database import open_directory
from gateway.tenancy.keys import ENTROPY_BYTES, PREFIX, mint
from tests.contracts.postgres import PASSWORD, PostgresServer, postgres_server
from tests.e2e.leaks import collecting, contents, family, forms, leaks
from tests.e2e.running import MODEL_FILE, ROOT, Server, serving, stop
from tests.identity_provider import (
    AUDIENCE,
    SUBJECT,
    IdentityProvider,
    identity_provider,
    key_of,
)
from tests.valkey import ValkeyServer, serving_valkey

pytestmark = pytest.mark.e2e

STORE_PASSWORD = "CANARY/of+the store"
COLLECTOR_TOKEN = "CANARY-of-the-collector"
PROMPT = "CANARYPROMPT"
ANSWER = "CANARYANSWER"

SEEN_ID = "seen-request-id"
SEEN_TRACE = "5ee05ee05ee05ee05ee05ee05ee05ee0"
SEEN_MODEL = "seen-model"
SEEN_LIMIT = "seen-limit"
SEEN_TENANT = "seen-tenant"

POLICY = f"""\
version: 1
backends:
  native: {{engine: native, model: {MODEL_FILE}}}
  told: {{engine: echo, text: {ANSWER}}}
  plain: {{engine: echo}}
  slow: {{engine: echo, token_delay_s: 60}}
  failing: {{engine: echo, fail_before: true}}
  cutting: {{engine: echo, fail_after_tokens: 1}}
models: {{native: {{}}, told: {{}}, plain: {{}}, slow: {{}}, failing: {{}}, cutting: {{}}}}
limits:
  {SEEN_LIMIT}: {{requests: 1000/min, tokens: 1M/min, concurrent: 50}}
plans:
  demo: {{limits: [{SEEN_LIMIT}], models: "*"}}
routes:
  - {{name: native, match: {{model: native}}, use: native}}
  - {{name: slow, match: {{model: slow}}, use: slow}}
  - {{name: failing, match: {{model: failing}}, use: failing}}
  - {{name: cutting, match: {{model: cutting}}, use: cutting}}
  - {{name: told, match: {{model: told}}, use: told}}
  - {{name: all, use: plain}}
defaults:
  model: plain
"""

CHAT = "/v1/chat/completions"
OF_THE_OPERATOR = ("pepper", "policy.yaml")  # files that hold what they hold by intent
CHANNELS = (
    "log",
    "spans",
    "metrics",
    "errors",
    "commands",
    "engine",
    "files",
    "database",
    "store",
    "operator",
)


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What a server's life left behind: the secrets it knew, and what each channel showed."""

    secrets: dict[str, bytes]
    shown: dict[str, bytes] = field(default_factory=lambda: dict.fromkeys(CHANNELS, b""))


@dataclass(slots=True, kw_only=True)
class Life:
    """A server's life as it goes on."""

    server: Server
    environment: dict[str, str]  # the settings of its own
    postgres: PostgresServer
    valkey: ValkeyServer
    keys: dict[str, str]
    tokens: dict[str, str]  # of the identity provider
    evidence: Evidence

    def note(self, channel: str, shown: bytes) -> None:
        self.evidence.shown[channel] += shown + b"\n"

    def ask(
        self, method: str, path: str, headers: list[tuple[str, str]], body: object = None
    ) -> None:
        """Send one request, and keep all that comes back."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        if not any(name == "content-type" for name, _ in headers):
            headers = [*headers, ("content-type", "application/json")]
        with httpx.Client(base_url=self.server.base_url, timeout=60.0, trust_env=False) as client:
            answer = client.request(method, path, headers=headers, content=content)
        sent_back = b"\n".join(name + b": " + value for name, value in answer.headers.raw)
        self.note("errors", sent_back + b"\n" + answer.content)

    def command(self, *arguments: str, exit_code: int = 0) -> str:
        """Run a command as the operator does; its output. What else it says is kept."""
        result = subprocess.run(
            [sys.executable, "-m", "gateway.cli", *arguments],
            cwd=ROOT,
            env={**os.environ, "TURNOUT_HOME": str(self.server.home), **self.environment},
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert result.returncode == exit_code, result.stderr
        self.note("operator", result.stderr.encode())
        return result.stdout


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture(scope="module", params=["passwords in URLs", "passwords in files"])
def evidence(request: pytest.FixtureRequest, postgres: PostgresServer) -> Evidence:
    """One life of a server, from its start to its shutdown."""
    with ExitStack() as stack:
        # not pytest's own: the path of a socket must be short
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="turnout-")))
        valkey = stack.enter_context(
            serving_valkey(directory, "--requirepass", STORE_PASSWORD, "--rdbcompression", "no")
        )
        collector = stack.enter_context(collecting())
        provider = stack.enter_context(identity_provider())
        place = _in_urls if request.param == "passwords in URLs" else _in_files
        environment = place(postgres.new_database(), valkey, directory) | {
            "TURNOUT_LOG_LEVEL": "debug",
            "TURNOUT_LOG_JSON": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{COLLECTOR_TOKEN}",
            "NO_PROXY": "127.0.0.1",
            "TURNOUT_OIDC_ISSUER": provider.issuer,
            "TURNOUT_OIDC_AUDIENCE": AUDIENCE,
        }
        server = stack.enter_context(serving(POLICY, **environment))
        life = Life(
            server=server,
            environment=environment,
            postgres=postgres,
            valkey=valkey,
            keys={"the demo tenant's key": server.key},
            tokens=_tokens(provider),
            evidence=Evidence(secrets={}),
        )
        _live(life)
        assert stop(server.process) == 0
        life.note("log", server.log_path.read_bytes())
        life.note("files", contents(server.home, but=OF_THE_OPERATOR))
        life.note("spans", b"\n".join(collector.bodies))
        life.evidence.secrets = {
            **{name: key.encode() for name, key in life.keys.items()},
            **_parts(life.tokens),
            "who the tokens are for": SUBJECT.encode(),
            "the database's password": PASSWORD.encode(),
            "the store's password": STORE_PASSWORD.encode(),
            "the collector's token": COLLECTOR_TOKEN.encode(),
            "the pepper": server.home.joinpath("pepper").read_bytes(),
            "the prompt": PROMPT.encode(),
            "the answer": ANSWER.encode(),
        }
        return life.evidence


def _in_urls(database: str, valkey: ValkeyServer, directory: Path) -> dict[str, str]:
    return {
        "TURNOUT_DATABASE": database.replace("turnout@", f"turnout:{PASSWORD}@"),
        "TURNOUT_STORE": f"unix://:{quote(STORE_PASSWORD, safe='')}@{valkey.socket_path}?db=0",
    }


def _in_files(database: str, valkey: ValkeyServer, directory: Path) -> dict[str, str]:
    for name, password in (("database", PASSWORD), ("store", STORE_PASSWORD)):
        (directory / name).write_text(password)
    return {
        "TURNOUT_DATABASE": database,
        "TURNOUT_DATABASE_PASSWORD_FILE": str(directory / "database"),
        "TURNOUT_STORE": valkey.url,
        "TURNOUT_STORE_PASSWORD_FILE": str(directory / "store"),
    }


def _tokens(provider: IdentityProvider) -> dict[str, str]:
    stranger = key_of("ES256", "stranger")
    return {
        "the good token": provider.token(tenant=SEEN_TENANT, exp=int(time.time()) + 3600),
        "the expired token": provider.token(tenant=SEEN_TENANT, exp=1),
        "the stranger's token": provider.token(stranger, tenant=SEEN_TENANT),
    }


def _parts(tokens: dict[str, str]) -> dict[str, bytes]:
    """What must not be seen of tokens: their claims and signatures, alone too."""
    return {
        f"{name}'s {what}": part.encode()
        for name, token in tokens.items()
        for what, part in zip(("claims", "signature"), token.split(".")[1:], strict=True)
    }


def _live(life: Life) -> None:
    asyncio.run(_issue_keys(life))
    _operate(life)
    _use_well(life)
    _look(life)
    _use_badly(life)
    _leave_early(life)
    _fail(life)
    _look(life)
    _lose_the_store_and_the_database(life)
    life.note("metrics", httpx.get(f"{life.server.base_url}/metrics", trust_env=False).content)


async def _issue_keys(life: Life) -> None:
    password_file = life.environment.get("TURNOUT_DATABASE_PASSWORD_FILE")
    settings = Settings(
        home=life.server.home,
        database=life.environment["TURNOUT_DATABASE"],
        database_password_file=None if password_file is None else Path(password_file),
    )
    now_s = time.time()
    directory = await open_directory(settings)
    try:
        await directory.create_tenant(SEEN_TENANT, plan="demo")
        for name, expires_s in (("good", None), ("expired", now_s - 1)):
            life.keys[f"the {name} key"], _ = await directory.create_key(
                SEEN_TENANT, name=name, now_s=now_s, expires_s=expires_s
            )
    finally:
        await directory.aclose()
    life.keys["the unknown key"] = mint(os.urandom(ENTROPY_BYTES))


def _operate(life: Life) -> None:
    """As an operator does, who once pastes a key where its id belongs."""
    created = json.loads(life.command("keys", "create", SEEN_TENANT, "--json"))
    rotated = life.command("keys", "rotate", created["key_id"])
    life.keys["the replaced key"] = created["key"]
    life.keys["the successor's key"] = rotated.strip()
    life.command("keys", "revoke", created["key_id"])
    life.command("keys", "show", created["key"], exit_code=1)
    assert all(key.startswith(PREFIX) for key in life.keys.values())


def _bearer(key: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {key}")


def _chat(model: str = "told", content: str = PROMPT, **fields: object) -> dict[str, object]:
    message = {"role": "user", "content": content}
    return {"model": model, "messages": [message], "max_tokens": 4, **fields}


def _use_well(life: Life) -> None:
    """Prompts and answers are wanted back by who asks: they are no part of the evidence."""
    with life.server.client(key=life.tokens["the good token"]) as client:
        assert ANSWER in client.post(CHAT, json=_chat()).text
    client = life.server.client(key=life.keys["the good key"])
    client.headers.update(
        {"x-request-id": SEEN_ID, "traceparent": f"00-{SEEN_TRACE}-5ee05ee05ee05ee0-01"}
    )
    with client:
        for model in ("told", "native"):
            for streamed in (False, True):
                answer = client.post(CHAT, json=_chat(model, stream=streamed))
                assert answer.status_code == 200
        assert ANSWER in client.post(CHAT, json=_chat()).text
        assert client.post("/generate", json={"inputs": PROMPT}).status_code == 200
        assert client.post("/tokenize", json={"inputs": PROMPT}).status_code == 200


def _use_badly(life: Life) -> None:
    """A key in every place where somebody once put one. Asked for are no words of content."""
    harmless = _chat("plain", "hello")
    for key in (*life.keys.values(), *life.tokens.values()):
        life.ask("POST", CHAT, [_bearer(key)], {**harmless, "model": SEEN_MODEL})
        life.ask("POST", CHAT, [("x-api-key", key)], {**harmless, "model": SEEN_MODEL})
    for good in (life.keys["the good key"], life.tokens["the good token"]):
        _misplace(life, good, harmless)


def _misplace(life: Life, good: str, harmless: dict[str, object]) -> None:
    basic = base64.b64encode(f"user:{good}".encode()).decode()
    for headers in (
        [("authorization", f"Basic {basic}")],
        [("authorization", good)],
        [("authorization", f"Bearer {good} {good}")],
        [_bearer(good), _bearer(good)],
        [_bearer(good), ("x-api-key", good)],
        [("x-api-key", f"{good}{good}" * 4)],
        [_bearer(good), ("content-type", good)],
        [_bearer(good), ("content-encoding", good)],
        [_bearer(good), ("x-request-id", good)],
        [_bearer(good), ("x-forwarded-for", f"{good}, 192.0.2.7")],
        [_bearer(good), ("forwarded", f'for=192.0.2.7;key="{good}"'), ("via", f"1.1 {good}")],
        [_bearer(good), ("traceparent", good), ("cookie", f"key={good}"), ("referer", good)],
    ):
        life.ask("POST", CHAT, headers, _chat(SEEN_MODEL, content="hello"))
    for method, path in (
        ("GET", f"/v1/models?api_key={good}"),
        ("GET", f"/v1/models/{good}"),
        ("DELETE", f"/v1/models/{good}"),
        ("GET", f"/{quote(good.replace('_', '%5F'), safe='%')}"),
        ("POST", f"/{good}/v1/chat/completions?key={good}"),
    ):
        for headers in ([], [_bearer(good)]):
            life.ask(method, path, headers, harmless)
    for body in (
        _chat(good, content="hello"),
        _chat("failing", content="hello", user=good, metadata={"key": good}),
        {**harmless, good: good},
        {**harmless, "temperature": good},
        {**harmless, "messages": [{"role": good, "content": "hello"}]},
        {**harmless, "response_format": {"type": good}},
        {"inputs": "hello", "parameters": {"truncate": good, good: 1}},
        [good],
        f'{{"model": "{good}", "messages": {good}'.encode(),
        f'{{"key": "{good}"}} {PROMPT}'.encode(),
    ):
        for path in (CHAT, "/v1/completions", "/generate"):
            life.ask("POST", path, [_bearer(good)], body)
    _speak_no_http(life, f"GET /{good} HTTP/1.1\r\nauthorization Bearer {good}\r\n\r\n")


def _speak_no_http(life: Life, text: str) -> None:
    address = urlsplit(life.server.base_url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(text.encode())
        life.note("errors", connection.recv(65_536))


def _leave_early(life: Life) -> None:
    with (
        life.server.client(key=life.keys["the good key"]) as client,
        client.stream("POST", CHAT, json=_chat("slow", f"{PROMPT} two", stream=True)) as answer,
    ):
        pieces = answer.iter_bytes()  # kept: to drop it would close the stream
        next(pieces)


def _fail(life: Life) -> None:
    """Before the first token and after it; the prompt must not be in the error."""
    for model in ("failing", "cutting"):
        for streamed in (False, True):
            body = _chat(model, f"hello {PROMPT}", stream=streamed)
            life.ask("POST", CHAT, [_bearer(life.keys["the good key"])], body)


def _look(life: Life) -> None:
    """At all that can be seen of it while it runs."""
    life.note("metrics", httpx.get(f"{life.server.base_url}/metrics", trust_env=False).content)
    for process in family(life.server.process.pid):
        life.note("commands", process.command)
        if b"backends.host" in process.command:
            life.note("engine", process.environment)
        if b"gateway.server" in process.command:
            variables = dict(one.partition(b"=")[::2] for one in process.environment.split(b"\0"))
            run_dir = Path(os.fsdecode(variables[b"TURNOUT_RUN_DIR"]))
            life.note("files", contents(run_dir, but=OF_THE_OPERATOR))
    database = urlsplit(life.environment["TURNOUT_DATABASE"]).path.strip("/")
    for table in ("tenants", "keys", "pepper"):
        rows = life.postgres.sql(f"SELECT * FROM {table}", database=database)
        life.note("database", rows.encode())
    with Redis(
        unix_socket_path=str(life.valkey.socket_path), password=STORE_PASSWORD
    ) as connection:
        connection.save()
    life.note("store", life.valkey.socket_path.with_name("dump.rdb").read_bytes())


def _lose_the_store_and_the_database(life: Life) -> None:
    """A key that is believed meets no store, then one that must be looked up no database."""
    known = _bearer(life.keys["the good key"])
    life.ask("POST", CHAT, [known], _chat(content="hello", model="failing"))
    life.valkey.process.kill()
    life.valkey.process.wait()
    life.ask("POST", CHAT, [known], _chat(content="hello"))
    life.ask("GET", "/readyz", [])
    database = urlsplit(life.environment["TURNOUT_DATABASE"]).path.strip("/")
    life.postgres.sql(f"ALTER DATABASE {database} WITH ALLOW_CONNECTIONS false")
    life.postgres.sql(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
    )
    life.ask("POST", CHAT, [_bearer(life.keys["the unknown key"])], _chat(content="hello"))


SEEN = {
    "log": (
        SEEN_ID.encode(),
        b"cannot look a key up",
        b"refused a token",
        b"the limit store",
        b"client_disconnect",
        b"__main__: serving",
    ),
    "spans": (bytes.fromhex(SEEN_TRACE), b"/v1/chat/completions", b"client_disconnect"),
    "metrics": (SEEN_TENANT.encode(), b"turnout_attempts"),
    "errors": (
        SEEN_MODEL.encode(),
        b"invalid_api_key",
        b"key has expired",
        b"token has expired",
        b"does not publish",
        b"told to fail",
        b"server_is_overloaded",
        b"Invalid HTTP request",
        b"x-request-id",
    ),
    "commands": (b"gateway.cli serve", b"gateway.server", b"backends.host"),
    "engine": (b"TURNOUT_POLICY=", b"TURNOUT_DATABASE=\0", b"PATH="),
    "files": (b"usage.db", SEEN_ID.encode(), b"server.log"),
    "database": (SEEN_TENANT.encode(), b"key_"),
    "store": (SEEN_LIMIT.encode(),),
    "operator": (b"stays good until", b"there is no key 'to_live_"),
}


@pytest.mark.parametrize("channel", CHANNELS)
def test_no_secret_and_no_content_is_shown(evidence: Evidence, channel: str) -> None:
    """Q-KEY-IN-LOGS: at any level, of any kind, in any form; prompts and answers likewise."""
    assert len(evidence.secrets) == 19
    assert leaks(evidence.shown[channel], evidence.secrets) == []


@pytest.mark.parametrize("channel", CHANNELS)
def test_what_must_be_shown_was_seen(evidence: Evidence, channel: str) -> None:
    """Or else nothing would be found there because nobody looked."""
    missing = [one for one in SEEN[channel] if one not in evidence.shown[channel]]
    assert missing == []


@pytest.mark.parametrize("offset", [0, 1, 2, 5])
def test_a_secret_is_found_in_every_form(offset: int) -> None:
    key = mint(bytes(range(ENTROPY_BYTES))).encode()
    around = b"!" * offset + key + b"!!"
    secrets = {"key": key}
    for text in (around, around[offset + len(PREFIX) :], base64.b64encode(around)):
        assert leaks(b"... " + text + b" ...", secrets)
    password = STORE_PASSWORD.encode()
    for text in (quote(password, safe="").encode(), password.hex().encode()):
        assert leaks(text, {"password": password})
    assert all(len(needle) >= len(password) for _, needle in forms(password))
    assert leaks(around[:-6], secrets) == []
