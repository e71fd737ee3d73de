"""The list has all functions of the engine except those that a rule refuses."""

from thermocline.query.sql.allowed_functions import FUNCTIONS, OPERATORS, TABLE_FUNCTIONS

# Different at every call, but still functions of values only.
CHANGING = set(
    """
    random uuid uuidv4 uuidv7 gen_random_uuid error now today current_date get_current_time
    get_current_timestamp transaction_timestamp current_localtime current_localtimestamp
    """.split()  # noqa: SIM905
)
# Refused by a prefix or by name, if they were not functions of values: `version` is Thermocline's.
HARMLESS = {"pg_typeof", "version"}
PREFIXES = (
    "__",
    "collate_",
    "current_",
    "duckdb_",
    "format_pg",
    "has_",
    "icu_",
    "inet_",
    "json_copy_",
    "json_deserialize_",
    "json_serialize_",
    "parse_duckdb",
    "pg_",
    "variant_bytes",
    "variant_to_parquet",
)
NAMED = set(
    """
    !__postfix col_description combine combine_aggr constant_or_null create_sort_key finalize
    format_type get_block_size hive_partition_component index_key invoke map_to_pg_oid
    obj_description remap_struct session_user shobj_description to_aggregate_state user
    """.split()  # noqa: SIM905
)
# Special syntax that the parser never writes as the name of a function.
WORDS = {"is distinct from", "is not distinct from"}


def is_refused(name: str, stability: str | None) -> bool:
    """Functions whose value changes from call to call, and internal functions of the engine."""
    if name in CHANGING | HARMLESS:
        return False
    changes = stability in ("VOLATILE", "CONSISTENT_WITHIN_QUERY")
    return changes or name.startswith(PREFIXES) or name in NAMED | WORDS


def test_every_function_of_the_engine_is_on_the_list_or_refused_by_the_rule(parser):
    found = parser.execute(
        "select distinct lower(function_name), stability from duckdb_functions()"
        " where function_type in ('scalar', 'aggregate', 'macro', 'window')"
    ).fetchall()
    refused = {name for name, stability in found if is_refused(name, stability)}
    allowed = {name for name, _ in found} - refused
    assert allowed | {"unnest"} == FUNCTIONS | OPERATORS


def test_what_the_rule_refuses_is_what_was_looked_at(parser):
    found = parser.execute(
        "select distinct lower(function_name), stability from duckdb_functions()"
        " where function_type in ('scalar', 'aggregate', 'macro', 'window')"
    ).fetchall()
    refused = {name for name, stability in found if is_refused(name, stability)}
    few = {
        name for name in refused if not name.startswith(("collate_", "icu_", "__", "pg_", "has_"))
    }
    assert few == NAMED | WORDS | set(
        """
        current_catalog current_connection_id current_database current_query current_query_id
        current_role current_schema current_schemas current_setting current_transaction_id
        current_user currval format_pg_type getvariable in_search_path inet_client_addr
        inet_client_port inet_server_addr inet_server_port json_copy_strftime_if_date
        json_copy_strftime_if_timestamp json_deserialize_sql json_serialize_plan
        json_serialize_sql nextval parse_duckdb_log_message setseed setval sleep_ms stats
        txid_current variant_bytes_to_variant variant_to_parquet_variant vector_type write_log
        """.split()  # noqa: SIM905
    )


def test_no_table_function_reads_files_or_the_catalog():
    assert {"unnest", "generate_series", "range", "json_each"} == TABLE_FUNCTIONS
