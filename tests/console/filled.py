"""A node with something on every screen: gaps, hot rows, versions, labels that are markup."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from fixtures.entities import ORDER
from thermocline.errors import Unavailable
from thermocline.pipeline.run.history import COLUMNS, DONE, FAILED, TaskRecord
from thermocline.pipeline.run.history import NAME as JOBS

MARKUP = '<img src=x onerror="document.title=1">'
HOURS = 120
START = datetime(2024, 6, 1)
JSON = {"Content-Type": "application/json"}
SYMBOLS = ("AMD", "ARM", "INTC", "MU", "NVDA", MARKUP)


def is_missing(symbol, hour):
    """Return whether an hour of a symbol was never written."""
    return (
        (symbol == "AMD" and 36 <= hour < 60)
        or (symbol == "NVDA" and 100 <= hour < 103)
        or (symbol == "MU" and hour % 24 < 7)
        or (symbol == MARKUP and hour < 50)
    )


def prices(hours):
    """Return the rows of some hours, of every symbol that has them."""
    return [
        {
            "ts": (START + timedelta(hours=hour)).isoformat(),
            "symbol": symbol,
            "close": round(100 + 10 * place + (hour * (place + 3)) % 17 / 3, 2),
            "volume": 1_000 * (place + 1) + hour,
        }
        for hour in hours
        for place, symbol in enumerate(SYMBOLS)
        if not is_missing(symbol, hour)
    ]


def fill(client):
    """Make a table with four versions and hot rows, and an empty one."""
    for name in ("prices", "quiet"):
        body = {"name": name, "time_column": "ts", "bucket": "1h", "entity_columns": ["symbol"]}
        assert client.post("/api/v1/tables", json=body).status_code == 201
    for first in range(0, HOURS, HOURS // 3):
        write(client, prices(range(first, first + HOURS // 3)))
        assert client.post("/api/v1/tables/prices/flush").status_code == 200
    write(client, prices(range(HOURS, HOURS + 10)))


def write(client, rows):
    """Write rows of prices."""
    answer = client.post("/api/v1/tables/prices/rows", content=json.dumps(rows), headers=JSON)
    assert answer.status_code == 200, answer.text


def fill_jobs(lake):
    """Write down two jobs of the pipeline, as they do themselves."""
    failed = Unavailable("the executor is gone", hint="look at it")
    ran = [
        TaskRecord(
            START.replace(tzinfo=UTC), "compact", "prices", DONE, 1_250, 4, {"segments": 40}
        ),
        TaskRecord(START.replace(tzinfo=UTC), "rollup", MARKUP, FAILED, 90, error=failed),
    ]
    table = lake.create_table(JOBS, time_column="started_at", bucket="1h")
    table.append(pa.Table.from_pylist([one.row() for one in ran], COLUMNS), evolve=True)


def fill_entities(client):
    """Register a type and write some documents, one of them twice."""
    assert client.post("/api/v1/entities/order/schema", json=ORDER).status_code == 200
    for number in range(12):
        body = {"status": "open", "quantity": number, "note": MARKUP if number == 3 else None}
        assert client.put(f"/api/v1/entities/order/o-{number}", json=body).status_code == 201
    client.post("/api/v1/entities/order/export")
    client.put("/api/v1/entities/order/o-3", json={"status": "paid", "quantity": 3})
