"""`turnout tenants`: who may be issued keys, and on which plan."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.directory import echo_table, with_directory

app = typer.Typer(no_args_is_help=True, help="Create and list tenants.")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Lower-case name, as policies match it.")],
    plan: Annotated[str, typer.Option(help="The tenant's plan, from the policy file.")] = "demo",
) -> None:
    """Add a tenant."""
    tenant = with_directory(lambda directory: directory.create_tenant(name, plan=plan))
    typer.echo(f"created tenant {tenant.name} on plan {tenant.plan}")


@app.command("list")
def list_() -> None:
    """List all tenants with their plans."""
    tenants = with_directory(lambda directory: directory.tenants())
    rows = [(tenant.name, tenant.plan, tenant.tenant_id) for tenant in tenants]
    echo_table(("NAME", "PLAN", "ID"), rows)
