"""What a table's user says about columns and files: schema, metadata, structs, writer settings."""

import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import thermocline as tc
from fixtures.lake import rows
from thermocline.errors import EntityLimitReached, Invalid, NotFound

TS = pa.timestamp("us")
DEVICE = pa.struct([("os", pa.string())])
WIDER = pa.struct([("os", pa.string()), ("arch", pa.string())])


def made(tmp_path, **options):
    return tc.TimeSeriesTable.create(tmp_path / "t", time_column="ts", bucket="1h", **options)


def devices(hour, kind, value):
    return pa.table(
        {"ts": pa.array([hour * 3_600_000_000], TS), "device": pa.array([value], kind)},
    )


def test_declared_columns_are_there_before_the_first_row(tmp_path):
    kept = pa.schema(
        [
            pa.field("ts", TS, metadata={"clock": "GPS"}),
            pa.field("celsius", pa.float32(), metadata={"unit": "°C"}),
        ],
        metadata={"owner": "ops"},
    )
    table = made(tmp_path, schema=kept)
    assert table.schema().field("celsius").metadata == {b"unit": "°C".encode()}
    assert table.schema().metadata == {b"owner": b"ops"}
    session = tc.Session()
    session.register_tstable("t", table.root())
    assert session.sql("select celsius from t").schema.types == [pa.float32()]
    with pytest.raises(Invalid, match="columns, or wider types"):
        table.append(pa.table({"ts": pa.array([0], TS), "more": [1]}))
    table.append(pa.table({"ts": pa.array([0], TS), "celsius": pa.array([1.5], pa.float32())}))
    found = tc.TimeSeriesTable.open(table.root()).to_arrow()
    assert found.schema.equals(table.schema(), check_metadata=True)


@pytest.mark.parametrize(
    "columns",
    [
        {"ts": "nothing"},
        {"close": "float64"},
        {"ts": "int64"},
        [("ts", TS)],
        {"ts": "timestamp", "TS": "int8"},
    ],
)
def test_columns_that_no_table_can_have_are_refused(tmp_path, columns):
    with pytest.raises(Invalid):
        made(tmp_path, schema=columns)


def test_metadata_of_the_first_append_is_kept_and_that_of_a_frame_is_not(tmp_path):
    table = made(tmp_path)
    first = devices(0, pa.int64(), 1).replace_schema_metadata({"owner": "ops", "pandas": "{}"})
    table.append(first)
    table.append(devices(1, pa.int64(), 2))
    table.add_columns(pa.schema([pa.field("note", pa.string(), metadata={"by": "hand"})]))
    table.checkpoint()
    schema = tc.TimeSeriesTable.open(table.root()).schema()
    assert schema.metadata == {b"owner": b"ops"}
    assert schema.field("note").metadata == {b"by": b"hand"}


@pytest.mark.parametrize(
    "added",
    [
        pa.schema([pa.field("a", pa.int8(), nullable=False)]),
        pa.schema([("a", pa.int8())], metadata={"a": "b"}),
        pa.schema([("a", pa.int8()), ("a", pa.int8())]),
        pa.schema([("device", pa.int8())]),
        pa.schema([]),
        [("a", pa.int8())],
    ],
)
def test_columns_that_cannot_be_added_are_refused(tmp_path, added):
    table = made(tmp_path)
    table.append(devices(0, pa.int64(), 1))
    with pytest.raises(Invalid):
        table.add_columns(added)


def test_a_field_is_added_inside_of_a_struct(tmp_path):
    table = made(tmp_path)
    table.append(devices(0, DEVICE, {"os": "a"}))
    with pytest.raises(Invalid, match="wider types"):
        table.append(devices(1, WIDER, {"os": "b", "arch": "x"}))
    table.append(devices(1, WIDER, {"os": "b", "arch": "x"}), evolve=True)
    table.append(devices(2, DEVICE, {"os": "c"}))
    table.append(devices(3, pa.struct([("ram", pa.int64())]), {"ram": 8}), evolve=True)
    found = table.to_arrow().sort_by("ts").column("device").to_pylist()
    assert [(one["os"], one["arch"], one["ram"]) for one in found] == [
        ("a", None, None),
        ("b", "x", None),
        ("c", None, None),
        (None, None, 8),
    ]
    session = tc.Session()
    session.register_tstable("t", table.root())
    answer = session.sql("select device.arch a, device.ram r from t order by ts").to_pylist()
    assert [(row["a"], row["r"]) for row in answer] == [
        (None, None),
        ("x", None),
        (None, None),
        (None, 8),
    ]


def test_a_dropped_column_is_gone_from_now_on_and_its_name_is_free(table):
    table.append(rows([0, 1]))
    version = table.version()
    table.drop_column("close")
    assert "close" not in table.schema().names
    assert "close" in table.schema(version).names
    with pytest.raises(NotFound):
        table.scan(["close"])
    table.add_column("close", pa.string())
    assert set(table.to_arrow().column("close").to_pylist()) == {None}
    assert table.to_arrow(at=version).column("close").to_pylist() == [0.0, 1.0]
    assert table.fsck().is_sound


