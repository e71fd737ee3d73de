"""Only errors of this package come out of the public API, whatever kind of value a caller passes.

Every public function and method is found by `inspect`, and called with values of every wrong kind
in the place of each of its arguments, while the other arguments are valid. An argument without a
default needs a valid value in `VALID`: a new method of which one is missing fails here by name.
What a call accepts must leave the table usable.
"""

import contextlib
import inspect
import itertools
import pickle
from concurrent.futures import Future
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import thermocline
from docs.public_api import INNER
from fixtures.entities import CUSTOMER, database, serving_entities
from fixtures.postgres import postgres_run, postgres_server
from thermocline import Invalid, Session, ThermoclineError, TimeSeriesTable, connect
from thermocline.client import Client, ClientTable
from thermocline.client.entity import ClientEntityTable
from thermocline.cold.coverage_report import CoverageReport
from thermocline.config import LakeSettings, read_lake_settings
from thermocline.entity.table import EntityTable
from thermocline.iceberg.publish import publish
from thermocline.lake import Lake
from thermocline.lake_table import LakeTable
from thermocline.table import new_spec

__all__ = ["postgres_run", "postgres_server"]


class Anything:
    """A class whose instances are made of any arguments."""

    def __init__(self, *_given):
        pass


ENDLESS = []
ENDLESS.append(ENDLESS)
WRONG = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "3.5": lambda: 3.5,
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "a huge int": lambda: 10**40,
    "an empty text": lambda: "",
    "a text": lambda: "x",
    "a text with a NUL": lambda: "a\0b",
    "a lone surrogate": lambda: "\ud800",
    "bytes": lambda: b"x",
    "an object": object,
    "a class": lambda: Anything,
    "a function": lambda: lambda *_: None,
    "a generator": lambda: (one for one in [1]),
    "an empty list": list,
    "a list": lambda: [1],
    "a list of lists": lambda: [["x"]],
    "a list that holds itself": lambda: ENDLESS,
    "a set": lambda: {"x"},
    "an empty dict": dict,
    "a dict": lambda: {"a": 1},
    "a dict of numbers": lambda: {1: object()},
    "a naive datetime": lambda: datetime(2024, 6, 1),
    "an aware datetime": lambda: datetime(2024, 6, 1, tzinfo=UTC),
    "a date": lambda: date(2024, 6, 1),
    "a timedelta": lambda: timedelta(hours=6),
    "a negative timedelta": lambda: timedelta(microseconds=-1),
    "a decimal": lambda: Decimal("1.5"),
    "a decimal that is none": lambda: Decimal("sNaN"),
    "a complex number": lambda: 1j,
    "an array": lambda: np.arange(3),
    "a table of such": lambda: np.zeros((2, 2)),
    "no time": lambda: np.datetime64("NaT"),
}
ROWS = [{"ts": datetime(2024, 6, 1, hour), "symbol": "NVDA", "close": 1.0} for hour in range(3)]
ARROW = pa.Table.from_pylist(ROWS)
SHAPE = {"time_column": "ts", "bucket": "1h", "entity_columns": "symbol"}
_number = itertools.count(1)


@dataclass
class World:
    """What the calls are made on: a folder, and a node that is served."""

    folder: Path
    lake: Lake
    client: Client
    url: str
    session: Session
    key: Any

    def name(self) -> str:
        return f"made_{next(_number)}"

    def parquet(self) -> Path:
        path = self.folder / f"{self.name()}.parquet"
        late = ARROW.set_column(0, "ts", pa.array([datetime(2025, 1, 1)] * 3, pa.timestamp("us")))
        pq.write_table(late, path)
        return path


@pytest.fixture(scope="module")
def world(tmp_path_factory, postgres_server):
    folder = tmp_path_factory.mktemp("world")
    with database(postgres_server) as dsn, serving_entities(folder, dsn) as served:
        lake = served.node.lake()
        with Client(served.url, timeout_s=20) as client, Session() as session:
            lake.register("customer", CUSTOMER)
            yield World(folder, lake, client, served.url, session, served.key)


