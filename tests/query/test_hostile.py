"""Hostile statements through real workers: refused or contained, and nothing is given away.

Each statement is run by a pool over one table, beside which lie a secret file, a secret in the
environment and a link out of the table's folder. Afterwards the pool answers `select 1`.
"""

import os
import re
import time
from pathlib import Path

import pytest
from test_gate import HOSTILE

from fixtures.lake import rows
from fixtures.pools import PoolOfTables
from thermocline.errors import Invalid, NotFound, Overloaded, ThermoclineError
from thermocline.query.worker.pool import TableRef
from thermocline.table import TimeSeriesTable

SECRET = "correct-horse-battery"
TIMEOUT_S = 1.0
MIB = 1 << 20

# `{secret}` is a file that is not part of the table, `{link}` a link to it inside the table's
# folder, `{data}` a live file of the table.
REFUSED = {
    # Files by name
    "a file as a table": "select * from '{secret}'",
    "a live file as a table": "select * from '{data}'",
    "a linked file as a table": "from '{link}'",
    "a file by a quoted name": 'select * from "{secret}"',
    "a file by an address": "select * from 'file://{secret}'",
    "a file on the web": "select * from 'https://example.com/x.parquet'",
    "a bucket": "select * from 's3://bucket/x.parquet'",
    "a pattern": "select * from '/**/*.parquet'",
    "a file up the tree": "select * from '../../../../../../etc/passwd'",
    "memory of the process": "select * from '/proc/self/environ'",
    "the shared rows of a process": "select * from '/proc/self/fd/3'",
    "a database file": "select * from 'other.db'",
    "a dictionary": "from 'x.json'",
    # Files by function
    "read_text of a link": "select content from read_text('{link}')",
    "read_blob of the environment": "select * from read_blob('/proc/self/environ')",
    "read_csv of a list": "select * from read_csv(['{secret}', '{link}'])",
    "read_csv with options": "select * from read_csv('{secret}', columns = {{'a': 'varchar'}})",
    "read_parquet of a live file": "select * from read_parquet('{data}')",
    "read_parquet with names": "select filename from read_parquet('{data}', filename = true)",
    "read_json_objects": "select * from read_json_objects('{secret}')",
    "read_ndjson": "select * from read_ndjson('{secret}')",
    "parquet_schema": "select * from parquet_schema('{data}')",
    "parquet_kv_metadata": "select * from parquet_kv_metadata('{data}')",
    "parquet_file_metadata": "select * from parquet_file_metadata('{data}')",
    "glob of the folder": "select * from glob('{folder}/**')",
    "a function behind a comment": "select * from read_text/* */('{secret}')",
    "a function in other letters": "select * from ReAd_TeXt('{secret}')",
    "a function by its schema": "select * from main.read_text('{secret}')",
    "a file inside a lambda": "select list_transform([1], lambda x: (select 1 from glob('/*')))",
    "a file inside a window": "select sum(1) over (order by (select 1 from glob('/*')))",
    "a file inside a filter": "select count(*) filter (exists (from glob('/*'))) from prices",
    "a file inside having": "select 1 from prices group by 1 having exists (from glob('/*'))",
    "a file inside qualify": "select 1 from prices qualify exists (from glob('/*'))",
    "a file as of a version": "select * from '{data}' as of version 1",
    # Writing, loading, attaching
    "copy of a query": "copy (select '{marker}') to '{folder}/out.csv'",
    "copy to a program": "copy (select 1) to program 'touch {folder}/out'",
    "copy with partitions": "copy prices to '{folder}/out' (format parquet, partition_by symbol)",
    "copy from database": "copy from database memory to other",
    "attach of a live file": "attach '{data}' as d (type sqlite)",
    "attach for reading": "attach '{secret}' as d (read_only)",
    "detach": "detach memory",
    "install from an address": "install x from 'https://example.com'",
    "forced install": "force install httpfs",
    "load of a file": "load '{secret}'",
    "import": "import database '{folder}'",
    "a persistent secret": "create persistent secret s (type s3, key_id 'a', secret 'b')",
    "drop of a secret": "drop secret s",
    # Settings
    "set of the lock": "set lock_configuration = false",
    "set of access": "set global enable_external_access = true",
    "set of memory": "set memory_limit = '100GB'",
    "reset of access": "reset enable_external_access",
    "pragma of memory": "pragma memory_limit='100GB'",
    "pragma of threads": "pragma threads=64",
    "pragma in a function": "select * from pragma_user_agent()",
    "pragma of storage": "select * from pragma_storage_info('prices')",
    "a setting in a filter": "select 1 from prices where current_setting('temp_directory') > ''",
    "the spill folder": "select current_setting('temp_directory')",
    "the allowed folders": "select value from duckdb_settings() where name like 'allowed%'",
    # The engine's catalog and the machine
    "tables of the catalog": "select * from duckdb_tables()",
    "columns of the catalog": "select * from duckdb_columns()",
    "databases": "select path from duckdb_databases()",
    "memory of the engine": "select * from duckdb_memory()",
    "extensions": "select install_path from duckdb_extensions()",
    "approved secrets": "select * from duckdb_secret_types()",
    "system catalog": "select * from system.information_schema.tables",
    "postgres settings": "select * from pg_catalog.pg_settings",
    "a catalog view": "select sql from sqlite_master",
    "a catalog view by case": "select sql from SQLITE_Master",
    "the environment": "select getenv('THERMOCLINE_TEST_SECRET')",
    "the environment by table": "select * from duckdb_variables() where name = 'PATH'",
    "the version": "select * from pragma_version()",
    "settings in the information schema": "select * from information_schema.settings",
    "files in the information schema": "select file from information_schema.tables",
    "tables of another catalog": "select * from memory.information_schema.tables",
    "show of databases": "show databases",
    "show of settings": "show temp_directory",
    "describe of a file": "describe '{secret}'",
    "summarize of a file": "summarize '{link}'",
    "the schema": "select current_schema(), current_database()",
    "the process": "select pg_backend_pid()",
    # SQL in SQL
    "query of a file": "select * from query('select * from read_text(''{secret}'')')",
    "query_table of a file": "select * from query_table('{secret}')",
    "query_table of a list": "select * from query_table(['prices', '{secret}'])",
    "prepared and run": "prepare p as select * from '{secret}'; execute p",
    "a second statement": "select 1; copy (select 1) to '{folder}/out.csv'",
    "a second statement in a comment's shadow": "select 1 /* ; */ ; drop table prices --",
    "a second statement after a string": "select ';' ; pragma database_list",
    "a null in the text": "select 1 \0; select 2",
    "explain": "explain analyze delete from prices",
    "explain of a copy": "explain analyze copy (select 1) to '{folder}/out.csv'",
    "explain of a file": "explain select * from '{secret}'",
    "explain of a function": "explain select * from read_text('{link}')",
    "explain of explain": "explain explain select 1",
    "explain of a definition": "explain create temp view v as select * from '{secret}'",
    "explain as text": "explain (format html) select 1",
    "explain of two": "explain select 1; copy (select 1) to '{folder}/out.csv'",
    # Views and macros: each passes the gate where it is defined and where it is used
    "a view of a file": "create temp view v as select * from '{secret}'; select * from v",
    "a view of a function": "create temp view v as from read_text('{link}'); from v",
    "a view of the catalog": "create temp view v as from duckdb_settings(); from v",
    "a view that is not used": "create temp view v as from read_text('{link}'); select 1",
    "a view in place of a table": "create temp view prices as select 1; select * from prices",
    "a view in place of the catalog": "create temp view duckdb_settings as select 1; select 1",
    "a view with an own name": "create temp view __thermocline_slot_0 as select 1; select 1",
    "a view in another schema": "create temp view main.v as select 1; select * from v",
    "a view for later": "create temp view v as select 1",
    "a view for everyone": "create view v as select 1; select * from v",
    "a view that ends early": "create temp view v as select 1) as x; select * from v",
    "a view with a statement in it": "create temp view v as (copy prices to '{folder}/o'); from v",
    "a view of itself": "create or replace temp view v as select * from v; select * from v",
    "a table in place of a view": "create temp table v as select 1; select * from v",
    "a macro of a file": "create temp macro f() as table from read_text('{link}'); from f()",
    "a macro of a value of a file": "create temp macro f() as (select content from "
    "read_text('{link}')); select f()",
    "a macro with the file as its argument": "create temp macro f(p) as table select * from "
    "read_text(p); from f('{link}')",
    "a macro with the table as its argument": "create temp macro f(p) as table select * from "
    "query_table(p); from f('{secret}')",
    "a macro of a setting": "create temp macro f(a) as current_setting(a); select f('TimeZone')",
    "a macro of the environment": "create temp macro f(a) as getenv(a); select f('HOME')",
    "a macro in place of a function": "create temp macro count(a) as 1; select count(1)",
    "a macro in place of a refused function": "create temp macro getenv(a) as "
    "system.main.getenv(a); select getenv('THERMOCLINE_TEST_SECRET')",
    "a macro that ends early": "create temp macro f() as 1) , (select 2; select f()",
    "a macro with a clause": "create temp macro f() as 1 from glob('/*'); select f()",
    "a macro with a default": "create temp macro f(a := getenv('HOME')) as a; select f()",
    "a macro with a default query": "create temp macro f(a := (select 1)) as a; select f()",
    "a macro of itself": "create temp macro f(a) as f(a); select f(1)",
    "a macro in a circle": "create temp macro f(a) as a; create temp macro g(a) as f(a); "
    "create or replace temp macro f(a) as g(a); select f(1)",
    "a drop of a table": "drop view prices; select 1",
    "a drop of a function": "drop macro count; select 1",
    "a pivot of a file": "pivot '{secret}' on a using count(*)",
    "a pivot of a function": "pivot (from read_text('{link}')) on content using count(*)",
    "a pivot on a file": "pivot prices on (select content from read_text('{link}')) using count(*)",
    "a pivot with a file": "pivot prices on symbol using max((from read_text('{link}')))",
    "a pivot and more": "pivot prices on symbol using count(*); copy prices to '{folder}/o'",
    "a pivot with a parameter": "pivot prices on symbol using max(getvariable('x'))",
    "a method of a file": "select '{link}'.read_text()",
    "a method of a setting": "select 'temp_directory'.current_setting()",
    "a version by a file": "select * from prices as of timestamp (select content from "
    "read_text('{link}'))",
    "a version by a setting": "select * from prices as of timestamp current_setting('TimeZone')",
    "a table made": "create temp table x as select * from '{secret}'",
    "a macro made": "create or replace macro count(a) as 1",
    "a function made": "create function f() as table select * from '{secret}'",
    "a type made": "create type t as enum (select content from read_text('{secret}'))",
    "an enum of a query": "select 'a'::enum (select content from read_text('{secret}'))",
    "rows changed": "merge into prices using prices p on false when not matched then insert *",
    "rows changed in an expression": "with x as (update prices set close = 0 returning *) from x",
    "a call": "call query('select 1')",
    "a script": "begin; select 1; commit",
    # Names that are not there
    "another table": "select * from orders",
    "another schema": "select * from other.prices",
    "the hidden names": "select * from __thermocline_0_rows_0",
    "the hidden variables": "select getvariable('__thermocline_0_bits_0')",
    "gaps of a file": "select * from gaps('{secret}')",
    "history of a file": "select * from history('{data}')",
    "coverage of another": "select * from coverage('orders')",
    "the file of a row": "select filename from prices",
    "the place of a row": "select file_row_number, file_index from prices",
}

