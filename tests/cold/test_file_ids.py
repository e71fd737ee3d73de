"""Field ids in segments: every file that we write has them, at every level; a copied file none."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import thermocline as tc
from fixtures.lake import HOUR_US, JUNE_US
from thermocline.format.field_ids import field_ids

GOLDEN = Path(__file__).parent.parent / "golden" / "identified" / "segment.parquet"
NESTED = pa.schema(
    [
        ("ts", pa.timestamp("us", tz="UTC")),
        ("host", pa.string()),
        ("at", pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])),
        ("labels", pa.map_(pa.string(), pa.int64())),
        ("word", pa.dictionary(pa.int32(), pa.string())),
    ]
)


def nested(hour, schema=NESTED, host="a"):
    values = {
        "ts": JUNE_US + hour * HOUR_US,
        "host": host,
        "at": {"x": hour, "tags": ["t"]},
        "labels": {"k": 1},
        "word": "w",
    }
    return pa.Table.from_pylist([{name: values.get(name) for name in schema.names}], schema)


def ids_in(path):
    """Return the ids of each column of a file, in the order of its type."""
    with pq.ParquetFile(path) as file:
        return {field.name: list(_inside(field)) for field in file.schema_arrow}


def _inside(field):
    yield int((field.metadata or {}).get(b"PARQUET:field_id", -1))
    kind = field.type
    is_map = pa.types.is_map(kind)
    inner = [kind.key_field, kind.item_field] if is_map else [*map(kind.field, _places(kind))]
    for one in inner:
        yield from _inside(one)


def _places(kind):
    return range(0 if pa.types.is_dictionary(kind) else kind.num_fields)


def ids_of(table):
    """Return the ids that a table's files are to have, by the present names."""
    return {c.name: list(field_ids(c.id, c.type)) for c in table.cold.state().schema.columns}


def live_files(table):
    return [f"{table.root()}/{segment.path}" for segment in table.cold.state().segments]


def test_every_file_of_every_kind_of_change_has_the_ids_of_its_columns(make):
    table = make(entity_columns=["host"], overlap="allow")
    table.append(nested(0))
    table.append(nested(1))
    table.rename_column("at", "place")
    again = NESTED.set(2, pa.field("at", pa.list_(pa.int8(), 2)))
    values = {**nested(2).to_pylist()[0], "at": [1, 2], "place": {"x": 2, "tags": []}}
    both = again.append(NESTED.field("at").with_name("place"))
    table.append(pa.Table.from_pylist([values], both), evolve=True)
    update = pa.table({"ts": nested(1)["ts"], "host": ["a"], "word": ["other"]})
    table.update_rows(update)
    wanted = ids_of(table)
    for path in live_files(table):
        found = ids_in(path)
        assert "place" in found or found["at"] == wanted["place"]
        assert found.items() <= {**wanted, "at": found["at"]}.items()
    assert wanted["at"] != wanted["place"]


def test_a_flush_writes_ids(tmp_path):
    with tc.connect(tmp_path / "lake") as lake:
        table = lake.create_table("t", time_column="ts", bucket="1h", entity_columns=["host"])
        table.write(nested(0))
        table.flush()
        assert [ids_in(path) for path in live_files(table)] == [ids_of(table)]


def test_a_copied_file_keeps_its_bytes_and_has_no_ids(make, tmp_path):
    table = make(entity_columns=["host"])
    pq.write_table(nested(0), tmp_path / "incoming.parquet")
    table.append_parquet(tmp_path / "incoming.parquet")
    (path,) = live_files(table)
    assert Path(path).read_bytes() == (tmp_path / "incoming.parquet").read_bytes()
    assert {one for ids in ids_in(path).values() for one in ids} == {-1}


def test_the_golden_segment_has_the_ids_that_are_written_today(make):
    table = make(entity_columns=["host"])
    table.append(nested(0))
    (path,) = live_files(table)
    assert ids_in(GOLDEN) == ids_in(path) == ids_of(table)
    assert pq.read_table(GOLDEN).equals(table.to_arrow())