@pytest.fixture(autouse=True)
def here(world, monkeypatch):
    """Relative paths that a call accepts are made in a folder that goes."""
    monkeypatch.chdir(world.folder)


# How each kind is made, and what must still work after a call that was accepted.


def cold_table(world):
    made = TimeSeriesTable.create(world.folder / world.name(), **SHAPE)
    made.append(ARROW)
    return made


def cold_row(table):
    """Return a row that no bucket of the table holds yet, by its columns of this moment."""
    spec = table.spec()
    moment = datetime(2030, 1, 1) + timedelta(hours=next(_number))
    return {spec.time_column: moment, **dict.fromkeys(spec.entity_columns, "NVDA")}


def check_cold(world, table):
    rows = table.to_arrow().num_rows
    table.append(pa.Table.from_pylist([cold_row(table)]))
    assert table.to_arrow().num_rows == rows + 1


def lake_table(world):
    made = world.lake.create_table(world.name(), **SHAPE)
    made.write(ROWS)
    return made


def check_lake_table(world, table):
    rows = table.to_arrow().num_rows
    if table.spec().overlap == "allow":
        table.write([cold_row(table)])
    else:
        table.append(pa.Table.from_pylist([cold_row(table)]))
    assert table.to_arrow().num_rows == rows + 1


def dropped_name(world):
    name = lake_table(world).name
    world.lake.drop_table(name)
    return name


def client_table(world):
    return world.client.table(lake_table(world).name)


def check_client_table(world, table):
    check_lake_table(world, world.lake.table(table.name))


def check_entity(world, table):
    written = table.create({"name": "Ada"})
    assert table.read(written.id).document["name"] == "Ada"


def session(world):
    root = world.folder / "of_session"
    if not root.exists():
        TimeSeriesTable.create(root, **SHAPE).append(ARROW)
    world.session.register_tstable("prices", root)
    return world.session


def check_sql(world, one):
    assert one.sql("select 1 as a").to_pylist() == [{"a": 1}]


@dataclass(frozen=True)
class Kind:
    """A public class: how one is made, and how it is known to be usable."""

    kind: Any
    make: Any
    check: Any


