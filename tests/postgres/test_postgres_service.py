"""A node's PostgreSQL that dies, hangs, or is not there: found again, let go of, left alone."""

import shutil
import socket
import threading
import time
from pathlib import Path

import pytest
from psycopg import conninfo

from fixtures.postgres import Way
from thermocline.config import LakeSettings
from thermocline.entity.postgres_service import FOLDER, PostgresService
from thermocline.errors import Unavailable
from thermocline.hot.postgres.server.cluster import is_dead


@pytest.fixture
def root(own_postgres):
    """A lake's folder with a server of its own under it, by another name."""
    root = Path(own_postgres.folder).parent / "lake"
    root.mkdir()
    (root / FOLDER).symlink_to(own_postgres.folder)
    yield root
    shutil.rmtree(root)


def test_a_server_of_our_own_that_died_is_started_again(root, own_postgres):
    half = PostgresService(LakeSettings(postgres="embedded"), str(root))
    pool = half.pool()
    half.start_exports(lambda: [lambda: pool.run(None, lambda c: c.execute("select 1"))])
    own_postgres.kill()
    end_s = time.monotonic() + 180
    while True:
        try:
            pool.run(None, lambda c: c.execute("select 1"))
            break
        except Unavailable:
            assert time.monotonic() < end_s
            time.sleep(0.1)
    half.close(stop_embedded=True)
    assert is_dead(str(own_postgres.folder))


@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_server_that_somebody_else_started_at_another_port_is_followed(
    root, own_postgres, is_read_only
):
    half = PostgresService(LakeSettings(postgres="embedded"), str(root), is_read_only=is_read_only)
    before = half.pool().dsn
    assert half.pool().run(None, lambda c: c.execute("select 1").fetchone()) == (1,)
    own_postgres.stop()
    port = conninfo.conninfo_to_dict(before)["port"]
    with socket.create_server(("127.0.0.1", int(port))):
        own_postgres.start()
        assert own_postgres.dsn != before
    end_s = time.monotonic() + 180
    while True:
        try:
            found = half.pool().run(None, lambda c: c.execute("select 1").fetchone())
            break
        except Unavailable:
            assert time.monotonic() < end_s
            time.sleep(0.1)
    assert found == (1,)
    assert half.pool().dsn == own_postgres.dsn
    half.close(stop_embedded=False)


def test_a_half_that_only_reads_starts_no_server(root, own_postgres):
    own_postgres.stop()
    half = PostgresService(LakeSettings(postgres="embedded"), str(root), is_read_only=True)
    with pytest.raises(Unavailable, match="does not run"):
        half.pool()
    assert is_dead(str(own_postgres.folder))
    own_postgres.start()
    assert half.pool().run(None, lambda c: c.execute("select 1").fetchone()) == (1,)
    half.close(stop_embedded=False)


def test_a_server_that_hangs_does_not_hold_a_close(postgres_dsn, tmp_path):
    way = Way(postgres_dsn)
    half = PostgresService(LakeSettings(postgres=way.dsn), str(tmp_path))
    pool, is_asking = half.pool(), threading.Event()

    def ask(connection):
        way.go_silent()
        is_asking.set()
        connection.execute("select 1")

    half.start_exports(lambda: [lambda: pool.run(None, ask, limit_s=240)])
    assert is_asking.wait(60)
    start_s = time.monotonic()
    half.close(stop_embedded=False)
    assert time.monotonic() - start_s < 8
    way.close()
