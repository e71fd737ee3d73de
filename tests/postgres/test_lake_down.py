"""SQL and entities of a lake while its PostgreSQL is down, and after a restart without it."""

import time

import pytest

from postgres.test_lake import ACCOUNT, settings
from thermocline.entity.degraded_read import LAKE_ALONE, OLD_ANSWER
from thermocline.errors import Corruption, Invalid, Unavailable
from thermocline.node import open_lake

CENTS = "select _id, cents from account order by 1"
NOW = [("a", 2), ("c", 3)]
EXPORTED = [("a", 1), ("b", 1)]


@pytest.fixture(params=[0, 1], ids=["in this process", "in a worker"])
def opened(request, way, tmp_path):
    """A way to open one lake again and again; it has entities hot, cold, changed and deleted."""
    given = settings(way.dsn, query_workers=request.param)

    def opened():
        return open_lake(tmp_path / "lake", given)

    with opened() as lake:
        accounts = lake.register("account", ACCOUNT)
        for key in "ab":
            accounts.create({"owner": key, "cents": 1, "paid": "1.50"}, key)
        lake.flush("account")
        accounts.patch("a", {"cents": 2})
        accounts.delete("b")
        accounts.create({"owner": "c", "cents": 3}, "c")
        lake.close(flush=False)
    return opened


def cents(lake, **options):
    rows = lake.sql(CENTS, **options).to_pylist()
    return [(row["_id"], row["cents"]) for row in rows]


def test_P09_a_lake_started_without_postgres_answers_from_its_files_if_that_will_do(opened, way):
    way.refuse()
    with opened() as lake:
        accounts = lake.entity("account")
        for strict in (
            lambda: cents(lake),
            lambda: cents(lake, mode="cached"),
            lambda: accounts.find("a"),
            lambda: accounts.scan(),
            lambda: accounts.create({"owner": "d", "cents": 1}),
            lambda: accounts.export(),
            lambda: lake.entities.names(),
        ):
            with pytest.raises(Unavailable):
                strict()
        assert cents(lake, mode="best_effort") == EXPORTED
        found = accounts.find("a", mode="best_effort")
        assert found.entity.document == {"owner": "a", "cents": 1, "paid": "1.50"}
        scanned = accounts.scan(["_id"], mode="best_effort")
        assert (found.warning, scanned.warning) == (LAKE_ALONE, LAKE_ALONE)
        assert found.as_of == scanned.as_of
        assert scanned.rows.column("_id").to_pylist() == ["a", "b"]
        way.allow()
        wait_until_back(lake)
        assert cents(lake) == NOW
        assert lake.entity("account").find("c").is_exact
        lake.close(flush=False)


def test_SQL_while_postgres_is_down_is_answered_in_the_mode_it_asks_for(opened, way):
    with opened() as lake:
        assert cents(lake) == NOW
        way.refuse()
        way.cut()
        with pytest.raises(Unavailable):
            cents(lake)
        assert cents(lake, mode="best_effort") == EXPORTED
        assert cents(lake, mode="cached") == NOW
        with pytest.raises(Invalid, match="unknown read mode"):
            cents(lake, mode="guess")
        with pytest.raises(Unavailable):
            cents(lake, mode="strict")
        if lake.node.pool is not None:
            warnings = {}
            for mode in ("best_effort", "cached"):
                with lake.answer(CENTS, mode=mode) as answer:
                    answer.read_all()
                    warnings[mode] = answer.report.tables["account"].warning
            assert warnings == {"best_effort": LAKE_ALONE, "cached": OLD_ANSWER}
        lake.close(flush=False)


@pytest.mark.parametrize("way_of_damage", ["flipped", "cut", "emptied", "deleted", "swapped"])
def test_D01_D04_a_damaged_copy_of_a_contract_is_refused_and_made_again(
    way, tmp_path, way_of_damage
):
    def opened():
        return open_lake(tmp_path / "lake", settings(way.dsn))

    with opened() as lake:
        accounts = lake.register("account", ACCOUNT)
        more = {"shade": {"type": "string"}, **ACCOUNT["properties"]}
        lake.register("account", {**ACCOUNT, "properties": more})
        accounts = lake.entity("account")
        accounts.create({"owner": "a", "cents": 1, "shade": "red"}, "a")
        lake.flush("account")
        folder = tmp_path / "lake" / "tables" / lake.table("account").root().rpartition("/")[2]
        lake.close(flush=False)
    path, other = (folder / "_contracts" / f"{version:010d}.json" for version in (2, 1))
    data = path.read_bytes()
    place = data.index(b'"shade"') + 2
    match way_of_damage:
        case "flipped":
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "emptied":
            path.write_bytes(b"")
        case "deleted":
            path.unlink()
        case "swapped":
            path.write_bytes(other.read_bytes())
    way.refuse()
    with opened() as lake:
        with pytest.raises(Corruption) as caught:
            lake.entity("account").find("a", mode="best_effort")
        assert caught.value.facts["path"] == f"_contracts/{path.name}"
        way.allow()
        wait_until_back(lake)
        lake.entity("account").find("a")
        lake.close(flush=False)
    assert path.read_bytes() == data


def wait_until_back(lake):
    """Ask until PostgreSQL is asked again: it is left alone for a moment after it failed."""
    for _ in range(300):
        try:
            lake.entities.names()
        except Unavailable as error:
            time.sleep(min(float(error.facts.get("retry_after_s", 0.1)), 1.0))
        else:
            return
    raise AssertionError("it does not come back")