KINDS = [
    Kind(TimeSeriesTable, cold_table, check_cold),
    Kind(CoverageReport, lambda world: cold_table(world).held(), lambda world, one: one.runs()),
    Kind(Session, session, check_sql),
    Kind(Lake, lambda world: world.lake, check_sql),
    Kind(LakeTable, lake_table, check_lake_table),
    Kind(EntityTable, lambda world: world.lake.entity("customer"), check_entity),
    Kind(Client, lambda world: world.client, check_sql),
    Kind(ClientTable, client_table, check_client_table),
    Kind(ClientEntityTable, lambda world: world.client.entity("customer"), check_entity),
]
EXCLUDED = {
    "TimeSeriesTable": "`create` and `open` make one",
    "CoverageReport": "`held` makes one",
    "Lake": "`connect` makes one",
    "LakeTable": "a lake makes one",
    "LakeTable.create": "that of `TimeSeriesTable`",
    "LakeTable.open": "that of `TimeSeriesTable`",
    "EntityTable": "a lake makes one",
    "ClientTable": "a client makes one",
    "ClientEntityTable": "a client makes one",
    "EntityTable.view": "what the rooms above use",
    "EntityTable.evict": "what the rooms above use",
    "EntityTable.write_one": "what the rooms above use",
    "EntityTable.write_many": "what the rooms above use",
    "EntityTable.read_page": "what the rooms above use",
    "Lake.close": "the lake is needed on; see `connect`",
    "Client.close": "the client is needed on; see `connect`",
}
HANDED_ON = {
    "more": new_spec,
    "which": TimeSeriesTable.scan,
}
"""Where `**` leads to: the function that takes what is collected there."""
VALID = {
    "table_root": lambda world: world.folder / world.name(),
    "time_column": lambda world: "ts",
    "bucket": lambda world: "1h",
    "source": lambda world: world.parquet(),
    "path": lambda world: world.parquet(),
    "data": lambda world: pa.Table.from_pylist([{**ROWS[0], "ts": datetime(2026, 1, 1)}]),
    "rows": lambda world: ROWS,
    "at": lambda world: 1,
    "old": lambda world: 1,
    "new": lambda world: 1,
    "instant": lambda world: datetime.now(UTC),
    "start": lambda world: "2024-06-01",
    "end": lambda world: "2024-06-02",
    "length": lambda world: "1h",
    "retention": lambda world: "30d",
    "overlap": lambda world: "allow",
    "buckets": lambda world: 1,
    "entity": lambda world: "NVDA",
    "query": lambda world: "select 1 as a",
    "query_id": lambda world: "none",
    "place": lambda world: world.folder / world.name(),
    "url": lambda world: world.url,
    "document": lambda world: {"name": "Ada"},
    "merge_patch": lambda world: {"name": "Grace"},
    "id": lambda world: world.lake.entity("customer").create({"name": "Ada"}).id,
    "operations": lambda world: [],
}
"""Valid values by the name of an argument, and of one method's arguments below."""
VALID_OF = {
    "Session.sql": {"query": lambda _: "select 1 as a"},
    "TimeSeriesTable.add_column": {"name": lambda _: "more", "kind": lambda _: pa.int64()},
    "TimeSeriesTable.widen_column": {"name": lambda _: "close", "kind": lambda _: pa.float64()},
    "LakeTable.widen_column": {"name": lambda _: "close", "kind": lambda _: pa.float64()},
    "TimeSeriesTable.rename_column": {"old": lambda _: "close", "new": lambda _: "open"},
    "TimeSeriesTable.open": {"table_root": lambda world: cold_table(world).root()},
    "Session.register_tstable": {
        "name": lambda _: "other",
        "table": lambda world: world.folder / "of_session",
    },
    "Session.register_parquet": {"name": lambda _: "other"},
    "Session.deregister": {"name": lambda _: "prices"},
    "Lake.create_table": {"name": lambda world: world.name()},
    "Lake.table": {"name": lambda world: lake_table(world).name},
    "Lake.rename_table": {
        "name": lambda world: lake_table(world).name,
        "to": lambda world: world.name(),
    },
    "Lake.copy_table": {
        "name": lambda world: lake_table(world).name,
        "to": lambda world: world.name(),
    },
    "Lake.drop_table": {"name": lambda world: lake_table(world).name},
    "Lake.undrop_table": {"name": dropped_name},
    "Lake.entity": {"name": lambda _: "customer"},
    "Lake.register": {"name": lambda _: "customer", "document": lambda _: CUSTOMER},
}


def named(kind, name):
    """Return what a class calls a method by: its own name, or that of the class it has it from."""
    twins = {Client: Lake, ClientTable: LakeTable, ClientEntityTable: EntityTable}
    kind = twins.get(kind, kind)
    if kind is LakeTable and name not in vars(LakeTable):
        kind = TimeSeriesTable
    return f"{kind.__name__}.{name}"


def arguments(function):
    """Return the parameters of a function by name, with those that its `**` leads to."""
    found = {}
    for one in inspect.signature(function).parameters.values():
        if one.name in ("self", "cls") or one.kind is one.VAR_POSITIONAL:
            continue
        if one.kind is one.VAR_KEYWORD:
            more = arguments(HANDED_ON[one.name]) if one.name in HANDED_ON else {}
            found = {**{k: v for k, v in more.items() if v.default is not v.empty}, **found}
        else:
            found[one.name] = one
    return found


