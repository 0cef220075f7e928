"""`turnout keys`: issue, list and revoke API keys."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.directory import echo_table, with_directory

if TYPE_CHECKING:
    from gateway.tenancy.database import Directory
    from gateway.tenancy.tenants import KeyRecord

app = typer.Typer(no_args_is_help=True, help="Issue, list and revoke API keys.")

_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}


def duration_s(text: str) -> int:
    """The seconds of `90m`, `12h` or `30d`."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([mhd])", text, re.ASCII)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write for example 90m, 12h or 30d")
    return int(match[1]) * _UNITS_S[match[2]]


@app.command()
def create(
    tenant: Annotated[str, typer.Argument(help="Whose key it is.")],
    name: Annotated[str, typer.Option(help="What it is for; shown in lists.")] = "",
    expires: Annotated[
        int | None,
        typer.Option(parser=duration_s, metavar="DURATION", help="Lifetime: 90m, 12h, 30d."),
    ] = None,
) -> None:
    """Issue a key and show it, once. Only the key goes to standard output."""
    now_s = time.time()
    secret, record = with_directory(
        lambda directory: directory.create_key(
            tenant,
            name=name,
            now_s=now_s,
            expires_s=None if expires is None else now_s + expires,
        )
    )
    until = "" if record.expires_s is None else f", good until {_date(record.expires_s)}"
    typer.echo(f"{record.key_id} for {tenant}{until}; it is not shown again:", err=True)
    typer.echo(secret)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Argument(help="Only this tenant's keys.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List issued keys, without their secrets."""

    async def load(directory: Directory) -> tuple[dict[str, str], tuple[KeyRecord, ...]]:
        names = {one.tenant_id: one.name for one in await directory.tenants()}
        return names, await directory.keys(tenant)

    names, records = with_directory(load)
    if as_json:
        for record in records:
            line = {**asdict(record), "tenant": names[record.tenant_id]}
            typer.echo(json.dumps(line, ensure_ascii=False))
        return
    now_s = time.time()
    rows = [
        (
            record.key_id,
            names[record.tenant_id],
            record.hint,
            _date(record.created_s),
            _standing(record, now_s),
            record.name,
        )
        for record in records
    ]
    echo_table(("ID", "TENANT", "KEY", "CREATED", "STATE", "NAME"), rows)


@app.command()
def revoke(key_id: Annotated[str, typer.Argument(help="The key's id, from 'keys list'.")]) -> None:
    """Close a key for good. Running gateways refuse it within a second."""
    record = with_directory(lambda directory: directory.revoke_key(key_id, now_s=time.time()))
    typer.echo(f"revoked {record.key_id} ({record.hint})")


def _standing(record: KeyRecord, now_s: float) -> str:
    if record.revoked_s is not None:
        return f"revoked {_date(record.revoked_s)}"
    if record.expires_s is None:
        return "good"
    return f"{'expired' if record.expires_s <= now_s else 'good until'} {_date(record.expires_s)}"


def _date(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%MZ")
