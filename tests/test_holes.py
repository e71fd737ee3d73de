"""What a repair of the journal could not save, the tables' coverage tells."""

import orjson
import pytest

from fixtures.wal import numbers, opened, ticks
from thermocline.cli.main import run
from thermocline.disk import OsDisk
from thermocline.errors import Corruption
from thermocline.hot.wal.repair.repair import repair


@pytest.fixture
def damaged(tmp_path):
    """The folder of a lake with two tables, whose journal lost one write of the first."""
    lake = opened(tmp_path / "lake")
    tables = [lake.create_table(name, time_column="ts", bucket="1h") for name in ("m", "other")]
    for n in range(6):
        tables[0].write(ticks(n, hour=n))
    tables[1].write(ticks(100))
    lake.close(flush=False)
    journal = tmp_path / "lake" / "journal"
    first = min(journal.glob("*.wal"))
    data = bytearray(first.read_bytes())
    frame_bytes = (len(data) - 64) // 7
    data[64 + 2 * frame_bytes + frame_bytes // 2] ^= 0xFF
    first.write_bytes(data)
    return tmp_path / "lake"


def test_W13_damage_refuses_to_start_and_a_repair_tells_the_tables(damaged):
    with pytest.raises(Corruption) as raised:
        opened(damaged)
    assert raised.value.facts["path"].endswith(".wal")
    assert raised.value.facts["offset"] > 64
    assert repair(OsDisk(), str(damaged / "journal"), dry_run=False).lost_lsns == 1
    for _ in range(2):  # noted once, however often the lake is opened
        with opened(damaged) as lake:
            table = lake.table("m")
            assert numbers(table) == [0, 1, 3, 4, 5]
            assert numbers(lake.table("other")) == [100]
            (hole,) = table.holes().to_pylist()
            assert (hole["first"], hole["last"]) == (3, 3)
            assert hole["after"] < hole["before"]
            told = table.gaps("2024-06-01T00:00", "2024-06-01T06:00")
            assert told.num_rows == 1
            assert told.schema.metadata[b"verified"] == b"false"
            assert told.schema.metadata[b"holes"] == b"1"
            assert table.fsck().is_sound
            table.checkpoint()


def test_the_command_line_tells_of_a_hole(damaged, capfd):
    repair(OsDisk(), str(damaged / "journal"), dry_run=False)
    opened(damaged).close()
    assert run(["gaps", f"{damaged}/m", "--format", "csv"]) == 0
    assert "1 writes were lost in the journal" in capfd.readouterr().err
    assert run(["coverage", f"{damaged}/m", "--json"]) == 0
    told = orjson.loads(capfd.readouterr().out)
    assert told["is_verified"] is False
    assert [(hole["first"], hole["last"]) for hole in told["holes"]] == [(3, 3)]


def test_a_table_without_holes_says_so(lake):
    table = lake.table("m")
    table.write(ticks(1))
    assert table.holes().num_rows == 0
    assert table.gaps().schema.metadata[b"verified"] == b"true"
