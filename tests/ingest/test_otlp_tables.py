"""The page about OpenTelemetry's tables matches the tables, and its SQL runs."""

import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest

import thermocline as tc
from ingest.otlp_requests import (
    NOW_NS,
    TRACE_ID,
    any_value,
    gauge_request,
    log_request,
    pairs,
    span_request,
)
from thermocline.ingest.otlp.limits import DecodeLimits
from thermocline.ingest.otlp.protobuf import decode_protobuf
from thermocline.ingest.otlp.tables import TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "otlp.md").read_text()
REQUESTS = {
    "metrics": gauge_request(
        3, name="http.server.active_requests", attributes={"http.route": "/pay"}
    ),
    "logs": log_request(
        severity_number=17,
        body=any_value("no money"),
        attributes=pairs({"http.status_code": 503}),
    ),
    "traces": span_request(trace_id=TRACE_ID),
}


@pytest.fixture
def lake(tmp_path):
    """Open a lake with a few rows of each signal."""
    with tc.connect(tmp_path / "lake") as opened:
        for table in TABLES.values():
            opened.create_table(table.name, **table.creation_options())
            opened.table(table.name).cold.adopt_columns(table.schema, evolve=True)
        for signal, request in REQUESTS.items():
            outcome = decode_protobuf(signal, request.SerializeToString(), arrived_ns=NOW_NS)
            for name, batch in outcome.batches.items():
                opened.table(name).write(batch)
        yield opened


def test_a_table_gets_the_retention_of_its_signal():
    kept = {"metrics": 86_400 * 400.0, "logs": 3_600.0, "spans": 0.0}
    given = {name: t.creation_options(kept).get("retention") for name, t in TABLES.items()}
    assert given == {
        "metric_points": timedelta(days=400),
        "metric_histograms": timedelta(days=400),
        "logs": timedelta(hours=1),
        "spans": None,
    }


def test_every_column_is_on_the_page_and_every_table():
    named = set(re.findall(r"`(\w+)`", PAGE))
    columns = {name for table in TABLES.values() for name in table.schema.names}
    assert columns - named == set()
    assert set(TABLES) - named == set()


def test_the_page_says_the_limits_as_they_are():
    written = dict(re.findall(r"\| `(\w+_max)` \| (\d+)", PAGE))
    defaults = DecodeLimits()
    assert written == {one.name: str(getattr(defaults, one.name)) for one in fields(DecodeLimits)}


@pytest.mark.parametrize("sql", re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL))
def test_the_questions_of_the_page_have_answers(lake, sql):
    rows = lake.sql(sql).to_pylist()
    assert len(rows) == (0 if "increase(" in sql else 1)  # one sample has no increase


def test_a_table_made_from_its_schema_takes_the_rows_and_keeps_its_types(lake):
    for name, table in TABLES.items():
        state = lake.table(name).cold.state()
        assert [c.name for c in state.schema.columns] == table.schema.names
        assert [c.type for c in state.schema.columns] == table.schema.types
        assert state.spec.time_column == "ts"
        assert state.spec.entity_columns == ("service_name",)
