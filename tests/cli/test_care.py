"""compact, vacuum and fsck on the command line."""

import os
import time
from pathlib import Path

import thermocline as tc
from thermocline import connect


def segments(shell):
    return sorted((shell.folder / "prices" / "data").rglob("*.parquet"))


def age(shell, seconds):
    """Make every file of the table look this much older."""
    old = time.time() - seconds
    for path in (shell.folder / "prices").rglob("*"):
        os.utime(path, (old, old))


def orphan(shell):
    path = segments(shell)[0].with_name("0" * 32 + ".parquet")
    path.write_bytes(b"left over")
    return path


def test_a_compaction_says_what_it_did_and_then_that_there_is_nothing_to_do(market):
    before = market.ok("table", "info", "prices", "--json").json()["rows"]
    table = tc.TimeSeriesTable.open(market.folder / "prices")
    table.append(table.to_arrow(end="2024-06-01T01:00:00Z"), overlap="allow")
    table.append(table.to_arrow(end="2024-06-01T01:00:00Z"), overlap="allow")
    assert "6 segments are 2" in market.ok("table", "compact", "prices").out
    assert "nothing to compact" in market.ok("table", "compact", "prices").out
    assert market.ok("table", "compact", "prices", "--json").json()["commits"] == 0
    assert market.ok("table", "info", "prices", "--json").json()["rows"] > before


def test_a_vacuum_only_says_what_it_would_do(market):
    left_over = orphan(market)
    age(market, 8 * 86_400)
    ran = market.ok("table", "vacuum", "prices")
    assert left_over.name in ran.out
    assert "would remove 1 file, 9 B" in ran.out
    assert left_over.exists()


def test_a_vacuum_with_a_yes_removes(market):
    left_over = orphan(market)
    age(market, 8 * 86_400)
    ran = market.ok("table", "vacuum", "prices", "--yes", "--json")
    assert ran.json()["is_dry_run"] is False
    assert ran.json()["size_bytes"] == 9
    assert not left_over.exists()
    assert len(segments(market)) == 3


def test_no_dry_run_is_a_yes(market):
    left_over = orphan(market)
    age(market, 8 * 86_400)
    assert "removed 1 file" in market.ok("table", "vacuum", "prices", "--no-dry-run").out
    assert not left_over.exists()


def test_a_short_grace_is_refused_unless_it_is_allowed(market):
    ran = market.run("table", "vacuum", "prices", "--grace", "1m")
    assert ran.code == 2
    ran.told()
    market.ok("table", "vacuum", "prices", "--grace", "1m", "--allow-short-grace")


def test_a_sound_table_is_proven(market):
    ran = market.ok("table", "fsck", "prices")
    assert ran.out.startswith("sound: 4 commits, 3 segments, 138 rows")
    assert market.ok("table", "fsck", "prices", "--json").json()["is_sound"] is True


def test_a_flipped_byte_in_a_segment_is_found_and_exits_with_8(market):
    path = segments(market)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    ran = market.run("table", "fsck", "prices")
    assert ran.code == 8
    assert path.name in ran.out
    assert path.name in ran.told()[1]
    ran = market.run("table", "fsck", "prices", "--json")
    assert ran.code == 8
    assert ran.json()["is_sound"] is False
    assert ran.json()["findings"][0]["kind"] == "segment"
    assert ran.error()["code"] == "corruption"


def test_a_table_whose_log_is_torn_can_still_be_checked(market):
    commit = market.folder / "prices" / "_log" / f"{2:020d}.json"
    commit.write_bytes(commit.read_bytes()[:40])
    ran = market.run("table", "fsck", "prices")
    assert ran.code == 8
    assert commit.name in ran.out


def test_what_is_harmless_does_not_fail_the_check(market):
    orphan(market)
    ran = market.ok("table", "fsck", "prices")
    assert "(harmless)" in ran.out


def test_a_folder_without_a_table_is_not_found(shell):
    ran = shell.run("table", "fsck", ".")
    assert ran.code == 3
    ran.told()


def newest_commit(shell):
    return sorted((shell.folder / "prices" / "_log").glob("*.json"))[-1]


def test_a_whole_table_needs_no_repair(market):
    assert "nothing to repair" in market.ok("table", "repair", "prices").out
    assert market.ok("table", "repair", "prices", "--json").json()["is_needed"] is False


def test_D03_a_repair_says_what_is_lost_and_accepts_it_only_when_told(market):
    lost = newest_commit(market)
    lost.unlink()
    assert market.run("table", "info", "prices").code == 8
    said = market.ok("table", "repair", "prices").out
    assert "lost: versions 4 to 4" in said
    assert "dry run" in said
    assert "rows" in said
    assert market.run("table", "info", "prices").code == 8
    facts = market.ok("table", "repair", "prices", "--json").json()
    assert (facts["intact"], facts["lost_first"], facts["is_dry_run"]) == (3, 4, True)
    assert "repaired: version 4" in market.ok("table", "repair", "prices", "--accept-loss").out
    market.ok("table", "info", "prices")
    assert market.ok("table", "fsck", "prices").out.count("harmless") == 2
    assert "repair" in market.ok("table", "history", "prices").out


def test_D03_the_table_of_a_lake_is_checked_and_repaired_by_its_name(market):
    with connect(market.folder / "lake") as lake:
        table = lake.create_table("m", time_column="ts", bucket="1h")
        for hour in range(2):
            table.write([{"ts": f"2024-06-01T0{hour}:00:00Z", "x": hour}])
            table.flush()
        root = Path(table.root())
    newest = max(root.glob("_log/*.json"))
    assert "nothing to repair" in market.ok("table", "repair", "lake/m").out
    newest.unlink()
    assert newest.name in "".join(market.run("table", "fsck", "lake/m").told())
    assert "lost: versions 4 to 4" in market.ok("table", "repair", "lake/m").out
    market.ok("table", "repair", "lake/m", "--accept-loss")
    market.ok("table", "fsck", "lake/m")


def test_D03_a_commit_that_is_put_back_heals_the_table_without_a_repair(market):
    lost = newest_commit(market)
    data = lost.read_bytes()
    lost.unlink()
    assert market.run("table", "fsck", "prices").code == 8
    lost.write_bytes(data)
    market.ok("table", "fsck", "prices")


def test_a_table_is_published_for_other_engines(market):
    assert "published version" in market.ok("table", "publish", "prices").out
    said = market.ok("table", "publish", "prices", "--rewrite", "--json").json()
    assert said["location"].endswith(f"prices/metadata/v{said['version']}.metadata.json")
