"""`turnout keys`: issue, rotate, list and revoke API keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.directory import AsJson, date, echo_json, echo_table, with_directory
from gateway.tenancy.key_rules import KeyRules, KeyRulesError, parse_rules
from gateway.tenancy.lifetimes import OVERLAP_S, lifetime_s

if TYPE_CHECKING:
    from gateway.tenancy.database import Directory
    from gateway.tenancy.tenants import KeyRecord

app = typer.Typer(no_args_is_help=True, help="Issue, rotate, list and revoke API keys.")

KeyId = Annotated[str, typer.Argument(help="The key's id, from 'keys list'.")]


def duration_s(text: str) -> int:
    """The seconds of `90m`, `12h` or `30d`."""
    try:
        return lifetime_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Lifetime = Annotated[
    int | None,
    typer.Option(parser=duration_s, metavar="DURATION", help="Lifetime: 90m, 12h, 30d."),
]


@app.command()
def create(
    tenant: Annotated[str, typer.Argument(help="Whose key it is.")],
    name: Annotated[str, typer.Option(help="What it is for; shown in lists.")] = "",
    description: Annotated[str, typer.Option(help="More about it; shown by 'keys show'.")] = "",
    expires: Lifetime = None,
    scopes: Annotated[str, typer.Option(help="Of inference,models,tokenize; all by default.")] = "",
    models: Annotated[
        str, typer.Option(help="Public names or globs, as in small,team/*; by default the plan's.")
    ] = "",
    ip: Annotated[
        str, typer.Option(help="Networks it may be used from, as in 10.0.0.0/8,192.0.2.7.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Issue a key and show it, once. Only the key goes to standard output."""
    now_s = time.time()
    rules = _rules(scopes, models, ip)
    secret, record = with_directory(
        lambda directory: directory.create_key(
            tenant,
            name=name,
            description=description,
            now_s=now_s,
            expires_s=None if expires is None else now_s + expires,
            rules=rules,
        )
    )
    _tell_secret(secret, record, tenant, as_json=as_json)


@app.command()
def rotate(
    key_id: KeyId,
    overlap: Annotated[
        int | None,
        typer.Option(
            parser=duration_s, metavar="DURATION", help="How long the old key stays good: 48h."
        ),
    ] = None,
    expires: Lifetime = None,
    as_json: AsJson = False,
) -> None:
    """Issue a key like another, which ends after the overlap. Shows the new one, once."""
    now_s = time.time()

    async def work(directory: Directory) -> tuple[str, KeyRecord, KeyRecord, str]:
        secret, successor = await directory.rotate_key(
            key_id,
            overlap_s=OVERLAP_S if overlap is None else overlap,
            now_s=now_s,
            expires_s=None if expires is None else now_s + expires,
        )
        names = await _tenant_names(directory)
        return secret, successor, await directory.key(key_id), names[successor.tenant_id]

    secret, successor, old, tenant = with_directory(work)
    if not as_json:
        assert old.expires_s is not None  # rotation sets it
        typer.echo(f"{old.key_id} ({old.hint}) stays good until {date(old.expires_s)}", err=True)
    _tell_secret(secret, successor, tenant, as_json=as_json)


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Argument(help="Only this tenant's keys.")] = None,
    as_json: AsJson = False,
) -> None:
    """List issued keys, without their secrets."""

    async def load(directory: Directory) -> tuple[dict[str, str], tuple[KeyRecord, ...]]:
        return await _tenant_names(directory), await directory.keys(tenant)

    names, records = with_directory(load)
    if as_json:
        for record in records:
            echo_json({**record.to_dict(), "tenant": names[record.tenant_id]})
        return
    now_s = time.time()
    by_id = {record.key_id: record for record in records}
    rows = [
        (
            record.key_id,
            names[record.tenant_id],
            record.hint,
            date(record.created_s),
            "never" if record.last_used_s is None else date(record.last_used_s),
            standing(record, by_id.get(record.successor_id or ""), now_s),
            record.name,
        )
        for record in records
    ]
    echo_table(("ID", "TENANT", "KEY", "CREATED", "USED", "STATE", "NAME"), rows)


@app.command()
def show(key_id: KeyId, as_json: AsJson = False) -> None:
    """Show one key with its rules, without its secret."""

    async def load(directory: Directory) -> tuple[KeyRecord, KeyRecord | None, str]:
        record = await directory.key(key_id)
        keys = {each.key_id: each for each in await directory.keys()}
        names = await _tenant_names(directory)
        return record, keys.get(record.successor_id or ""), names[record.tenant_id]

    record, successor, tenant = with_directory(load)
    if as_json:
        echo_json({**record.to_dict(), "tenant": tenant})
        return
    networks = record.rules.network_words()
    rows = [
        ("id", record.key_id),
        ("tenant", tenant),
        ("key", record.hint),
        ("name", record.name),
        ("description", record.description),
        ("created", date(record.created_s)),
        ("used", "never" if record.last_used_s is None else date(record.last_used_s)),
        ("state", standing(record, successor, time.time())),
        ("scopes", ", ".join(record.rules.scope_words())),
        ("models", ", ".join(record.rules.models)),
        ("from", "anywhere" if networks is None else ", ".join(networks)),
    ]
    echo_table(rows[0], rows[1:])


@app.command()
def revoke(key_id: KeyId, as_json: AsJson = False) -> None:
    """Close a key for good. Running gateways refuse it within a second."""
    record = with_directory(lambda directory: directory.revoke_key(key_id, now_s=time.time()))
    if as_json:
        echo_json(record.to_dict())
    else:
        typer.echo(f"revoked {record.key_id} ({record.hint})")


def standing(record: KeyRecord, successor: KeyRecord | None, now_s: float) -> str:
    """Whether a key opens anything, and until when; and whether one that was replaced is used."""
    if record.revoked_s is not None:
        return f"revoked {date(record.revoked_s)}"
    if record.expires_s is None:
        return "good"
    state = f"{'expired' if record.expires_s <= now_s else 'good until'} {date(record.expires_s)}"
    if record.successor_id is None:
        return state
    used_s = record.last_used_s
    is_used = successor is not None and used_s is not None and used_s > successor.created_s
    return f"{state}, replaced by {record.successor_id}{', still used' if is_used else ''}"


def _rules(scopes: str, models: str, networks: str) -> KeyRules:
    try:
        return parse_rules(scopes=_words(scopes), models=_words(models), networks=_words(networks))
    except KeyRulesError as error:
        raise typer.BadParameter(str(error)) from None


def _words(text: str) -> list[str]:
    """What stands between the commas; of nothing, nothing."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(words):
        raise typer.BadParameter(f"{text!r} has nothing between two commas")
    return words


def _tell_secret(secret: str, record: KeyRecord, tenant: str, *, as_json: bool) -> None:
    if as_json:
        echo_json({**record.to_dict(), "tenant": tenant, "key": secret})
        return
    until = "" if record.expires_s is None else f", good until {date(record.expires_s)}"
    typer.echo(f"{record.key_id} for {tenant}{until}; it is not shown again:", err=True)
    typer.echo(secret)


async def _tenant_names(directory: Directory) -> dict[str, str]:
    return {one.tenant_id: one.name for one in await directory.tenants()}
