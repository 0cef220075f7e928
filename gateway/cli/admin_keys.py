"""`turnout admin-keys`: issue, list and revoke the keys that open the admin API."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from gateway.cli.directory import AsJson, date, echo_json, echo_table, with_directory
from gateway.cli.keys import Lifetime
from gateway.tenancy.tenants import AdminKey, AdminScope

app = typer.Typer(no_args_is_help=True, help="Issue, list and revoke keys of the admin API.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who uses it; every change is logged with it.")],
    scope: Annotated[
        AdminScope, typer.Option(help="write may change things, too.")
    ] = AdminScope.READ,
    expires: Lifetime = None,
    as_json: AsJson = False,
) -> None:
    """Issue an admin key and show it, once. Only the key goes to standard output."""
    now_s = time.time()

    secret, key = with_directory(
        lambda directory: directory.admin_keys.create(
            name,
            scope=scope,
            now_s=now_s,
            expires_s=None if expires is None else now_s + expires,
        )
    )
    if as_json:
        echo_json({**asdict(key), "key": secret})
        return
    until = "" if key.expires_s is None else f", good until {date(key.expires_s)}"
    typer.echo(f"{key.key_id} for {key.name}{until}; it is not shown again:", err=True)
    typer.echo(secret)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List admin keys, without their secrets."""
    keys = with_directory(lambda directory: directory.admin_keys.all())
    if as_json:
        for key in keys:
            echo_json(asdict(key))
        return
    now_s = time.time()
    rows = [
        (
            key.key_id,
            key.hint,
            key.scope.value,
            date(key.created_s),
            "never" if key.last_used_s is None else date(key.last_used_s),
            _standing(key, now_s),
            key.name,
        )
        for key in keys
    ]
    echo_table(("ID", "KEY", "SCOPE", "CREATED", "USED", "STATE", "NAME"), rows)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, from 'admin-keys list'.")],
    as_json: AsJson = False,
) -> None:
    """Close an admin key for good. Running gateways refuse it within a second."""
    key = with_directory(lambda directory: directory.admin_keys.revoke(key_id, now_s=time.time()))
    if as_json:
        echo_json(asdict(key))
    else:
        typer.echo(f"revoked {key.key_id} ({key.hint})")


def _standing(key: AdminKey, now_s: float) -> str:
    if key.revoked_s is not None:
        return f"revoked {date(key.revoked_s)}"
    if key.expires_s is None:
        return "good"
    return f"{'expired' if key.expires_s <= now_s else 'good until'} {date(key.expires_s)}"
