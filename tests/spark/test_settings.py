"""`[pipeline]` of a node's file: what it may say, and how it is told what it may not."""

import pytest

from thermocline.config import node_settings
from thermocline.errors import Invalid
from thermocline.pipeline.run.settings import PipelineSettings, pipeline_settings

WHOLE = """
data = "lake"

[pipeline]
master = "spark://head:7077"
memory = "2g"
every = "30s"
lease = "2m"

[pipeline.schedule]
export = "15s"
compact = "1h"
retain = 0

[pipeline.limits]
export_connections = 3
compact_segment_bytes = "128MiB"

[pipeline.spark]
"spark.executor.memory" = "4g"
"spark.dynamicAllocation.enabled" = true

[[pipeline.rollups]]
name = "metrics_5m"
source = "metrics"
every = "5m"
by = ["host"]
aggregates = { n = "count(*)", mean = "avg(value)" }
"""


def read(tmp_path, text):
    path = tmp_path / "node.toml"
    path.write_text(text)
    return pipeline_settings(node_settings({}, {}, str(path)).pipeline)


def test_a_file_says_all_there_is_to_say(tmp_path):
    found = read(tmp_path, WHOLE)
    assert (found.master, found.memory, found.every, found.lease) == (
        *("spark://head:7077", "2g"),
        *(30.0, 120.0),
    )
    assert (found.schedule.export, found.schedule.compact, found.schedule.retain) == (15, 3_600, 0)
    assert found.schedule.rollup == PipelineSettings().schedule.rollup
    assert (found.limits.export_connections, found.limits.compact_segment_bytes) == (3, 128 << 20)
    assert found.spark == {
        "spark.executor.memory": "4g",
        "spark.dynamicAllocation.enabled": "true",
    }
    (rollup,) = found.rollups
    assert (rollup.name, rollup.source, str(rollup.every)) == ("metrics_5m", "metrics", "5m")


def test_a_file_without_a_word_of_jobs_has_the_defaults(tmp_path):
    assert read(tmp_path, 'data = "lake"\n') == PipelineSettings()


WRONG = [
    ('[pipeline]\nmastr = "local"', "pipeline.mastr", "did you mean master?"),
    ('[pipeline.schedule]\ncompakt = "1h"', "pipeline.schedule.compakt", "did you mean compact?"),
    ("[pipeline.limits]\nexport_parts = 1", "pipeline.limits.export_parts", "export_part_keys"),
    ('[pipeline.schedule]\ncompact = "soon"', "pipeline.schedule.compact", "use a time"),
    (
        "[pipeline.limits]\nexport_connections = 0",
        "pipeline.limits.export_connections",
        "1 or more",
    ),
    ("[pipeline]\nschedule = 3", "pipeline.schedule", "write it as"),
    ("pipeline = 3", "pipeline", "write it as"),
    ('[pipeline.spark]\nspark.executor.memory = "2g"', "pipeline.spark.spark", "in quotes"),
    ("[pipeline]\nrollups = 3", "pipeline.rollups", "[[pipeline.rollups]]"),
]


@pytest.mark.parametrize(("text", "setting", "hint"), WRONG)
def test_what_is_wrong_is_named_with_the_way_out(tmp_path, text, setting, hint):
    with pytest.raises(Invalid) as refused:
        read(tmp_path, text)
    assert refused.value.facts["setting"] == setting
    assert hint in refused.value.hint


def test_two_rollups_of_one_name_are_refused(tmp_path):
    one = WHOLE[WHOLE.index("[[pipeline.rollups]]") :]
    with pytest.raises(Invalid, match="two rollups have the same name"):
        read(tmp_path, WHOLE + one.replace("metrics_5m", "METRICS_5m"))
