"""Every setting is documented with its default, and nothing else is; the example is one."""

import re
from dataclasses import fields
from pathlib import Path

from thermocline.config import (
    AlertSettings,
    CareSettings,
    LakeSettings,
    NodeSettings,
    QuotaSettings,
    WalSettings,
    node_settings,
    redact,
)

PAGE = (Path(__file__).parents[2] / "docs" / "config.md").read_text()


def test_the_page_has_every_setting_with_its_default():
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", PAGE, re.MULTILINE))
    known = {
        one.name: str(redact(one.default)).replace("False", "false").replace("True", "true")
        for part in (
            WalSettings,
            LakeSettings,
            NodeSettings,
            QuotaSettings,
            CareSettings,
            AlertSettings,
        )
        for one in fields(part)
        if "kind" in one.metadata
    }
    assert told == known


def test_the_default_of_a_node_is_on_the_page():
    assert "A node has 2 by default" in PAGE
    assert NodeSettings().lake.query_workers == 2


def test_the_example_is_a_file_of_settings(tmp_path):
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "node.toml"
    path.write_text(example)
    settings = node_settings({}, {}, str(path))
    assert settings.lake.wal.hot_bytes_max == 256 << 20
    assert settings.quota_of("acme").ingest_bytes_per_s == 20_000_000
    assert settings.quota_of("other").queries_max == 4
