"""Where jobs work, over the life of a worker: nodes come and go, and so does their PostgreSQL."""

import shutil
import socket
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fixtures.postgres import own_postgres, postgres_run, postgres_template
from postgres.entity_verbs import ACCOUNT, account, cold_balances
from thermocline import connect
from thermocline.config import LakeSettings
from thermocline.entity.postgres_service import FOLDER
from thermocline.hot.postgres.server.cluster import running_server
from thermocline.pipeline.run.clock import JobClock
from thermocline.pipeline.run.history import DONE
from thermocline.pipeline.run.settings import PipelineSettings, ScheduleSettings

__all__ = ["own_postgres", "postgres_run", "postgres_template"]

OWN = {"postgres": "embedded", "export_changes": 1_000_000, "export_age_s": 3_600.0}


@pytest.fixture
def root(own_postgres):
    """A lake's folder with a server of its own under it, by another name."""
    root = Path(own_postgres.folder).parent / "lake"
    connect(root).close()
    (root / FOLDER).symlink_to(own_postgres.folder)
    yield root
    shutil.rmtree(root)


@contextmanager
def node(root):
    """A node with accounts; its PostgreSQL is stopped with it."""
    with connect(root, **OWN) as lake:
        yield lake.register("account", ACCOUNT)


def port_of(root):
    """Return where the lake's PostgreSQL listens now."""
    return urlsplit(running_server(str(root / FOLDER)).dsn).port


class Borrowed:
    """The session of the tests, which no clock may end."""

    def __init__(self, spark):
        self.master, self._spark = "local[2]", spark

    def __call__(self):
        return self._spark

    def close(self):
        """Leave it to its owner."""


@contextmanager
def worker(root, spark):
    """Give a way to let a worker look once, as its clock does; it tells what became of each job."""
    schedule = ScheduleSettings(export=1, compact=0, rollup=0, retain=0)
    settings, seconds = PipelineSettings(schedule=schedule), count(0, 60)
    own = LakeSettings(**OWN)
    with ExitStack() as stack:
        clock = JobClock(
            str(root), settings, own, sessions=Borrowed(spark), now_s=lambda: next(seconds)
        )
        stack.callback(clock.run, lambda tenant, ran: None)
        stack.callback(clock.stop)

        def look():
            told = []
            clock.run_due(lambda tenant, ran: told.append((ran.table, ran.state, ran.error)))
            return told

        yield look


def test_a_worker_follows_a_postgres_that_comes_back_on_another_port(root, spark):
    with worker(root, spark) as look:
        with node(root) as accounts:
            accounts.create(account(1), "a")
            assert look() == [("account", DONE, None)]
            before = port_of(root)
        with socket.socket() as taken:
            # Its sessions of a moment ago still wait in the kernel.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", before))
            taken.listen()
            with node(root) as accounts:
                assert port_of(root) != before
                accounts.create(account(2), "b")
                assert look() == [("account", DONE, None)]
                assert cold_balances(accounts) == {"a": 1, "b": 2}
