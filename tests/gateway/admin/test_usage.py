"""Reports and records over the admin API: what `turnout usage` says of the same database."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc

import pytest

from gateway.usage import store as store_module
from tests.gateway.admin.operator import Operator
from tests.gateway.serving import CHAT, chat
from tests.gateway.usage.examples import RECORD, record

DAY_S = 86_400


@pytest.fixture
async def operator(operator: Operator) -> Operator:
    await operator.gateway.usage.append(
        [
            record("a"),
            record("b", time_s=RECORD.time_s + DAY_S, tenant="globex"),
            record("c", time_s=RECORD.time_s + DAY_S),
        ]
    )
    return operator


PERIOD = "since=2026-12-01&until=2026-12-03"


async def test_a_report_has_lines_and_totals(operator: Operator) -> None:
    answer = await operator.ask("GET", f"/usage?by=tenant,day&{PERIOD}")
    assert answer.response_headers["content-type"] == "application/json"
    report = answer.json()
    assert [(one["tenant"], one["day"], one["requests"]) for one in report["lines"]] == [
        ("acme", "2026-12-01", 1),
        ("acme", "2026-12-02", 1),
        ("globex", "2026-12-02", 1),
    ]
    assert [total["requests"] for total in report["totals"]] == [3]


async def test_a_report_can_be_csv_and_of_one_tenant(operator: Operator) -> None:
    answer = await operator.ask("GET", f"/usage?format=csv&tenant=acme&{PERIOD}")
    assert answer.response_headers["content-type"] == "text/csv; charset=utf-8"
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert (row["tenant"], row["requests"]) == ("acme", "2")


async def test_records_come_as_lines_of_json_or_csv(operator: Operator) -> None:
    answer = await operator.ask("GET", f"/usage/records?{PERIOD}")
    assert answer.response_headers["content-type"] == "application/x-ndjson"
    assert answer.response_headers["cache-control"] == "no-store"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["request_id"] for line in lines] == ["a", "b", "c"]
    assert lines[0]["time"].startswith("2026-12-01T")
    as_csv = await operator.ask("GET", f"/usage/records?format=csv&{PERIOD}")
    rows = list(csv.DictReader(io.StringIO(as_csv.text)))
    assert [row["request_id"] for row in rows] == ["a", "b", "c"]


async def test_no_records_are_an_empty_answer_with_the_header_of_csv(operator: Operator) -> None:
    answer = await operator.ask("GET", "/usage/records?tenant=nobody")
    assert (answer.status, answer.text) == (200, "")
    answer = await operator.ask("GET", "/usage/records?tenant=nobody&format=csv")
    assert answer.text.startswith("time,request_id,")


async def test_a_request_that_was_served_is_reported(operator: Operator) -> None:
    await operator.gateway.call(CHAT, chat())
    await operator.gateway.records()  # carried to the database
    (line,) = (await operator.ask("GET", "/usage?by=model&since=1h")).json()["lines"]
    assert (line["model"], line["requests"], line["prompt_tokens"]) == ("echo", 1, 3)


async def test_an_export_comes_in_pieces_and_is_never_in_memory_as_a_whole(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "ROWS_AT_A_TIME", 100)
    many = [record(f"x{i:05}", tenant="many") for i in range(5000)]
    await operator.gateway.usage.append(many)
    headers = {"authorization": f"Bearer {operator.key}"}
    path = f"/admin/v1/usage/records?tenant=many&{PERIOD}"
    caller = operator.gateway.caller(path, b"", method="GET", headers=headers)
    caller.leave_after_chunks = 2
    tracemalloc.start()
    await caller.run()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    whole = await operator.ask("GET", f"/usage/records?tenant=many&{PERIOD}")
    assert whole.text.count("\n") == 5000
    assert len(whole.chunks) > 20
    assert len(caller.chunks) < len(whole.chunks)  # who left got no more
    assert peak_bytes < len(whole.text) / 2


@pytest.mark.parametrize(
    ("path", "param", "message"),
    [
        ("/usage?by=colour", "by", "'colour' is none of tenant, model"),
        ("/usage?by=tenant,tenant", "by", "may be named once"),
        ("/usage?since=yesterday", "since", "'yesterday' is no time"),
        ("/usage?tz=Mars/Olympus", "tz", "is no time zone"),
        ("/usage?format=table", "format", "must be json or csv"),
        ("/usage/records?format=json", "format", "must be ndjson or csv"),
        ("/usage/records?by=tenant", "by", "Unknown parameter 'by'"),
        ("/usage/records?until=soon", "until", "'soon' is no time"),
    ],
)
async def test_a_question_that_cannot_be_answered_is_refused(
    operator: Operator, path: str, param: str, message: str
) -> None:
    answer = await operator.ask("GET", path)
    assert answer.status == 400
    assert answer.json()["error"]["param"] == param
    assert message in answer.json()["error"]["message"]


async def test_a_database_that_fails_is_a_503(operator: Operator) -> None:
    async with operator.gateway.usage._engine.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE usage RENAME TO elsewhere")
    for path in ("/usage", "/usage/records"):
        message = await operator.refused("GET", path, status=503, code="server_is_overloaded")
        assert message == "The database cannot be used at the moment; try again."
