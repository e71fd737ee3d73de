"""One tenant never stops another: each attack of a list beside a tenant that works.

The victim's slowest answers stay within three times those of the quiet node or 250 ms, whichever is
larger; nothing of it is refused; and the node's memory stays under its ceiling.
"""

import pytest

from fixtures.served import ServedNode
from server.neighbours import (
    ATTACKS,
    MEMORY_BYTES_MAX,
    QUIET_S,
    Neighbours,
    broken_limits,
    raise_file_limit,
)
from thermocline.server.access.keys import KeyStore

TRIES = 8


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory):
    raise_file_limit()
    data = tmp_path_factory.mktemp("node") / "data"
    data.mkdir()
    with ServedNode(data, "--set", "connections_max=300", "--set", "care_every_s=0") as node:
        node.ready()
        operator = KeyStore(str(data)).create_first().text
        yield Neighbours(node, operator)
        assert node.process.poll() is None, node.lines[-20:]


@pytest.mark.parametrize("act", ATTACKS, ids=lambda act: act.__name__)
def test_one_tenant_never_stops_another(neighbours, act):
    # A busy machine delays answers without any attack: the quiet node is timed again each time.
    for attempt in range(TRIES):
        quiet = neighbours.watch(QUIET_S)
        complaints = broken_limits(quiet, neighbours.attack(act))
        refused = [one for one in complaints if one.startswith("refused")]
        assert not refused, refused
        if not complaints:
            break
        print(attempt, complaints)
    assert not complaints
    assert neighbours.memory_bytes() < MEMORY_BYTES_MAX


def test_a_tenant_sees_its_own_use_and_a_scrape_shows_classes_only(neighbours):
    quiet = neighbours.keys["quiet"]
    status, told, _ = neighbours.node.ask("/api/v1/usage", key=quiet)
    assert (status, told["tenant"]) == (200, "quiet")
    classes = {"memory_bytes", "threads", "answer_threads", "http_connections", "api_connections"}
    assert set(told["shares"]) == classes | {"grpc_streams"}
    assert told["shares"]["threads"]["held"] == 1, "this request"
    assert told["quotas"]["columns_max"] == 2_000
    status, text, _ = neighbours.node.ask("/metrics", key=neighbours.operator)
    assert status == 200
    for name in classes:
        assert f'thermocline_share_held{{class="{name}"}}' in text
        assert f'thermocline_refused_total{{class="{name}"}}' in text
    assert "loud" not in text
