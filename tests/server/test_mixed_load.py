"""Writers, readers, flushes, a full disk, a slow disk and kills, all at once, on a real node."""

import pytest

from server.mixed import KILL_EVERY_S, mixed_load

BAD = ("lost", "dup", "dirty", "short_reads", "trouble", "hung")


@pytest.mark.slow
def test_W10_W18_I08_I10_I21_O02_Q10_the_ledger_of_a_mixed_load_balances(tmp_path):
    counts = mixed_load(tmp_path, KILL_EVERY_S + 5, seed=1)
    assert {name: counts[name] for name in BAD} == dict.fromkeys(BAD, 0), counts
    assert counts["kills"] >= 1
    assert counts["readings"] > 5
    assert counts["moods_full"] >= 1
    assert counts["status_503"] + counts["status_429"] > 0, "a full disk refuses writes"
    assert counts["acked"] > 100
