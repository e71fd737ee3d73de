"""dlt's destination: loads into a folder and a node, repeated, refused, and wider than before."""

import datetime as dt
import shutil

import dlt
import pytest
from dlt.pipeline.exceptions import PipelineStepFailed

import thermocline as tc
from fixtures.api import serving
from thermocline.dlt_destination import destination, time_series, write_file
from thermocline.errors import Invalid

FIRST = dt.datetime(2024, 6, 1, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def calm(monkeypatch, tmp_path):
    monkeypatch.setenv("RUNTIME__DLTHUB_TELEMETRY", "false")
    monkeypatch.setenv("LOAD__RAISE_ON_MAX_RETRIES", "1")
    monkeypatch.chdir(tmp_path)


def readings(count=3, **more):
    """Return a resource with a row for each minute."""
    times = [FIRST + dt.timedelta(minutes=number) for number in range(count)]
    rows = [
        {"ts": at, "sensor": "attic", "celsius": 20.0 + number, **more}
        for number, at in enumerate(times)
    ]
    return dlt.resource(rows, name="readings")


def load(tmp_path, place, resource, **options):
    pipeline = dlt.pipeline(
        "weather", destination=destination(place, **options), pipelines_dir=str(tmp_path / "dlt")
    )
    pipeline.run(resource)
    return pipeline


def test_loads_are_rows_of_a_table_that_the_first_one_creates(tmp_path):
    place = tmp_path / "lake"
    named = time_series(readings(), time_column="ts", entity_columns="sensor", bucket="15m")
    load(tmp_path, place, named)
    load(tmp_path, place, readings(2, humidity=0.5))
    with tc.connect(place) as lake:
        assert lake.tables() == ["readings"]
        info = lake.table("readings").info()
        assert (info["bucket"], info["entity_columns"]) == ("15m", ["sensor"])
        sql = "select count(*) as n, count(humidity) as wide, max(celsius) as high from readings"
        assert lake.sql(sql).to_pylist() == [{"n": 5, "wide": 2, "high": 22.0}]


def test_a_file_that_dlt_hands_over_again_under_its_next_number_adds_no_row(tmp_path):
    place = str(tmp_path / "lake")
    seen = []

    @dlt.destination(batch_size=0, loader_file_format="parquet", name="thermocline")
    def keeps(items: str, table: dict) -> None:
        write_file(place, None, items, table)
        again = items.replace(".0.parquet", ".1.parquet")
        assert again != items
        shutil.copy(items, again)
        write_file(place, None, again, table)
        seen.append(items)

    dlt.pipeline("weather", destination=keeps, pipelines_dir=str(tmp_path / "dlt")).run(readings())
    assert len(seen) == 1
    with tc.connect(place) as lake:
        assert lake.sql("select count(*) as n from readings").to_pylist() == [{"n": 3}]


def test_a_node_takes_loads_with_a_key(tmp_path):
    with serving(tmp_path, has_keys=True) as served:
        key = served.new_key(scopes=["ingest", "query", "admin"])
        load(tmp_path, served.url, readings(), api_key=key)
        found = served.node.lake().sql("select count(*) as n from readings")
        assert found.to_pylist() == [{"n": 3}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"write_disposition": "replace"}, "only takes rows to append"),
        ({"write_disposition": "merge", "primary_key": "sensor"}, "only takes rows to append"),
    ],
)
def test_what_would_remove_rows_is_refused(tmp_path, change, words):
    resource = readings()
    resource.apply_hints(**change)
    with pytest.raises(PipelineStepFailed, match=words):
        load(tmp_path, tmp_path / "lake", resource)


def test_a_table_with_two_times_needs_a_word_about_which_one(tmp_path):
    with pytest.raises(PipelineStepFailed, match="time column is not known"):
        load(tmp_path, tmp_path / "lake", readings(1, seen=FIRST))
    with pytest.raises(Invalid):
        time_series(readings(), time_column=1)
