"""A real identity provider for tests: metadata and keys over HTTP, and tokens signed with them.

What it answers can be changed while it runs: `rotate` its keys, let it `fail_with` a status, put
other bytes at a path, or hold every answer back.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import AllowedPrivateKeys, get_default_algorithms

METADATA = "/.well-known/openid-configuration"
KEYS = "/keys"
AUDIENCE = "turnout"
SUBJECT = "CANARY-of-jane@acme.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderKey:
    """A key pair with its name, and what tokens are signed with it by default."""

    kid: str
    private: AllowedPrivateKeys
    algorithm: str

    def jwk(self, **changes: object) -> dict[str, Any]:
        """As it is published; a change to None leaves the member out."""
        algorithm = get_default_algorithms()[self.algorithm]
        numbers: dict[str, Any] = json.loads(algorithm.to_jwk(self.private.public_key()))
        numbers.pop("key_ops", None)
        members = {"kid": self.kid, "use": "sig", "alg": self.algorithm, **numbers, **changes}
        return {name: value for name, value in members.items() if value is not None}


@cache
def key_of(algorithm: str, kid: str = "first", *, size_bits: int = 2048) -> ProviderKey:
    """A key for an algorithm, the same one for the same arguments."""
    return ProviderKey(kid=kid, private=_private_key(algorithm, size_bits), algorithm=algorithm)


def _private_key(algorithm: str, size_bits: int) -> AllowedPrivateKeys:
    match algorithm:
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            return ec.generate_private_key(ec.SECP384R1())
        case "ES512":
            return ec.generate_private_key(ec.SECP521R1())
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case "Ed448":
            return ed448.Ed448PrivateKey.generate()
        case _:
            return rsa.generate_private_key(65_537, size_bits)


@dataclass(slots=True, kw_only=True)
class IdentityProvider:
    """A running provider. `asked` are the paths of all requests so far."""

    issuer: str
    keys: list[ProviderKey] = field(default_factory=lambda: [key_of("ES256")])
    documents: dict[str, bytes] = field(default_factory=dict[str, bytes])  # in place of its own
    fail_with: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    asked: list[str] = field(default_factory=list[str])
    answers: threading.Event = field(default_factory=threading.Event)  # cleared: it is silent

    def rotate(self, *keys: ProviderKey) -> None:
        self.keys = list(keys)

    def token(
        self,
        key: ProviderKey | None = None,
        *,
        algorithm: str = "",
        header: Mapping[str, Any] | None = None,
        now_s: float | None = None,
        odd_claims: Mapping[str, object] | None = None,
        **claims: object,
    ) -> str:
        """A token for tenant acme, good for 5 minutes. A claim that is None is left out.

        odd_claims: those whose names are none of Python's.
        """
        key = key or self.keys[0]
        now_s = time.time() if now_s is None else now_s
        whole = {
            "iss": self.issuer,
            "aud": AUDIENCE,
            "sub": SUBJECT,
            "iat": int(now_s),
            "exp": int(now_s) + 300,
            "tenant": "acme",
            **claims,
            **(odd_claims or {}),
        }
        return jwt.encode(
            {name: value for name, value in whole.items() if value is not None},
            key.private,
            algorithm or key.algorithm,
            headers={"kid": key.kid, **(header or {})},
        )

    def document(self, path: str) -> bytes | None:
        """What stands at a path."""
        if path in self.documents:
            return self.documents[path]
        if path == METADATA:
            metadata = {"issuer": self.issuer, "jwks_uri": self.issuer + KEYS}
            return json.dumps(metadata).encode()
        if path == KEYS:
            return json.dumps({"keys": [key.jwk() for key in self.keys]}).encode()
        return None


@contextlib.contextmanager
def identity_provider(tls: ssl.SSLContext | None = None) -> Iterator[IdentityProvider]:
    """A provider on a free port, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            provider.asked.append(self.path)
            provider.answers.wait()
            document = provider.document(self.path)
            self.send_response(provider.fail_with or (200 if document is not None else 404))
            for name, value in provider.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # it had enough
                self.wfile.write(document or b"")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that does not trust us has left: say nothing."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        provider = IdentityProvider(issuer=f"{scheme}://127.0.0.1:{server.server_port}")
        provider.answers.set()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield provider
        finally:
            provider.answers.set()
            server.shutdown()
            thread.join()
