"""`turnout usage` on a real database, as an operator calls it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.usage.record import UsageRecord
from gateway.usage.store import UsageStore
from tests.gateway.usage.examples import RECORD, record

DAY_S = 86_400


def written(home: Path, *records: UsageRecord) -> None:
    async def run() -> None:
        store = await UsageStore.open(home)
        await store.append(records)
        await store.aclose()

    asyncio.run(run())


def turnout(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["usage", *arguments])
    assert result.exit_code == exit_code, result.output
    return result.stdout if exit_code == 0 else result.stderr


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNOUT_HOME", str(tmp_path))
    written(
        tmp_path,
        record("a"),
        record("b", time_s=RECORD.time_s + 1, estimated=True, cost_micros=1_000_000),
        record("c", time_s=RECORD.time_s + DAY_S, cost_micros=None),
        record("d", time_s=RECORD.time_s + DAY_S, tenant="globex", model="big", currency="USD"),
    )
    return tmp_path


def test_a_table_has_a_line_for_each_and_a_total_in_each_currency(home: Path) -> None:
    assert turnout("--by", "tenant,day") == (
        "TENANT  DAY         REQUESTS  PROMPT  CACHED  COMPLETION  ESTIMATED  COST\n"
        "acme    2026-12-01         2      20       8          10     ~50.0%  1.000007 EUR\n"
        "acme    2026-12-02         1      10       4           5          -"
        "  0.000000 EUR + 1 without a price\n"
        "globex  2026-12-02         1      10       4           5          -  0.000007 USD\n"
        "TOTAL                      3      30      12          15     ~33.3%"
        "  1.000007 EUR + 1 without a price\n"
        "TOTAL                      1      10       4           5          -  0.000007 USD\n"
    )


def test_without_a_currency_nothing_is_said_of_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_HOME", str(tmp_path))
    written(tmp_path, record("a", currency="", cost_micros=None))
    assert turnout().splitlines()[1].split() == ["acme", "1", "10", "4", "5", "-", "-"]


def test_csv_can_be_added_up(home: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(turnout("--by", "model", "--format", "csv"))))
    assert [row["model"] for row in rows] == ["big", "echo"]
    assert sum(int(row["requests"]) for row in rows) == 4
    assert sum(int(row["cost_micros"]) for row in rows) == 1_000_007 + 7
    assert [row["unpriced_requests"] for row in rows] == ["0", "1"]


def test_json_has_lines_and_totals(home: Path) -> None:
    whole = json.loads(turnout("--format", "json", "--tenant", "acme", "--by", "plan,key"))
    (line,) = whole["lines"]
    assert (line["plan"], line["key"], line["requests"]) == ("demo", "key_1", 3)
    assert line["estimated_tokens"] == 15
    assert whole["totals"] == [{k: v for k, v in line.items() if k not in ("plan", "key")}]


def test_days_are_those_of_the_time_zone(home: Path) -> None:
    """The first requests were made at midnight UTC, which is in the evening before elsewhere."""
    lines = turnout("--by", "day", "--tz", "America/New_York", "--format", "csv").splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["2026-11-30", "2026-12-01", "2026-12-01"]
    since = ("--since", "2026-12-01", "--tz", "America/New_York")
    assert len(turnout("records", *since).splitlines()) == 2


def test_a_period_ends_before_its_last_moment(home: Path) -> None:
    december_1st = ("--since", "2026-12-01", "--until", "2026-12-02")
    lines = turnout("records", *december_1st).splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == ["a", "b"]


def test_ages_count_from_now(home: Path) -> None:
    now_s = time.time()
    written(home, record("old", time_s=now_s - 7300), record("new", time_s=now_s - 7100))
    hours = turnout("records", "--since", "2h", "--until", "2999-01-01").splitlines()
    ids = [json.loads(line)["request_id"] for line in hours]
    assert "new" in ids
    assert "old" not in ids


def test_records_are_written_one_a_line(home: Path) -> None:
    (line,) = turnout("records", "--model", "big").splitlines()
    values = json.loads(line)
    assert values.pop("time") == "2026-12-02T00:00:00.250+00:00"
    assert UsageRecord(**values).tenant == "globex"
    header, first, *_ = csv.reader(io.StringIO(turnout("records", "--format", "csv")))
    assert dict(zip(header, first, strict=True))["cost_micros"] == "7"
    assert header[:3] == ["time", "request_id", "time_s"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--by", "colour"), "'colour' is none of tenant, model"),
        (("--by", "day,day"), "each may be named once"),
        (("--since", "yesterday"), "'yesterday' is no time"),
        (("--tz", "Nowhere"), "'Nowhere' is no time zone here"),
        (("--tenant", "acme", "records"), "options go behind 'records'"),
        (("records", "--until", "13h30"), "'13h30' is no time"),
    ],
)
def test_what_cannot_be_asked_is_said(
    home: Path, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert message in turnout(*arguments, exit_code=2)


def test_a_database_that_cannot_be_read_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_HOME", str(tmp_path))
    (tmp_path / "usage.db").write_text("flour, eggs, sugar\n" * 100)
    assert "turnout: cannot open" in turnout(exit_code=1)
