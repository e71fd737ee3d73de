"""What may not be run is refused by name, and what may be run is understood."""

import pytest

from thermocline.errors import Invalid
from thermocline.query.sql.gate import RESERVED_PREFIXES, admit
from thermocline.query.sql.syntax import TEXT_BYTES_MAX

HOSTILE = {
    # Statements other than SELECT
    "insert": "insert into prices values (1)",
    "update": "update prices set a = 1",
    "delete": "delete from prices",
    "create table": "create table x as select 1",
    "create view": "create view x as select 1",
    "create macro": "create macro f(a) as a + 1",
    "drop": "drop view prices",
    "alter": "alter table prices rename to x",
    "copy to": "copy prices to '/tmp/out.csv'",
    "copy from": "copy prices from '/etc/passwd'",
    "attach": "attach '/tmp/other.db'",
    "install": "install httpfs",
    "load": "load httpfs",
    "set": "set threads = 1",
    "reset": "reset threads",
    "set variable": "set variable x = 1",
    "pragma": "pragma database_list",
    "call": "call pragma_version()",
    "explain": "explain select 1",
    "export": "export database '/tmp/x'",
    "vacuum": "vacuum",
    "checkpoint": "checkpoint",
    "begin": "begin",
    "prepare": "prepare q as select 1",
    "execute": "execute q",
    "use": "use memory",
    "secret": "create secret s (type s3)",
    "show tables": "show tables",
    "show in a subquery": "select * from (show tables)",
    "two statements": "select 1; select 2",
    "no statement": "  ; -- nothing",
    "empty": "",
    # Statements hidden inside a SELECT
    "insert in an expression": "with x as (insert into p values (1) returning *) select * from x",
    "delete in an expression": "with x as (delete from p returning *) select * from x",
    "update in an expression": "with x as (update p set a = 1 returning *) select * from x",
    # Files and addresses
    "read_csv": "select * from read_csv('/etc/passwd')",
    "read_csv_auto": "select * from read_csv_auto('/etc/passwd')",
    "read_text": "select * from read_text('/etc/passwd')",
    "read_blob": "select * from read_blob('/etc/passwd')",
    "read_json": "select * from read_json('/etc/x.json')",
    "read_parquet": "select * from read_parquet('/tmp/x.parquet')",
    "parquet_scan": "select * from parquet_scan('/tmp/x.parquet')",
    "parquet_metadata": "select * from parquet_metadata('/tmp/x.parquet')",
    "glob": "select * from glob('/*')",
    "sniff_csv": "select * from sniff_csv('/etc/passwd')",
    "read_duckdb": "select * from read_duckdb('/tmp/x.db')",
    "upper case": "SELECT * FROM READ_TEXT('/etc/passwd')",
    "quoted": """select * from "read_text"('/etc/passwd')""",
    "qualified function": "select * from system.main.read_text('/etc/passwd')",
    "lateral": "select * from prices, lateral read_text('/etc/passwd')",
    "in a subquery": "select (select content from read_text('/etc/passwd'))",
    "in an expression": "with x as (select * from read_text('/etc/passwd')) select * from x",
    "in a set operation": "select 1 union all select 1 from glob('/*')",
    "in a join": "select * from prices join read_text('/etc/passwd') on true",
    "in an order": "select 1 order by (select 1 from glob('/*'))",
    "in a limit": "select 1 limit (select 1 from glob('/*'))",
    "in a pivot": "select * from (select 1 from glob('/*')) pivot (sum(a) for b in (1))",
    # The engine's own state
    "settings": "select * from duckdb_settings()",
    "one setting": "select current_setting('allowed_directories')",
    "views": "select * from duckdb_views()",
    "functions": "select * from duckdb_functions()",
    "secrets": "select * from duckdb_secrets()",
    "log": "select * from duckdb_logs()",
    "variables": "select * from duckdb_variables()",
    "a variable": "select getvariable('x')",
    "environment": "select getenv('HOME')",
    "table info": "select * from pragma_table_info('prices')",
    "database size": "select * from pragma_database_size()",
    "view definition": "select pg_get_viewdef(1)",
    "current query": "select current_query()",
    "temporary files": "select * from duckdb_temporary_files()",
    "secrets by scope": "select * from which_secret('s3://x', 's3')",
    "postgres catalog": "select * from pg_catalog.pg_views",
    "memory catalog": "select * from memory.main.prices",
    "another table of the information schema": "select * from information_schema.key_column_usage",
    "a version of the information schema": "from information_schema.tables as of version 1",
    "the main schema of a catalog": "select * from system.main.prices",
    "a catalog view by the main schema": "select * from main.duckdb_settings()",
    # SQL as text
    "query": "select * from query('select 1')",
    "query_table": "select * from query_table('prices')",
    "serialized": "select * from json_execute_serialized_sql('{}')",
    "serialize": "select json_serialize_sql('select 1')",
    "serialize plan": "select json_serialize_plan('select 1')",
    "deserialize": "select json_deserialize_sql('{}')",
    # Effects
    "sleep": "select sleep_ms(100000)",
    "postgres sleep": "select pg_sleep(100000)",
    "sequence": "select nextval('s')",
    "seed": "select setseed(0.5)",
    "log line": "select write_log('x')",
    "table checkpoint": "select * from checkpoint()",
    "aggregate state": "select finalize(x) from prices",
    "exported state": "select sum(a) export_state from prices",
    "internal function": "select __internal_compress_integral_utinyint(1, 2)",
    "repeat rows": "select * from repeat_row(1, num_rows => 100000000000)",
    "test types": "select * from test_all_types()",
    "a method of a schema": "select main.getenv('HOME')",
    "a method that reads files": "select path.read_text() from prices",
    "a method of the system": "select system.version()",
    "a method of a table function": "select * from prices.read_parquet()",
    # Names that lead elsewhere
    "catalog name as an expression": "with recursive sqlite_master as (select * from "
    "sqlite_master union all select * from sqlite_master) select * from sqlite_master",
    "settings name as an expression": "with duckdb_settings as (select 1) select 1",
    "internal name as an expression": "with __thermocline_slot_0 as (select 1) select 1",
    "version of an expression": "with x as (select 1) select * from x as of version 3",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_statement_is_refused(parser, name):
    with pytest.raises(Invalid):
        admit(parser, HOSTILE[name])


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("select 1", []),
        ("select * from '/etc/passwd'", ["/etc/passwd"]),
        ("from 'data/*.parquet'", ["data/*.parquet"]),
        ("select * from prices", ["prices"]),
        ("select * from Prices p, PRICES q", ["prices"]),
        ("from prices select close", ["prices"]),
        ("table prices", ["prices"]),
        ("describe prices", ["prices"]),
        ("summarize prices", ["prices"]),
        ("select (select max(a) from u where u.b = t.b) from t", ["t", "u"]),
        (
            "select * from a where x in (select y from b) order by (select 1 from c)",
            ["a", "b", "c"],
        ),
        ("with x as (select * from a) select * from x", ["a"]),
        ("with a as (select * from a) select * from a", ["a"]),
        ("with x as (select 1), y as (select * from x) select * from y", []),
        ("with y as (select * from x), x as (select 1) select * from y", ["x"]),
        ("select (with a as (select 1) select * from a), b from a", ["a"]),
        ("with a as (select 1) select * from (with b as (from a) select * from b)", []),
        ("with recursive r as (select 1 n union all select n + 1 from r) select * from r", []),
        ("with recursive r as (select n from r) select * from r", ["r"]),
        ("with recursive r as (from r union all from r) from r", ["r"]),
        ("select * from t pivot (sum(a) for b in (1, 2))", ["t"]),
        ("select * from range(3), generate_series(1, 2), json_each('{}'), unnest([1])", []),
        ("select * from sqlite_master", ["sqlite_master"]),
        ("select * from main.prices", ["prices"]),
        ("with prices as (select 1) select * from main.prices", ["prices"]),
        ("select * from information_schema.tables, information_schema.columns", []),
        ("select close.round(), p.close.abs() from prices p", ["prices"]),
    ],
)
def test_the_tables_of_a_query_are_those_the_engine_would_look_up(parser, sql, tables):
    assert sorted(admit(parser, sql).tables) == sorted(tables)