# Run if possible: the answer is rows, or an error about a limit.
CONTAINED = {
    "repeat": "select repeat('x', 2000000000)",
    "repeat past its type": "select repeat('x', 9223372036854775807)",
    "repeat of repeat": "select length(repeat(repeat(repeat('x', 60000), 60000), 60000))",
    "repeat of rows": "select sum(length(repeat(i::varchar, 2000000))) from range(100000) r(i)",
    "lpad": "select length(lpad('x', 2000000000, 'y'))",
    "a long list": "select length(range(1000000000))",
    "a long list of times": "select generate_series(timestamp '0001-01-01', timestamp "
    "'9000-01-01', interval 1 second)",
    "a list reduced": "select list_reduce(range(100000000), lambda a, b: a + b)",
    "a list sorted": "select list_sort(list_transform(range(60000000), lambda x: hash(x)))[1]",
    "a list resized": "select length(list_resize([1], 2000000000, 0))",
    "a list of lists": "select list_transform(range(10000), lambda x: range(100000))",
    "a list gathered": "select length(list(i)) from range(1000000000) r(i)",
    "a text gathered": "select length(string_agg(i::varchar, ',')) from range(1000000000) r(i)",
    "an object gathered": "select json_group_array(i) from range(100000000) r(i)",
    "a histogram": "select histogram(i) from range(100000000) r(i)",
    "bits": "select bitstring('1', 2000000000)",
    "a factorial": "select factorial(100000)",
    "a long difference": "select levenshtein(repeat('a', 200000), repeat('b', 200000))",
    "a long pattern": "select regexp_matches(repeat('a', 100000), '(a|aa|aaa)*' || 'b')",
    "a format": "select format('{{:>2000000000}}', 1)",
    "a printf": "select printf('%2000000000d', 1)",
    "endless recursion": "with recursive t as (select 1 as n union all select n + 1 from t) "
    "select count(*) from t",
    "growing recursion": "with recursive t as (select 'x' as s union all select s || s from t) "
    "select max(length(s)) from t",
    "branching recursion": "with recursive t as (select 1 as n union all select n + 1 from t, "
    "range(10)) select count(*) from t",
    "a cross join": "select count(*) from range(10000000) a(i), range(10000000) b(j) "
    "where i * j % 7 = 3",
    "a cross join of tables": "select max(a.close + b.close + c.close + d.close + e.close) from "
    "prices a, prices b, prices c, prices d, prices e, prices f, prices g",
    "a wide grouping": "select count(*) from range(100) r(i) group by cube "
    "(i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6, i + 7, i + 8, i + 9, i + 10, i + 11)",
    "a sort past the budget": "select i, repeat('x', 500) as s from range(50000000) r(i) "
    "order by hash(i) limit 40000000",
    "a pivot": "select * from (select i as k, i as v from range(20000) r(i)) pivot "
    "(sum(v) for k in (1, 2, 3))",
    "an endless range": "select count(*) from range(9223372036854775806)",
    "an endless answer": "select i, repeat('x', 1000) from range(1000000000) r(i)",
    "deep brackets": "select " + "(" * 20_000 + "1" + ")" * 20_000,
    "deep functions": "select " + "abs(" * 5_000 + "1" + ")" * 5_000,
    "deep queries": "select * from (" * 1_500 + "select 1" + ")" * 1_500,
    "deep lists": "select " + "[" * 10_000 + "]" * 10_000,
    "a long sum": "select " + " + ".join(["1"] * 20_000),
    "a long choice": "select 1 where 1 in (" + ",".join(["1"] * 40_000) + ")",
    "a long union": " union all ".join(["select 1"] * 5_000),
    "a chain of expressions": "with a0 as (select 1 as n), "
    + ", ".join(f"a{n} as (select x.n from a{n - 1} x, a{n - 1} y)" for n in range(1, 30))
    + " select count(*) from a29",
    "a list of constants for pruning": "select count(*) from prices where ts > to_timestamp("
    + "1 + " * 3_000
    + "1)",
    "a constant that is long to find": "select * from prices where ts > make_timestamp(1, 1, 1, "
    "1, 1, abs(1)) and ts < date_trunc('day', timestamp '9999-12-31' + to_days(2000000000))",
    "an edge that is long to find": "select * from gaps('prices', '0001-01-01', '9999-12-31')",
    "a strange text": "select '\ud800'",
    "a strange name": 'select * from "pri\x00ces"',
    "the user": "select current_user, session_user, current_catalog, current_schema",
    "a zone": "select timezone('../../etc/passwd', now())",
    "a collation": "select 'a' collate nosuch",
    "explain": "explain select * from prices where close > 3",
    "explain with a run": "explain analyze select symbol, max(close) from prices group by all",
    "explain of a long run": "explain analyze select count(*) from range(10000000) a(i), "
    "range(10000000) b(j) where i * j % 7 = 3",
    "the information schema": "select * from information_schema.columns c, "
    "information_schema.tables t, information_schema.schemata",
    "all tables": "show all tables",
    "own version": "select version(), pg_typeof(close) from prices",
    "views of views": "create temp view v0 as select 1 as n; "
    + "".join(
        f"create temp view v{n} as select x.n from v{n - 1} x, v{n - 1} y; " for n in range(1, 25)
    )
    + "select count(*) from v24",
    "macros of macros": "create temp macro f0(a) as a + a; "
    + "".join(f"create temp macro f{n}(a) as f{n - 1}(f{n - 1}(a)); " for n in range(1, 12))
    + "select f11(1)",
    "too many definitions": "".join(
        f"create temp view v{n} as select {n} as n; " for n in range(200)
    )
    + "select 1",
    "a pivot on many values": "pivot (select i, i % 20000 as k from range(100000) r(i)) on k "
    "using count(*)",
    "a long text of numbers": "select 1 where 1 in (" + ",".join(["1234567"] * 125_000) + ")",
    "a long text of brackets": "select " + "(" * 400_000 + "1" + ")" * 400_000,
    "a long text of sums": "select " + " + ".join(["1"] * 250_000),
    "a long text of queries": "select * from (" * 60_000 + "select 1" + ")" * 60_000,
    "a long text of unions": " union all ".join(["select 1"] * 50_000),
    "a long text of dots": "select a" + ".b" * 400_000,
    "a text past the limit": "select '" + "x" * 2_000_000 + "'",
    "an error of its own": "select error('{secret}')",
}