def cases(kinds=KINDS):
    """Yield every public method of every public class with each of its arguments."""
    for one in kinds:
        kind = one.kind
        if kind.__name__ not in EXCLUDED:
            yield from ((one, kind.__name__, "", a) for a in arguments(kind))
        for name in sorted(dir(kind)):
            member = inspect.getattr_static(kind, name)
            full = f"{kind.__name__}.{name}"
            if name.startswith("_") or name in INNER or isinstance(member, property):
                continue
            if full not in EXCLUDED and callable(getattr(kind, name)):
                yield from ((one, full, name, a) for a in arguments(getattr(kind, name)))


CASES = list(cases())
FLAGS = [
    case
    for case in CASES
    if case[2] and isinstance(arguments(getattr(case[0].kind, case[2]))[case[3]].default, bool)
]
CHANGING = ("rename_column", "set_overlap", "restore", "delete")
"""What changes a table so that the next call needs another one."""


def in_row(value):
    return [{**ROWS[0], "symbol": value}]


def in_time(value):
    return [{**ROWS[0], "ts": value}]


def in_column(value):
    try:
        return [{**ROWS[0], value: 1}]
    except TypeError:  # it cannot be a key of a dict
        return []


def in_filter(value):
    return {"field": "name", "op": "eq", "value": value}


INSIDE = [
    (LakeTable, "write", "rows", in_row),
    (LakeTable, "write", "rows", in_time),
    (LakeTable, "write", "rows", in_column),
    (ClientTable, "write", "rows", in_row),
    (ClientTable, "write", "rows", in_time),
    (TimeSeriesTable, "append_parquet", "source", lambda value: [value]),
    (TimeSeriesTable, "append", "txn", lambda value: (value, 1)),
    (TimeSeriesTable, "append", "txn", lambda value: ("writer", value)),
    (TimeSeriesTable, "create", "entity_columns", lambda value: [value]),
    (TimeSeriesTable, "create", "storage_options", lambda value: {"a": value}),
    (TimeSeriesTable, "scan", "columns", lambda value: [value]),
    (TimeSeriesTable, "gaps", "entity", lambda value: (value,)),
    (TimeSeriesTable, "gaps", "entity", lambda value: {"symbol": value}),
    (ClientTable, "gaps", "entity", lambda value: {"symbol": value}),
    (EntityTable, "create", "document", lambda value: {"name": value}),
    (EntityTable, "bulk", "operations", lambda value: [value]),
    (EntityTable, "bulk", "operations", lambda value: [{"op": "create", "document": value}]),
    (EntityTable, "bulk", "operations", lambda value: [{"op": value, "document": {}}]),
    (EntityTable, "page", "filter", in_filter),
    (EntityTable, "page", "filter", lambda value: {"and": value}),
    (EntityTable, "page", "sort", lambda value: [value]),
    (ClientEntityTable, "create", "document", lambda value: {"name": value}),
    (ClientEntityTable, "bulk", "operations", lambda value: [value]),
    (ClientEntityTable, "bulk", "operations", lambda value: [{"op": "delete", "id": value}]),
    (
        ClientEntityTable,
        "page",
        "filter",
        lambda value: {"field": "name", "op": "eq", "value": value},
    ),
]
"""Arguments that hold other values: the class, the method, the argument, and where it is put."""


def valid(world, function, full, kind, name, argument):
    """Return valid values for what has no default, apart from the one argument."""
    of_method = {**VALID_OF.get(named(kind, name), {}), **VALID_OF.get(full, {})}
    given = {}
    for one in arguments(function).values():
        if one.name != argument and one.default is one.empty:
            make = of_method.get(one.name) or VALID.get(one.name)
            assert make, f"{full}: give a valid value of {one.name!r} in VALID or VALID_OF"
            given[one.name] = make(world)
    return given


