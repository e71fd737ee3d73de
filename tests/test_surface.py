"""A lake in a folder and one behind an address are one surface: names, parameters, shapes."""

import importlib
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.api import price, serving
from thermocline import connect
from thermocline.client import Client, ClientTable
from thermocline.client.entity import ClientEntityTable
from thermocline.entity.table import EntityTable
from thermocline.errors import Conflict, Invalid, NotFound, ThermoclineError, Unavailable
from thermocline.lake import Lake
from thermocline.lake_table import LakeTable

PAGE = Path(__file__).parents[1] / "docs" / "python.md"

# What one side alone has, each with the reason why the other cannot have it.
OF_THE_FILES = "reads or changes the files themselves, which a client does not see"
OF_THE_ROOMS = "what the rooms above use; no user needs it"
EXACT = "Arrow types that SQL has no word for would be changed on their way; ask with `sql`"
COLUMNS = "columns and policies are changed where the files are: the API has no route for it"
EXCEPTIONS = {
    Lake: {
        "check_open": OF_THE_ROOMS,
        "entities": OF_THE_ROOMS,  # `register`, `entity` and `entity_types` are its surface
        "close_session": OF_THE_ROOMS,
        "references": OF_THE_ROOMS,
        "tier": OF_THE_ROOMS,
    },
    Client: {},
    LakeTable: {
        "alone": OF_THE_ROOMS,
        "flush_everywhere": OF_THE_ROOMS,
        "add_column": COLUMNS,
        "add_columns": COLUMNS,
        "drop_column": COLUMNS,
        "index_spec": OF_THE_FILES,  # `info` has it all
        "set_entities_max": COLUMNS,
        "set_writer": COLUMNS,
        "set_token_columns": COLUMNS,
        "append": OF_THE_FILES,
        "head": EXACT,
        "to_duckdb": EXACT,
        "to_pandas": EXACT,
        "to_polars": EXACT,
        "block_writes": OF_THE_ROOMS,
        "mark_dropped": OF_THE_ROOMS,
        "append_csv": OF_THE_FILES,  # `write` takes rows
        "append_json": OF_THE_FILES,
        "append_parquet": OF_THE_FILES,
        "checkpoint": OF_THE_FILES,
        "create": OF_THE_FILES,
        "flush_hot": OF_THE_ROOMS,
        "fsck": OF_THE_FILES,
        "cold": OF_THE_ROOMS,
        "hot": OF_THE_ROOMS,
        "is_keyed": OF_THE_ROOMS,
        "open": OF_THE_FILES,
        "pin": OF_THE_FILES,
        "rename_column": COLUMNS,
        "scan": EXACT,
        "set_overlap": COLUMNS,
        "snapshot": OF_THE_ROOMS,
        "spec": OF_THE_FILES,  # `info` tells what a user wants of it
        "to_arrow": EXACT,
        "widen_column": COLUMNS,
    },
    ClientTable: {},
    EntityTable: {
        "admit_writes": OF_THE_ROOMS,
        "evict": OF_THE_ROOMS,
        "export_if_due": OF_THE_ROOMS,
        "forget": OF_THE_ROOMS,
        "layout": OF_THE_ROOMS,
        "name": "an attribute of the instance on the other side",
        "recover": OF_THE_ROOMS,
        "snapshot": OF_THE_ROOMS,
        "source": OF_THE_ROOMS,
        "store": OF_THE_ROOMS,
        "view": OF_THE_ROOMS,
    },
    ClientEntityTable: {"contract": "the embedded one has it in its `layout`"},
}
PAIRS = [(Lake, Client), (LakeTable, ClientTable), (EntityTable, ClientEntityTable)]


def public(kind):
    """Return the public names of a class, inherited ones too."""
    return {name for name in dir(kind) if not name.startswith("_")}


def lacking(one, other, exceptions):
    """Return what one has and the other lacks, and exceptions that are none any more."""
    alone = public(one) - public(other)
    return alone ^ set(exceptions)


def parameters(kind, name):
    """Return the parameters of a method: names, kinds and defaults; of a property, nothing."""
    member = inspect.getattr_static(kind, name)
    if isinstance(member, property):
        return "property"
    found = inspect.signature(getattr(kind, name)).parameters.values()
    return [
        (one.name, one.kind, "a function" if inspect.isfunction(one.default) else one.default)
        for one in found
    ]


def differing(one, other):
    """Return the names that both have with other parameters."""
    both = public(one) & public(other)
    return {name for name in both if parameters(one, name) != parameters(other, name)}


@pytest.mark.parametrize(("embedded", "remote"), PAIRS)
def test_neither_side_has_a_public_name_that_the_other_lacks(embedded, remote):
    assert lacking(embedded, remote, EXCEPTIONS[embedded]) == set()
    assert lacking(remote, embedded, EXCEPTIONS[remote]) == set()


@pytest.mark.parametrize(("embedded", "remote"), PAIRS)
def test_what_both_sides_have_takes_the_same_parameters(embedded, remote):
    assert differing(embedded, remote) == set()


def test_what_a_nodes_table_lacks_is_told_to_its_users():
    (listed,) = re.findall(r"A table of a node lacks only\n(.*?)\n\n", PAGE.read_text(), re.DOTALL)
    named = set(re.findall(r"`(\w+)`", listed)) - {"sql"}
    assert named == {name for name, why in EXCEPTIONS[LakeTable].items() if why != OF_THE_ROOMS}