@pytest.mark.parametrize(
    ("name", "error"), [("ts", Invalid), ("symbol", Invalid), ("no", NotFound)]
)
def test_a_column_of_the_key_is_not_dropped(table, name, error):
    table.append(rows([0]))
    with pytest.raises(error):
        table.drop_column(name)


def test_the_limit_of_entities_can_be_raised_and_not_cut(tmp_path):
    table = made(tmp_path, entity_columns="symbol", entities_max=1)
    table.append(rows([0]))
    with pytest.raises(EntityLimitReached):
        table.append(rows([0], "AMD"))
    table.set_entities_max(2)
    table.append(rows([0], "AMD"))
    with pytest.raises(EntityLimitReached):
        table.set_entities_max(1)


def test_segments_are_written_as_the_table_and_the_append_say(tmp_path):
    table = made(tmp_path, writer={"compression": "snappy", "rows_per_group": 2})
    report = table.append(pa.table({"ts": pa.array([0, 1, 2], TS), "a": ["x", "x", "x"]}))
    assert (report, report.starting_version, report.committed_version) == (2, 1, 2)
    assert (report.row_count, report.row_group_count, report.compression) == (3, 2, "snappy")
    footer = pq.read_metadata(f"{table.root()}/{report.segment_path}")
    assert footer.num_row_groups == 2
    assert footer.row_group(0).column(1).compression == "SNAPPY"
    table.set_writer(compression="zstd", level=9, dictionary=False)
    hour = 3_600_000_000
    plain = table.append(pa.table({"ts": pa.array([hour], TS), "a": ["x"]}))
    column = pq.read_metadata(f"{table.root()}/{plain.segment_path}").row_group(0).column(1)
    assert (column.compression, column.has_dictionary_page) == ("ZSTD", False)
    once = table.append(
        pa.table({"ts": pa.array([2 * hour, 2 * hour + 1], TS), "a": ["x", "y"]}),
        compression="UNCOMPRESSED",
        max_rows_per_row_group=1,
    )
    assert (once.row_group_count, once.compression) == (2, "uncompressed")
    assert tc.TimeSeriesTable.open(table.root()).spec().writer.level == 9
    assert table.fsck().is_sound


@pytest.mark.parametrize(
    "writer",
    [
        {"compression": "lzo"},
        {"level": 23},
        {"rows_per_group": 0},
        {"dictionary": 1},
        {"speed": 1},
        3,
    ],
)
def test_writer_settings_that_do_not_exist_are_refused(tmp_path, writer):
    with pytest.raises(Invalid):
        made(tmp_path, writer=writer)


def test_an_append_that_was_made_already_reports_no_row(table):
    first = table.append(rows([0]), txn=("job", 1))
    again = table.append(rows([1]), txn=("job", 1))
    assert (first.row_count, again.row_count, again.segment_path) == (1, 0, "")
    assert again.starting_version == again.committed_version == first


def test_a_fact_of_an_error_is_an_attribute_of_it(table):
    table.append(rows([0, 1]))
    with pytest.raises(tc.CoverageOverlapError) as caught:
        table.append(rows([1]))
    error = caught.value
    assert (error.conflict_count, error.example_identity) == (1, {"symbol": "NVDA"})
    assert error.example_index_interval == "[2024-06-01T01:00:00Z, 2024-06-01T02:00:00Z)"
    assert error.bucket == "1h"
    with pytest.raises(AttributeError):
        _ = error.nothing


def test_uuids_and_json_are_kept_as_what_they_are(tmp_path):
    ids = [uuid.UUID(int=1), uuid.UUID(int=2**127), None]
    with tc.connect(tmp_path / "lake") as lake:
        table = lake.create_table(
            "m",
            time_column="ts",
            bucket="1h",
            schema={"ts": "timestamp[us]", "id": "uuid", "doc": "json"},
        )
        assert table.spec().features == ("uuid_json",)
        times = [f"2024-06-01T00:0{minute}:00" for minute in range(3)]
        docs = [{"a": [1, 2]}, '{"b": null}', None]
        table.write(
            [{"ts": t, "id": i, "doc": d} for t, i, d in zip(times, ids, docs, strict=True)]
        )
        for _ in ("hot", "cold"):
            found = lake.sql("select id, doc->'$.a' a from m order by ts").to_pylist()
            assert [row["id"] for row in found] == [i and str(i) for i in ids]
            assert found[0]["a"] == "[1,2]"
            exact = table.to_arrow()
            assert exact.schema.types[1:] == [pa.uuid(), pa.json_()]
            assert exact.column("id").to_pylist() == ids
            table.flush()
        where = f"select count(*) n from m where id = '{ids[1]}'"
        assert lake.sql(where).column("n").to_pylist() == [1]
        with pytest.raises(Invalid):
            table.write([{"ts": times[0], "id": "no uuid"}])
        with pytest.raises(Invalid):
            table.write([{"ts": times[0], "doc": "{no json"}])
    plain = made(tmp_path)
    plain.append(pa.table({"ts": pa.array([0], TS), "id": pa.array([ids[0]], pa.uuid())}))
    assert plain.spec().features == ("uuid_json",)
    assert plain.to_arrow().column("id").to_pylist() == ids[:1]
