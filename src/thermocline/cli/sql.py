"""The command `sql`: runs one SELECT over tables, and writes the rows in any format.

In:   one SELECT, the tables it names, its parameters
Out:  rows, streamed: the result may be larger than memory

- A table is found by `--table name=path`, or as a folder with that name, here or in `--tables`.
  Only names that occur in the query are searched.
- With `--url` or a context, a node runs the query over its tables.
- If `--tables` is a lake, its tables are found by their names, and their hot rows are read too.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from thermocline.cli.argument import (
    CommandList,
    Format,
    FormatOption,
    JsonOption,
    RowsOption,
    parse_parameters,
)
from thermocline.cli.table.target import is_lake, is_node_chosen, open_lake, open_node, open_table
from thermocline.errors import Invalid, TableNotFound

if TYPE_CHECKING:
    from thermocline.query.session import Session


def sql(
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="One SELECT; - reads it from standard input.")
    ],
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table", "-t", metavar="NAME=PATH", help="A table, or a .parquet file, and its name."
        ),
    ] = None,
    tables: Annotated[
        str,
        typer.Option(
            "--tables", metavar="DIR", help="A lake, or a folder of tables, found by name."
        ),
    ] = ".",
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param", "-p", metavar="NAME=VALUE", help="The value of $NAME; or of the next ?."
        ),
    ] = None,
    form: FormatOption = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to a file; its ending gives the format."
        ),
    ] = None,
    rows: RowsOption = 40,
    json: JsonOption = False,
) -> None:
    """Query tables in SQL, with joins, AS OF and gaps()."""
    from thermocline.cli.terminal.output import choose_output
    from thermocline.cli.terminal.threaded_stream import read_in_thread

    text = sys.stdin.read() if query == "-" else query
    wanted = choose_output(form, output, is_json=json)
    given = parse_parameters(param or ())
    is_local = bool(table) or tables != "."
    if is_local and is_node_chosen():
        hint = "omit --table and --tables: the node has its tables"
        raise Invalid("a node cannot read tables of folders", hint=hint)
    node = None if is_local else open_node()
    if node is not None:
        with read_in_thread(lambda: node.sql_reader(text, given)) as answer:
            wanted.write(answer, rows)
        return
    with _open_session() as session:
        _register_tables(session, text, table or (), tables)
        try:
            with read_in_thread(lambda: session.sql_reader(text, given)) as answer:
                wanted.write(answer, rows)
        except TableNotFound as error:
            raise _hint_at_paths(error) from error
    if wanted.path is not None and wanted.form is not Format.BOX and sys.stderr.isatty():
        print(f"wrote {wanted.path}", file=sys.stderr)


@contextmanager
def _open_session() -> "Iterator[Session]":
    from thermocline.query.session import Session

    session = Session()
    try:
        yield session
    except KeyboardInterrupt:
        raise  # the engine may still compute, and then cannot be closed
    except BaseException:
        session.close()
        raise
    session.close()


def _hint_at_paths(error: TableNotFound) -> TableNotFound:
    """Return the error with a hint for the command line if no table was found."""
    if error.facts["tables"]:
        return error
    table = error.facts["table"]
    hint = f"give its path: --table {table}=PATH, or --tables DIR"
    return TableNotFound(error.message, hint=hint, table=table, looked_in="here")


def _register_tables(session: "Session", text: str, named: Iterable[str], folder: str) -> None:
    given = {}
    for word in named:
        name, is_pair, path = word.partition("=")
        if not is_pair or not path:
            raise Invalid(
                "expected a table's name and its path",
                hint="write --table prices=/data/prices",
                got=word,
            )
        given[name] = path
    if is_lake(folder):
        lake = open_lake(folder)
        for name in lake.tables():
            table = lake.table(name)
            session.register_view(name, table.cold, table.snapshot)
    for name, path in {**_find_tables(text, folder), **given}.items():
        if path.endswith(".parquet") and os.path.isfile(path):
            session.register_parquet(name, path)
        else:
            _register_table(session, name, path)


def _register_table(session: "Session", name: str, path: str) -> None:
    opened = open_table(path)
    session.register_view(name, opened.cold, getattr(opened, "snapshot", None))


def _find_tables(text: str, folder: str) -> dict[str, str]:
    """Return the folders of tables whose names occur in the query."""
    from thermocline.format.layout import LOG_FOLDER

    try:
        names = os.listdir(folder)
    except OSError as error:
        raise Invalid(
            "the folder of tables cannot be listed",
            hint="give --tables a folder",
            path=folder,
            why=error.strerror,
        ) from error
    words = {word.lower() for word in re.findall(r"\w+", text)}
    return {
        name: os.path.join(folder, name)
        for name in names
        if name.lower() in words and os.path.isdir(os.path.join(folder, name, LOG_FOLDER))
    }


COMMANDS: CommandList = (
    (
        "sql",
        sql,
        (
            'thermocline sql "select symbol, max(close) from prices group by all"',
            'thermocline sql "select * from p as of version 3" --table p=lake/prices',
            "thermocline sql 'select * from prices where symbol = $s' --param s=NVDA",
            'thermocline sql "from prices" --output prices.parquet',
            'thermocline sql "select count(*) from prices" --url http://127.0.0.1:8428',
        ),
    ),
)