class Place:
    """A table, and beside it a secret that no query may read."""

    def __init__(self, folder: Path):
        table = TimeSeriesTable.create(
            folder / "prices", time_column="ts", bucket="1h", entity_columns=["symbol"]
        )
        table.append(rows(range(72)))
        self.root = table.root()
        secret = folder / "beside" / "secret.csv"
        secret.parent.mkdir()
        secret.write_text(f"{SECRET}\n")
        link = Path(self.root) / "data" / "link.csv"
        link.symlink_to(secret)
        data = next((Path(self.root) / "data").rglob("*.parquet"))
        self.beside = secret.parent
        self.words = {
            "secret": secret,
            "link": link,
            "data": data,
            "folder": secret.parent,
            "marker": SECRET[:7],
        }

    def statement(self, text: str) -> str:
        for word, value in self.words.items():
            text = text.replace("{" + word + "}", str(value))
        return text.replace("{{", "{").replace("}}", "}")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The table and its surroundings, made once."""
    return Place(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def pool(place):
    """One small worker, used by every statement; its environment has a secret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THERMOCLINE_TEST_SECRET", SECRET)
        with PoolOfTables(
            {"prices": TableRef("prices", place.root)},
            memory_bytes=64 * MIB,
            spill_bytes=64 * MIB,
            answer_bytes_max=64 * MIB,
            timeout_s=TIMEOUT_S,
        ) as opened:
            yield opened


