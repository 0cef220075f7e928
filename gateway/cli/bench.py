"""`turnout bench`: a bounded load on a running server."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer


def bench(
    key: Annotated[str, typer.Option(help="A key of the server.", envvar="TURNOUT_KEY")],
    url: Annotated[str, typer.Option(help="Without /v1.")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option()] = "smollm2",
    requests: Annotated[int, typer.Option(min=1, max=100_000)] = 32,
    concurrency: Annotated[int, typer.Option(min=1, max=1024)] = 8,
    prompt_chars: Annotated[int, typer.Option(min=1)] = 200,
    max_tokens: Annotated[int, typer.Option(min=1)] = 32,
) -> None:
    """Measure TTFT, ITL and throughput as clients see them."""
    from gateway.bench import Load, run  # httpx: 0.1 s, for this command only

    load = Load(
        model=model,
        num_requests=requests,
        concurrency=concurrency,
        prompt_chars=prompt_chars,
        max_tokens=max_tokens,
    )
    report = asyncio.run(run(url, load.requests(key), concurrency=load.concurrency))
    for line in report.lines():
        typer.echo(line)
    if any(sample.error for sample in report.samples):
        raise typer.Exit(1)