def use(result):
    """Do with a result what its caller does: what is lazy fails only then."""
    if isinstance(result, tuple):
        for one in result:
            use(one)
    elif isinstance(result, Future):
        result.result(60)
    elif isinstance(result, Session | Lake | Client):
        with result:
            result.sql("select 1")
    elif hasattr(result, "read_all"):
        result.read_all()
    elif isinstance(result, contextlib.AbstractContextManager):
        with result:
            pass


def shown(odd):
    return "".join(f"\n  {word}: {outcome}" for word, outcome in odd.items())


def odd_outcome(function, *given, **named_given):
    """Make a call; return None if it was accepted, and what came out that is not ours."""
    try:
        use(function(*given, **named_given))
    except ThermoclineError as error:
        try:
            str(error)
            pickle.loads(pickle.dumps(error))
        except Exception as broken:  # noqa: BLE001  whatever it is, it is reported
            return f"{type(error).__name__}: {error.message}, which breaks: {broken!r}"
        return ""
    except Exception as error:  # noqa: BLE001  whatever it is, it is reported
        return f"{type(error).__name__}: {error}"[:200]
    return None


def try_all(world, case, values):
    """Pass each value in the place of an argument; return what came out that is not ours."""
    one, full, name, argument = case
    odd, subject = {}, None
    for word, make in values.items():
        subject = one.make(world) if subject is None else subject
        function = getattr(subject, name) if name else one.kind
        given = valid(world, function, full, one.kind, name, argument)
        outcome = odd_outcome(function, **given, **{argument: make()})
        if outcome:
            odd[word] = outcome
        if outcome is None:
            try:
                one.check(world, subject)
            except Exception as error:  # noqa: BLE001  whatever it is, it is reported
                odd[word] = f"accepted, and then {type(error).__name__}: {error}"
            if name in CHANGING:
                subject = None
    return odd


@pytest.mark.parametrize("case", CASES, ids=[f"{case[1]}-{case[3]}" for case in CASES])
def test_a_value_of_any_kind_is_accepted_or_refused_by_our_errors(world, case):
    odd = try_all(world, case, WRONG)
    assert not odd, shown(odd)


@pytest.mark.parametrize("case", FLAGS, ids=[f"{case[1]}-{case[3]}" for case in FLAGS])
def test_a_flag_takes_true_and_false_alone(world, case):
    one, full, name, argument = case
    function = getattr(one.make(world), name)
    for word in ("None", "0", "a text", "an empty list"):
        given = valid(world, function, full, one.kind, name, argument)
        with pytest.raises(Invalid) as refused:
            function(**given, **{argument: WRONG[word]()})
        assert refused.value.facts["argument"] == argument
        assert refused.value.hint


@pytest.mark.parametrize(
    ("kind", "name", "argument", "wrap"), INSIDE, ids=[f"{c[0].__name__}.{c[1]}" for c in INSIDE]
)
def test_a_value_of_any_kind_inside_of_another_is_no_different(world, kind, name, argument, wrap):
    (one,) = [one for one in KINDS if one.kind is kind]
    values = {word: lambda make=make: wrap(make()) for word, make in WRONG.items()}
    odd = try_all(world, (one, f"{kind.__name__}.{name}", name, argument), values)
    assert not odd, shown(odd)


@pytest.mark.parametrize("side", ["session", "lake", "client"])
def test_a_parameter_of_any_kind_is_passed_on_or_refused_by_our_errors(world, side):
    one, odd = getattr(world, side), {}
    for word, make in WRONG.items():
        for query, params in (("select ? as a", [make()]), ("select $a as a", {"a": make()})):
            if outcome := odd_outcome(one.sql, query, params):
                odd[word] = outcome
    check_sql(world, one)
    assert not odd, shown(odd)


def test_a_setting_of_any_kind_is_accepted_or_refused_by_our_errors():
    odd = {
        f"{one.name}={word}": outcome
        for one in fields(LakeSettings)
        for word, make in WRONG.items()
        if (outcome := odd_outcome(read_lake_settings, {one.name: make()}))
    }
    assert not odd, shown(odd)