def test_names_of_the_engines_catalog_cannot_be_names_of_expressions(parser):
    found = parser.execute(
        "select view_name from duckdb_views()"
        " where internal and schema_name != 'information_schema'"
    ).fetchall()
    assert found
    assert all(name.startswith(RESERVED_PREFIXES) for (name,) in found)


def test_a_syntax_error_has_the_parsers_words_and_its_place(parser):
    with pytest.raises(Invalid) as raised:
        admit(parser, "select 1 frm prices where")
    assert raised.value.facts["position"] == 13
    assert "syntax error" in raised.value.facts["error"]


def test_the_place_of_a_syntax_error_is_one_in_the_users_own_text(parser):
    sql = "select * from prices as of version 3 where close >> > 4"
    with pytest.raises(Invalid) as raised:
        admit(parser, sql)
    assert raised.value.facts["position"] == sql.index("> 4")


def test_a_text_past_the_limit_is_refused_unread(parser):
    with pytest.raises(Invalid, match="too long"):
        admit(parser, "select '" + "x" * TEXT_BYTES_MAX + "'")


@pytest.mark.parametrize(
    "sql",
    [
        "select " + "not " * 900 + "true",
        "select " + "(" * 5000 + "1" + ")" * 5000,
        "from " + "(from " * 2000 + "t" + ")" * 2000,
        "select " + "[" * 900 + "1" + "]" * 900,
    ],
)
def test_a_query_nested_without_end_is_refused(parser, sql):
    with pytest.raises(Invalid):
        admit(parser, sql)


def test_text_that_is_no_unicode_is_refused(parser):
    with pytest.raises(Invalid):
        admit(parser, "select '\ud800'")


def test_a_query_is_described_by_its_calls_and_parameters(parser):
    statement = admit(parser, "select $a, $b from gaps('t', $a), history('u') h, t")
    assert [call.function for call in statement.calls] == ["gaps", "history"] or [
        call.function for call in statement.calls
    ] == ["history", "gaps"]
    assert statement.parameters == {"a", "b"}
    assert sorted(statement.tables) == ["t"]


def test_an_own_function_takes_no_named_arguments(parser):
    with pytest.raises(Invalid, match="by position"):
        admit(parser, "select * from gaps('t', start := now())")
