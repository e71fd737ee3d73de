"""The list of series is at every moment what a scan of all samples says."""

import random
import shutil
from datetime import UTC, datetime

import pytest

import thermocline as tc
from query.series_model import Point
from query.test_series import point_row, random_points
from query.test_series_histogram import histogram_row, random_histograms
from thermocline.errors import Invalid, NotFound
from thermocline.ingest.otlp.tables import TABLES

LISTED = (
    "select series_id, metric, type, temporality, is_monotonic, service_name, attributes,"
    " first_seen, last_seen, samples, table_name from metric_series() order by all"
)
SCANNED = " union all ".join(
    "select series_id, any_value(metric), any_value(type), any_value(temporality),"
    " any_value(is_monotonic), any_value(service_name), any_value(attributes),"
    f" min(ts), max(ts), count(*), '{name}' from {name} group by series_id"
    for name in ("metric_points", "metric_histograms")
)


def make_table(lake, name):
    table = TABLES[name]
    made = lake.create_table(name, **table.creation_options())
    made.cold.adopt_columns(table.schema, evolve=True)
    return made


def rows_of(lake, sql):
    return [tuple(row.values()) for row in lake.sql(sql).to_pylist()]


@pytest.fixture
def lake(tmp_path):
    with tc.connect(tmp_path / "lake") as opened:
        yield opened


@pytest.mark.parametrize("seed", range(3))
def test_the_list_is_what_a_scan_says_through_flushes_deletes_and_a_reopening(tmp_path, seed):
    points = [point_row(point) for point in random_points(seed, span_s=600)]
    histograms = [histogram_row(point) for point in random_histograms(seed, span_s=400)]
    choose = random.Random(seed)
    choose.shuffle(points)
    path = tmp_path / "lake"
    lake = tc.connect(path)
    tables = [make_table(lake, name) for name in ("metric_points", "metric_histograms")]
    for turn in range(6):
        tables[0].write(points[turn::6])
        tables[1].write(histograms[turn::6])
        if choose.random() < 0.6:
            choose.choice(tables).flush()
        if turn == 3:
            moment = datetime.fromtimestamp(1_717_200_000 + 120, UTC)
            tables[0].delete(where=f"series_id = 1 and ts < timestamptz '{moment}'")
        assert rows_of(lake, LISTED) == sorted(rows_of(lake, SCANNED), key=repr_key), turn
        if turn == 4:
            lake.close()
            lake = tc.connect(path)
            tables = [lake.table(name) for name in ("metric_points", "metric_histograms")]
    lake.close()


def repr_key(row):
    return tuple((value is None, value) for value in row)


def test_a_lake_made_again_in_the_same_folder_has_its_new_labels(tmp_path):
    for service in ("old", "new"):
        with tc.connect(tmp_path / "lake") as lake:
            table = make_table(lake, "metric_points")
            table.write([point_row(Point(1, 1_717_200_000, 1.0)) | {"service_name": service}])
            table.flush()
            assert rows_of(lake, "select service_name from metric_series()") == [(service,)]
        shutil.rmtree(tmp_path / "lake")


def test_a_lake_without_metrics_has_no_series_and_a_wrong_table_is_refused(lake):
    assert rows_of(lake, "select * from metric_series()") == []
    logs = TABLES["logs"]
    lake.create_table(logs.name, **logs.creation_options())
    with pytest.raises(Invalid, match="no series"):
        lake.sql("select * from metric_series('logs')")
    with pytest.raises(NotFound):
        lake.sql("select * from metric_series('metric_points')")