@pytest.mark.parametrize("argument", [*arguments(connect)])
def test_connect_accepts_any_kind_or_refuses_it_by_our_errors(world, argument):
    odd = {}
    for word, make in WRONG.items():
        given = {"place": world.folder / world.name(), argument: make()}
        if outcome := odd_outcome(connect, **given):
            odd[word] = outcome
    assert not odd, shown(odd)


@pytest.mark.parametrize("argument", [*arguments(publish)])
def test_publish_accepts_any_kind_or_refuses_it_by_our_errors(world, argument):
    odd, table = {}, cold_table(world)
    for word, make in WRONG.items():
        if outcome := odd_outcome(publish, **{"table": table, argument: make()}):
            odd[word] = outcome
    check_cold(world, table)
    assert not odd, shown(odd)


@pytest.mark.parametrize("argument", [*arguments(thermocline.spark.session)])
def test_what_starts_spark_is_checked_before_it_starts(argument):
    for word, make in WRONG.items():
        value = make()
        is_empty = value is None or (isinstance(value, dict) and not value)
        if isinstance(value, str) or (argument == "settings" and is_empty):
            continue  # Spark would start
        with pytest.raises(Invalid) as refused:
            thermocline.spark.session(**{argument: value})
        assert refused.value.facts["argument"] == argument, word


@pytest.mark.parametrize("argument", [*arguments(thermocline.spark.read)])
def test_what_spark_is_to_read_is_checked_before_spark_is_asked(world, argument):
    odd = {}
    root = cold_table(world).root()
    for word, make in WRONG.items():
        given = {"spark": None, "table": root, argument: make()}
        if outcome := odd_outcome(thermocline.spark.read, **given):
            odd[word] = outcome
    assert not odd, shown(odd)


@pytest.mark.parametrize("function", [thermocline.spark.register, thermocline.spark.stop])
def test_what_is_no_session_of_spark_is_refused(function):
    for make in WRONG.values():
        with pytest.raises(Invalid, match="Spark session"):
            function(make())


def test_every_public_name_of_the_package_is_looked_at():
    looked_at = {one.kind.__name__ for one in KINDS} | {"connect"}
    errors = {name for name in thermocline.__all__ if name not in looked_at}
    assert all(issubclass(getattr(thermocline, name), ThermoclineError) for name in errors)
    assert set(thermocline.spark.__all__) == {"read", "register", "session", "stop"}


def test_a_method_that_is_new_is_found_and_asks_for_its_valid_values(world):
    class Newer(TimeSeriesTable):
        def more(self, what, *, how=None): ...

    found = [case[3] for case in cases([Kind(Newer, cold_table, check_cold)]) if case[2] == "more"]
    assert found == ["what", "how"]
    with pytest.raises(AssertionError, match="'what'"):
        valid(world, Newer.more, "Newer.more", Newer, "more", "how")


def test_an_error_that_is_not_ours_is_noticed():
    def fail(value):
        return value.strip()

    assert odd_outcome(fail, 5).startswith("AttributeError")
    assert odd_outcome(fail, "x") is None


# What is accepted, and what it means.


