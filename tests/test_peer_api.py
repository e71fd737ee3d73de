"""The first steps that a user of the peer library knows, with only the import changed."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq

import thermocline as peer

MIDNIGHT = datetime(2024, 6, 1, tzinfo=UTC)


def hourly(count, kind):
    """Return as many full hours, as integers cast to a timestamp type."""
    micros = [
        int((MIDNIGHT + timedelta(hours=hour)).timestamp() * 1_000_000) for hour in range(count)
    ]
    return pa.array(micros, type=kind)


def test_a_table_is_made_and_the_first_file_becomes_version_two(tmp_path):
    root, incoming = tmp_path / "prices_tbl", tmp_path / "incoming.parquet"
    table = peer.TimeSeriesTable.create(
        table_root=str(root),
        time_column="ts",
        bucket="1h",
        entity_columns=["symbol"],
        timezone=None,
    )
    closes = pa.array([10.0, 20.0, 30.0], type=pa.float64())
    symbols = pa.array(["NVDA"] * 3, type=pa.string())
    times = hourly(3, pa.timestamp("us"))
    pq.write_table(pa.table({"ts": times, "symbol": symbols, "close": closes}), str(incoming))
    assert table.append_parquet(str(incoming)) == 2
    assert table.version() == 2
    assert table.to_arrow().column("close").to_pylist() == [10.0, 20.0, 30.0]


def test_two_tables_are_joined_on_time_and_symbol_in_one_session(tmp_path):
    def stored(name, **column):
        root, segment = tmp_path / f"{name}_tbl", tmp_path / f"{name}.parquet"
        table = peer.TimeSeriesTable.create(
            table_root=str(root),
            time_column="ts",
            bucket="1h",
            entity_columns=["symbol"],
            timezone=None,
        )
        times = hourly(2, pa.timestamp("us", tz="UTC"))
        pq.write_table(pa.table({"ts": times, "symbol": ["NVDA", "NVDA"], **column}), str(segment))
        table.append_parquet(str(segment))
        return str(root)

    session = peer.Session()
    session.register_tstable("prices", stored("prices", close=[10.0, 11.0]))
    session.register_tstable("volumes", stored("volumes", volume=[100, 120]))
    joined = session.sql(
        """
        select p.ts as ts, p.symbol as symbol, p.close as close, v.volume as volume
        from prices p join volumes v on p.ts = v.ts and p.symbol = v.symbol
        order by ts
        """
    )
    assert isinstance(joined, pa.Table)
    assert joined.to_pylist() == [
        {"ts": MIDNIGHT, "symbol": "NVDA", "close": 10.0, "volume": 100},
        {"ts": MIDNIGHT + timedelta(hours=1), "symbol": "NVDA", "close": 11.0, "volume": 120},
    ]