def test_a_name_or_a_parameter_that_one_side_lacks_is_noticed():
    class One(ClientTable):
        def more(self): ...

        def history(self, limit=3): ...

    assert lacking(One, ClientTable, {}) == {"more"}
    assert lacking(ClientTable, One, {"gone": "of old"}) == {"gone"}
    assert differing(One, ClientTable) == {"history"}


def used(lake):
    """Do what a user does beside asking; return the answers that do not depend on the moment."""
    table = lake.create_table("prices", time_column="ts", bucket="1h", entity_columns="symbol")
    told = [table.info()]
    told.append(table.submit([price(0)], request_id="hour-0").result(60))
    written = [table.submit([price(hour)], request_id=f"hour-{hour}") for hour in range(1, 20)]
    told.append([one.result(60) for one in written])
    told.append(table.submit([]).result(60))
    again = table.submit([price(0)], request_id="hour-0")
    told.append(again.result(60))
    told.append(table.info())
    table.flush()
    table.write([price(22, "AMD")])
    told += [table.info(), table.info(1)]
    with pytest.raises(Invalid) as refused:
        table.submit([{**price(0), "close": "much"}]).result(60)
    told.append((refused.value.message, refused.value.hint))
    with pytest.raises(ThermoclineError) as none:
        lake.entity_types()
    told += [type(none.value), none.value.message, lake.flush_error]
    told += [type(lake.root()), type(table.root()), table.root().startswith(lake.root())]
    late = table.submit([price(23)])
    lake.close(flush=False)
    told.append(late.result(60))
    for act in (table.flush, lambda: table.submit([price(1)]), lambda: lake.sql("select 1")):
        with pytest.raises(Unavailable) as closed:
            act()
        told.append((closed.value.message, closed.value.hint))
    return told


def plain(value):
    """Return an answer without what is of the moment: when a version was committed, its bytes."""
    if isinstance(value, dict):
        return {k: v for k, v in value.items() if k not in ("committed", "size_bytes")}, [*value]
    return value


@pytest.fixture
def sides(tmp_path):
    """The lake of a folder, and one behind an address."""
    with (
        serving(tmp_path / "node") as served,
        connect(tmp_path / "lake") as embedded,
        connect(served.url) as remote,
    ):
        yield SimpleNamespace(embedded=embedded, remote=remote)


def test_what_both_sides_have_gives_the_same_shapes_and_values(sides):
    local, remote = used(sides.embedded), used(sides.remote)
    for one, other in zip(local, remote, strict=True):
        assert plain(one) == plain(other)


def test_the_old_name_of_an_argument_still_works_and_says_the_new_one(tmp_path):
    with connect(tmp_path / "lake") as lake:
        table = lake.create_table("prices", time_column="ts", bucket="1h")
        table.write([{"ts": price(0)["ts"], "close": 1.0}])
        with pytest.warns(DeprecationWarning, match="`is_flushed` is now `flush`"):
            lake.close(is_flushed=False)
    with connect(tmp_path / "lake", read_only=True) as lake:
        table = lake.table("prices")
        assert [part.batch.num_rows for part in table.snapshot().parts] == [1]
        with (
            pytest.raises(Invalid, match="not a flag"),
            pytest.warns(DeprecationWarning, match="is_flushed"),
        ):
            lake.close(is_flushed="no")


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("thermocline.pipeline.run", "Runner", "Runner"),
        ("thermocline.pipeline.site", "Site", "JobWorkspace"),
        ("thermocline.pipeline.settings", "pipeline_settings", "pipeline_settings"),
    ],
)
def test_a_documented_name_that_moved_still_works_and_says_where_it_is(module, old, new):
    from thermocline import pipeline

    place = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"is now thermocline.pipeline.{new}"):
        found = getattr(place, old)
    assert found is getattr(pipeline, new)


def test_tables_are_renamed_copied_dropped_and_brought_back_the_same_on_both_sides(sides):
    def used(lake):
        table = lake.create_table("prices", time_column="ts", bucket="1h", entity_columns="symbol")
        table.write([price(0), price(1)])
        told = [lake.rename_table("prices", "quotes").info()["rows"], lake.tables()]
        told.append(lake.copy_table("quotes", "copied").info())
        told.append(lake.copy_table("quotes", "empty", at=2).info()["rows"])
        told += [lake.drop_table("quotes"), lake.tables(), lake.dropped_tables().column_names]
        told.append(lake.dropped_tables()["table"].to_pylist())
        told.append(str(lake.dropped_tables().schema))
        for act in (
            lambda: lake.table("quotes"),
            lambda: lake.drop_table("quotes"),
            lambda: lake.undrop_table("nothing"),
            lambda: lake.rename_table("quotes", "more"),
        ):
            with pytest.raises(NotFound) as missing:
                act()
            told.append(missing.value.message)
        with pytest.raises(Conflict) as taken:
            lake.undrop_table("quotes", "copied")
        told.append((taken.value.message, taken.value.hint))
        with pytest.raises(Invalid) as refused:
            lake.rename_table("copied", "a b")
        told.append(refused.value.message)
        told.append(lake.undrop_table("quotes", "again").info()["rows"])
        lake.drop_table("again")
        told += [lake.vacuum_dropped(), lake.vacuum_dropped(grace="0s", allow_short_grace=True)]
        told.append(lake.vacuum_dropped(dry_run=False, grace="0s", allow_short_grace=True))
        return [*told, lake.dropped_tables().num_rows, lake.tables()]

    local, remote = used(sides.embedded), used(sides.remote)
    for one, other in zip(local, remote, strict=True):
        assert plain(one) == plain(other)
