"""Damage at rest, read by Spark: by its own Parquet reader and by ours."""

import pytest
from pyspark.errors import PySparkException

from crash.damage import World, build_world, chosen_damages, copied, names
from thermocline.cold.catalog import Catalog
from thermocline.errors import Corruption
from thermocline.pipeline.spark.native_read import read


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A lake with every kind of file."""
    return build_world(tmp_path_factory.mktemp("damage"))


def rows(spark, root, table):
    """Return the rows of a table's newest version, read by Spark."""
    return sorted(map(str, read(spark, Catalog(str(root)).table(table).storage.root).collect()))


def violation(spark, world: World, damage) -> str | None:
    with copied(world) as root:
        right = {table: rows(spark, root, table) for table in ("a", "b")}
        damage.act(root)
        try:
            found = {table: rows(spark, root, table) for table in ("a", "b")}
        except Corruption as error:
            return None if names(error, damage) else f"another file is named: {error!r}"
        except PySparkException as error:  # the worker that read the file raised ours
            is_ours = "thermocline.errors.Corruption" in str(error)
            return None if is_ours and names(error, damage) else f"another error: {error!r}"
        if damage.kind == "segment":
            return "the damage was not noticed"
        return None if found == right else "a wrong answer without an error"


@pytest.mark.parametrize(
    "kind", ["segment", "commit", "checkpoint", "base", "current", "table name"]
)
def test_D01_D03_spark_reads_a_damaged_lake_right_or_not_at_all(spark, world, kind):
    chosen = list(chosen_damages(world, kind))
    flips = [one for one in chosen if "flipped" in one.way]
    others = [one for one in chosen if "flipped" not in one.way]
    asked = (*flips[:: max(1, len(flips) // 6)], *others)
    broken = [f"{one}: {found}" for one in asked if (found := violation(spark, world, one))]
    assert broken == []