@pytest.mark.parametrize("kind", [TimeSeriesTable, LakeTable, ClientTable])
def test_a_timedelta_is_a_duration(world, kind):
    hour, month = timedelta(hours=1), timedelta(days=30)
    if kind is TimeSeriesTable:
        table = kind.create(
            world.folder / world.name(), time_column="ts", bucket=hour, retention=month
        )
    else:
        lake = world.lake if kind is LakeTable else world.client
        table = lake.create_table(world.name(), time_column="ts", bucket=hour, retention=month)
    if kind is not ClientTable:
        spec = table.spec()
        assert (str(spec.bucket), spec.retention) == ("1h", "30d")
        table.set_retention(timedelta(hours=36))
        assert table.spec().retention == "36h"
    else:
        info = table.info()
        assert (info["bucket"], info["retention"]) == ("1h", "30d")
    assert table.last_fully_covered_window(timedelta(hours=6)) is None
    assert table.vacuum(grace=timedelta(days=7)).is_dry_run


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda world: cold_table(world).set_retention(30), "retention"),
        (lambda world: cold_table(world).vacuum(grace=7.0), "grace"),
        (lambda world: cold_table(world).last_fully_covered_window(6), "length"),
        (lambda world: TimeSeriesTable.create("x", time_column="ts", bucket=3600), "bucket"),
        (lambda world: world.lake.create_table("x", time_column="ts", bucket=3600), "bucket"),
        (lambda world: world.client.create_table("x", time_column="ts", bucket=3600), "bucket"),
        (lambda world: client_table(world).vacuum(grace=7), "grace"),
    ],
)
def test_a_number_without_a_unit_is_no_duration(world, call, argument):
    with pytest.raises(Invalid, match="needs a unit") as refused:
        call(world)
    assert refused.value.hint == "give a unit: '30d', or a timedelta"
    assert refused.value.facts["argument"] == argument


@pytest.mark.parametrize(
    "odd", [timedelta(microseconds=1), timedelta(seconds=-1), timedelta(days=30, seconds=1)]
)
def test_a_timedelta_that_cannot_be_kept_exactly_is_refused(world, odd):
    with pytest.raises(Invalid) as refused:
        cold_table(world).set_retention(odd)
    assert refused.value.facts["argument"] == "retention"


def test_no_entity_columns_may_be_said_by_none(world):
    for made in (
        TimeSeriesTable.create(
            world.folder / world.name(), time_column="ts", bucket="1h", entity_columns=None
        ),
        world.lake.create_table(world.name(), time_column="ts", bucket="1h", entity_columns=None),
    ):
        assert made.spec().entity_columns == ()
    made = world.client.create_table(
        world.name(), time_column="ts", bucket="1h", entity_columns=None
    )
    assert made.info()["entity_columns"] == []


@pytest.mark.parametrize("side", ["lake", "client"])
def test_bulk_takes_dicts_as_the_http_api_does(world, side):
    table = getattr(world, side).entity("customer")
    made, other = (table.create({"name": "Ada"}).id for _ in range(2))
    done = table.bulk(
        [
            {"op": "create", "document": {"name": "Grace"}},
            {"op": "replace", "id": made, "document": {"name": "Joan"}, "if_match": 1},
            {"op": "patch", "id": made, "document": {"name": "Mary"}},
            {"op": "delete", "id": other},
        ]
    )
    assert [one.deed.value for one in done] == ["created", "replaced", "patched", "deleted"]
    assert table.read(done[0].id).document["name"] == "Grace"
    assert table.read(made).document["name"] == "Mary"
    assert table.read(other) is None


@pytest.mark.parametrize("side", ["lake", "client"])
def test_one_bad_dict_of_a_bulk_is_in_its_place_or_refuses_all(world, side):
    table = getattr(world, side).entity("customer")
    good = {"op": "create", "document": {"name": "Ada"}}
    bad = [{"op": "make"}, {"op": "patch", "id": "a"}, {**good, "key": 1}, {**good, "id": 5}, 7]
    for one in bad:
        with pytest.raises(Invalid) as refused:
            table.bulk([good, one])
        assert refused.value.facts["item"] == 1
        done = table.bulk([good, one, good], atomic=False)
        assert [isinstance(each, Invalid) for each in done] == [False, True, False]


def test_a_class_of_tables_is_not_a_table(world):
    with pytest.raises(Invalid):
        cold_table(world).append(pa.Table)
    with pytest.raises(Invalid):
        lake_table(world).write(pa.Table)
