"""`turnout tenants`: who may be issued keys, and on which plan."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.directory import AsJson, date, echo_json, echo_table, with_directory

if TYPE_CHECKING:
    from gateway.tenancy.tenants import Tenant

app = typer.Typer(no_args_is_help=True, help="Create, change and list tenants.")

Name = Annotated[str, typer.Argument(help="The tenant's name.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Lower-case name, as policies match it.")],
    plan: Annotated[str, typer.Option(help="The tenant's plan, from the policy file.")] = "demo",
    as_json: AsJson = False,
) -> None:
    """Add a tenant."""
    tenant = with_directory(lambda directory: directory.create_tenant(name, plan=plan))
    _tell(tenant, f"created tenant {tenant.name} on plan {tenant.plan}", as_json=as_json)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List all tenants with their plans."""
    tenants = with_directory(lambda directory: directory.tenants())
    if as_json:
        for tenant in tenants:
            echo_json(asdict(tenant))
        return
    rows = [(one.name, one.plan, _standing(one), one.tenant_id) for one in tenants]
    echo_table(("NAME", "PLAN", "STATE", "ID"), rows)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show one tenant."""
    tenant = with_directory(lambda directory: directory.tenant(name))
    text = f"{tenant.name} on plan {tenant.plan}, {_standing(tenant)} ({tenant.tenant_id})"
    _tell(tenant, text, as_json=as_json)


@app.command()
def update(
    name: Name,
    plan: Annotated[str, typer.Option(help="The new plan, from the policy file.")],
    as_json: AsJson = False,
) -> None:
    """Put a tenant on another plan. Running gateways follow within a second."""
    tenant = with_directory(lambda directory: directory.set_plan(name, plan))
    _tell(tenant, f"tenant {tenant.name} is on plan {tenant.plan} now", as_json=as_json)


@app.command()
def disable(name: Name, as_json: AsJson = False) -> None:
    """Refuse all keys of a tenant until it is enabled. Running gateways follow within a second."""
    tenant = with_directory(lambda directory: directory.disable_tenant(name, now_s=time.time()))
    _tell(tenant, f"disabled tenant {tenant.name}; its keys open nothing", as_json=as_json)


@app.command()
def enable(name: Name, as_json: AsJson = False) -> None:
    """Undo `disable`: the keys are what they were."""
    tenant = with_directory(lambda directory: directory.enable_tenant(name))
    _tell(tenant, f"enabled tenant {tenant.name}", as_json=as_json)


@app.command()
def delete(name: Name, as_json: AsJson = False) -> None:
    """Remove a disabled tenant and its keys, for good."""
    tenant = with_directory(lambda directory: directory.delete_tenant(name))
    _tell(tenant, f"deleted tenant {tenant.name} and its keys", as_json=as_json)


def _tell(tenant: Tenant, text: str, *, as_json: bool) -> None:
    if as_json:
        echo_json(asdict(tenant))
    else:
        typer.echo(text)


def _standing(tenant: Tenant) -> str:
    return "good" if tenant.disabled_s is None else f"disabled {date(tenant.disabled_s)}"