def paths_in(text):
    return set(re.findall(r"(?<![\w.:/])/(?:[\w.*-]+/)*[\w.*-]+", text))


def check_nothing_is_shown(text, statement, place):
    assert SECRET not in text
    assert "thermocline-worker" not in text
    assert "thermocline-spill" not in text
    shown = {
        path for path in paths_in(text) if path not in statement and not path.startswith(place.root)
    }
    assert shown == set()


def check_pool_answers(pool, place):
    assert pool.sql("select 1", timeout_s=60).to_pylist() == [{"1": 1}]
    assert os.listdir(place.beside) == ["secret.csv"]


def resident_peak_bytes(pool):
    (pid,) = pool.worker_ids()
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0]) << 10


def test_there_are_many_statements():
    assert len(REFUSED) + len(CONTAINED) >= 120
    again = set(HOSTILE.values()) & {*REFUSED.values(), *CONTAINED.values()}
    assert again == set()


@pytest.mark.parametrize("name", REFUSED)
def test_A04_A07_a_hostile_statement_is_refused_by_a_worker_that_lives(pool, place, name):
    check_pool_answers(pool, place)
    before = pool.worker_ids()
    statement = place.statement(REFUSED[name])
    with pytest.raises((Invalid, NotFound)) as raised:
        pool.sql(statement, timeout_s=60)
    check_nothing_is_shown(str(raised.value), statement, place)
    check_pool_answers(pool, place)
    assert pool.worker_ids() == before


