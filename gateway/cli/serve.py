"""`turnout serve`: the supervisor of engines and gateway, in the foreground."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.config import Settings, load_settings

if TYPE_CHECKING:
    from gateway.policy.model import Policy

DEMO = "demo"

SNIPPETS = """\

    curl {base_url}/v1/chat/completions \\
      -H 'Authorization: Bearer {key}' \\
      -H 'Content-Type: application/json' \\
      -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Say hello."}}]}}'

    from openai import OpenAI
    client = OpenAI(base_url="{base_url}/v1", api_key="{key}")
    answer = client.chat.completions.create(
        model="{model}", messages=[{{"role": "user", "content": "Say hello."}}]
    )
    print(answer.choices[0].message.content)
"""


def serve(
    demo: Annotated[
        bool, typer.Option("--demo", help="Create the tenant `demo` and show its key once.")
    ] = False,
    policy: Annotated[Path | None, typer.Option(help="The policy file.")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes any free port.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Gateway processes that share the port.")
    ] = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; running requests are finished first."""
    # what serving needs is imported by serving only: `--help` stays instant
    from backends.registry import BackendConfigError
    from gateway import launch
    from gateway.catalog import CatalogError
    from gateway.policy.load import PolicyError
    from gateway.telemetry import logs

    settings = load_settings()
    settings = replace(
        settings,
        policy=policy or settings.policy,
        port=settings.port if port is None else port,
        workers=settings.workers if workers is None else workers,
    )
    logs.configure(settings.log_level, as_json=settings.log_json)

    async def announce(base_url: str, policy: Policy) -> None:
        typer.echo(f"\nTurnout serves {', '.join(policy.models)} on {base_url}")
        if demo:
            typer.echo(await _introduce(settings, base_url, policy))

    try:
        exit_code = asyncio.run(launch.run(settings, announce))
    except (launch.LaunchError, PolicyError, CatalogError, BackendConfigError) as error:
        typer.echo(f"turnout: {error}", err=True)
        raise typer.Exit(os.EX_CONFIG) from error
    raise typer.Exit(exit_code)


async def _introduce(settings: Settings, base_url: str, policy: Policy) -> str:
    """The demo tenant's key, if it is new, and how to use it."""
    from gateway.tenancy.database import open_directory  # SQLAlchemy: 0.25 s, for `--demo` only

    directory = await open_directory(settings)
    try:
        if any(tenant.name == DEMO for tenant in await directory.tenants()):
            return (
                f"Tenant {DEMO} exists; its key was shown when it was created. "
                f"Another one: turnout keys create {DEMO}"
            )
        plan = DEMO if DEMO in policy.plans else next(iter(policy.plans))
        await directory.create_tenant(DEMO, plan=plan)
        key, _ = await directory.create_key(DEMO, name="first", now_s=time.time())
    finally:
        await directory.aclose()
    head = f"Tenant {DEMO} was created. Its key, shown this once: {key}\n"
    return head + SNIPPETS.format(base_url=base_url, key=key, model=policy.default_model)
