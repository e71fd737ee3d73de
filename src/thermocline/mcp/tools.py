"""What an assistant can ask: which tables there are, what one is, where it has gaps, and SQL.

In:   the name of a tool and its arguments, a lake in a folder or of a node
Out:  JSON values within limits; errors of this package

- Every tool only reads. SQL passes the gate of `query/`, and over a node also its key and quota.
- An answer has at most `ROWS_MAX` rows and `ANSWER_BYTES_MAX` of JSON, because it fills the context
  of a model. A longer one is cut, and says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Union

from thermocline.errors import Invalid
from thermocline.show.lines import distinct_names, json_objects

if TYPE_CHECKING:
    from thermocline.client import Client
    from thermocline.lake import Lake

ROWS_DEFAULT = 100
ROWS_MAX = 1_000
ANSWER_BYTES_MAX = 200_000
TABLES_MAX = 200
TIMEOUT_S = 60.0

Arguments = Mapping[str, Any]
Place = Union["Lake", "Client"]

_NAME = {"type": "string", "description": "The name of a table, as list_tables returns it."}
_TIME = {"type": "string", "description": "A time in ISO 8601, in UTC if it has no zone."}
_SQL_HELP = (
    "Run one SELECT (the SQL of DuckDB) over the tables and return its rows. Only reading is"
    " possible. Also SHOW TABLES, DESCRIBE and EXPLAIN; `FROM t AS OF VERSION 3` and"
    " `AS OF TIMESTAMP '2024-06-01'` read the past; gaps('t') and coverage('t') return stretches of"
    " time. Select, filter and aggregate in SQL: only the first rows are returned."
)


@dataclass(frozen=True, slots=True)
class AssistantTool:
    """A tool: what it is for, what it takes, and what it does."""

    name: str
    description: str
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    run: Callable[[Place, Arguments, str], dict[str, Any]]

    def describe(self) -> dict[str, Any]:
        """Return the tool as the protocol lists it."""
        schema = {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": schema,
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        }

    def check_arguments(self, given: Any) -> Arguments:
        """Return the arguments; `Invalid` for a missing, unknown or wrong one."""
        if not isinstance(given, dict):
            raise Invalid("the arguments are not an object", hint="pass them by name")
        for name in self.required:
            if name not in given:
                raise Invalid("an argument is missing", hint="pass it", argument=name)
        for name, value in given.items():
            if name not in self.properties:
                hint = f"it takes {', '.join(self.properties) or 'none'}"
                raise Invalid("the tool has no such argument", hint=hint, argument=name)
            kind = self.properties[name]["type"]
            if not isinstance(value, _KINDS[kind]) or isinstance(value, bool):
                raise Invalid(
                    "an argument has the wrong type", hint="fix it", argument=name, expected=kind
                )
        return given


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "array": list,
    "object": dict,
}


def _list_tables(place: Place, given: Arguments, query_id: str) -> dict[str, Any]:
    del given, query_id
    names = place.tables()
    shown = names[:TABLES_MAX]
    return {"tables": shown, "is_truncated": len(shown) < len(names)}


def _describe_table(place: Place, given: Arguments, query_id: str) -> dict[str, Any]:
    del query_id
    return dict(place.table(given["table"]).info())


def _find_gaps(place: Place, given: Arguments, query_id: str) -> dict[str, Any]:
    del query_id
    found = place.table(given["table"]).gaps(
        given.get("start"), given.get("end"), entity=given.get("entity")
    )
    return _encode_rows(found.schema, iter(found.to_batches()), ROWS_DEFAULT)


def _query(place: Place, given: Arguments, query_id: str) -> dict[str, Any]:
    rows_max = given.get("rows_max", ROWS_DEFAULT)
    if not 1 <= rows_max <= ROWS_MAX:
        hint = f"ask for 1 to {ROWS_MAX} rows, and aggregate in SQL"
        raise Invalid("rows_max is out of range", hint=hint, rows_max=rows_max)
    with place.answer(
        given["sql"], given.get("parameters"), timeout_s=TIMEOUT_S, query_id=query_id
    ) as answer:
        return _encode_rows(answer.schema, iter(answer), rows_max)


def _encode_rows(schema: Any, batches: Any, rows_max: int) -> dict[str, Any]:
    """Return the first rows as JSON objects, as many as the limits allow."""
    import orjson

    names = distinct_names(schema.names)
    heads = (batch.slice(0, rows_max + 1) for batch in batches)
    texts = (text for head in heads for text in json_objects(head, names))
    rows: list[Any] = []
    size_bytes = 0
    is_truncated = False
    for text in islice(texts, rows_max + 1):
        size_bytes += len(text)
        if len(rows) == rows_max or size_bytes > ANSWER_BYTES_MAX:
            is_truncated = True
            break
        rows.append(orjson.Fragment(text))
    columns = [
        {"name": name, "type": str(field.type)} for name, field in zip(names, schema, strict=True)
    ]
    return {"columns": columns, "rows": rows, "is_truncated": is_truncated}


TOOLS: Mapping[str, AssistantTool] = {
    one.name: one
    for one in (
        AssistantTool("list_tables", "List the tables.", {}, (), _list_tables),
        AssistantTool(
            "describe_table",
            "Describe a table: its columns and types, time column, bucket, entity columns, rows,"
            " stretch of time, and the share of its buckets that hold rows.",
            {"table": _NAME},
            ("table",),
            _describe_table,
        ),
        AssistantTool(
            "find_gaps",
            "Return the stretches of time for which a table holds no rows, for each entity.",
            {
                "table": _NAME,
                "start": _TIME,
                "end": _TIME,
                "entity": {
                    "type": "object",
                    "description": 'Only this entity, such as {"symbol": "NVDA"}.',
                },
            },
            ("table",),
            _find_gaps,
        ),
        AssistantTool(
            "query",
            _SQL_HELP,
            {
                "sql": {"type": "string", "description": "One SELECT."},
                "parameters": {
                    "type": "array",
                    "description": "The values of ? in the SQL.",
                    "items": {"type": ["string", "number", "boolean", "null"]},
                },
                "rows_max": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": ROWS_MAX,
                    "description": f"At most this many rows; {ROWS_DEFAULT} unless given.",
                },
            },
            ("sql",),
            _query,
        ),
    )
}