@pytest.mark.parametrize("name", CONTAINED)
def test_Q06_a_statement_that_asks_too_much_is_contained(pool, place, name):
    statement = place.statement(CONTAINED[name])
    start = time.monotonic()
    try:
        said = str(pool.sql(statement).slice(0, 3).to_pylist())[:10_000]
    except (Invalid, NotFound, Overloaded) as error:
        said = str(error)
    assert time.monotonic() - start < 20
    check_nothing_is_shown(said, statement, place)
    check_pool_answers(pool, place)
    assert resident_peak_bytes(pool) < 600 * MIB


def test_the_secrets_are_there_to_be_found(place):
    """Without this test the checks above would pass with a mistake in the set-up."""
    assert Path(place.words["link"]).read_text() == f"{SECRET}\n"
    with pytest.raises(AssertionError):
        check_nothing_is_shown(f"x {SECRET}", "", place)
    with pytest.raises(AssertionError):
        check_nothing_is_shown("could not open '/tmp/other/file'", "", place)
    check_nothing_is_shown("see '/etc/passwd'", "select * from '/etc/passwd'", place)


def test_every_error_of_a_hostile_statement_is_one_of_this_package(pool, place):
    for params in ([], [None], {"a": "x"}, "text", 5):
        with pytest.raises(ThermoclineError):
            pool.sql("select * from prices where close = ? and close > ?", params)
    check_pool_answers(pool, place)
