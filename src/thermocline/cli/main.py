"""`thermocline`: assembles the commands, and reports a failed one.

In:   the words of a command line
Out:  an exit code; answers on stdout, everything else on stderr

- The command that needs a heavy library imports it: `--help` and `--version` are fast.
- No command ends with a traceback, unless `--debug` is given.
"""

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from typing import Annotated, Any, NoReturn

import typer

from thermocline import __version__
from thermocline.cli import context, demo, mcp, sql
from thermocline.cli.argument import examples
from thermocline.cli.entity import entity, schema
from thermocline.cli.node import alert, backup, doctor, journal, key, serve, status, tenant
from thermocline.cli.pipeline import pipeline, worker
from thermocline.cli.table import column, coverage, info, lake, maintenance, tail, write
from thermocline.cli.table.target import offer_nodes
from thermocline.cli.terminal.report_error import (
    EXIT_BUG,
    EXIT_INTERRUPTED,
    EXIT_PIPE_CLOSED,
    Failure,
    describe_failure,
    describe_usage_failure,
)
from thermocline.errors import ThermoclineError, Unsupported
from thermocline.extras import extra_with, install_command

NAME = "thermocline"
_EXIT_HELP = 2
_ENGINE = "_duckdb"
_WITH_SPARK = frozenset({"pipeline", "worker"})

_SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["--help", "-h"]},
}
_GROUP: dict[str, Any] = {**_SETTINGS, "add_completion": False}
app = typer.Typer(**_SETTINGS)
table_app = typer.Typer(**_GROUP, help="Create, fill, show and maintain tables.")
lake_app = typer.Typer(
    **_GROUP, help="Create a lake; list, rename, copy, drop and bring back its tables."
)
context_app = typer.Typer(**_GROUP, help="Save nodes under names, and say which one commands use.")
column_app = typer.Typer(**_GROUP, help="List, add, rename and widen columns.")
journal_app = typer.Typer(**_GROUP, help="Inspect and repair the journal of a lake.")
entity_app = typer.Typer(**_GROUP, help="Write, read and export entities.")
schema_app = typer.Typer(**_GROUP, help="Register, compare and infer the contracts of entities.")
key_app = typer.Typer(**_GROUP, help="Create, list and revoke the keys of a node.")
pipeline_app = typer.Typer(**_GROUP, help="Run the jobs of a lake on Spark, and list them.")
alert_app = typer.Typer(**_GROUP, help="List, set, remove and test rules of alerts.")
tenant_app = typer.Typer(**_GROUP, help="Create and list the tenants of a node.")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"{NAME} {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Works anywhere.")
    ] = False,
) -> None:
    """Tables that know which stretches of time they hold."""


app.add_typer(table_app, name="table")
app.add_typer(lake_app, name="lake")
app.add_typer(journal_app, name="journal")
app.add_typer(context_app, name="context")
app.add_typer(entity_app, name="entity")
app.add_typer(schema_app, name="schema")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(key_app, name="key")
app.add_typer(tenant_app, name="tenant")
app.add_typer(alert_app, name="alert")
table_app.add_typer(column_app, name="columns")
for _group, _commands in (
    (app, demo.COMMANDS),
    (app, offer_nodes(coverage.COMMANDS)),
    (app, offer_nodes(sql.COMMANDS)),
    (app, tail.COMMANDS),
    (context_app, context.COMMANDS),
    (app, mcp.COMMANDS),
    (app, serve.COMMANDS),
    (app, status.COMMANDS),
    (app, doctor.COMMANDS),
    (app, backup.COMMANDS),
    (app, worker.COMMANDS),
    (pipeline_app, pipeline.COMMANDS),
    (entity_app, entity.COMMANDS),
    (schema_app, schema.COMMANDS),
    (key_app, key.COMMANDS),
    (tenant_app, tenant.COMMANDS),
    (alert_app, alert.COMMANDS),
    (lake_app, lake.COMMANDS),
    (table_app, offer_nodes(write.COMMANDS)),
    (table_app, offer_nodes(info.COMMANDS)),
    (table_app, offer_nodes(write.CHANGE_COMMANDS)),
    (table_app, offer_nodes(maintenance.NODE_COMMANDS)),
    (table_app, maintenance.COMMANDS),
    (column_app, offer_nodes(column.NODE_COMMANDS)),
    (column_app, column.COMMANDS),
    (journal_app, journal.COMMANDS),
):
    for _name, _function, _lines in _commands:
        _group.command(_name, epilog=examples(*_lines))(_function)


class _WithoutPandas(MetaPathFinder):
    """Prevents the import of pandas in a process that runs only our command.

    pyarrow imports pandas, if it is installed, with the first array. Only commands that run Spark
    need it, and the import was 0.33 of the 1.1 seconds that `gaps` took.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors are reported on stderr.

    Without `arguments` this runs the command line of this process, and may end the process.
    """
    if arguments is not None:
        return _run(list(arguments))
    if not _WITH_SPARK.intersection(sys.argv):
        sys.meta_path.insert(0, _WithoutPandas())
    code = _run(sys.argv[1:])
    if _ENGINE in sys.modules:
        _end_process(code)
    return code


def _end_process(code: int) -> NoReturn:
    """Run the exit functions, flush the output, and end the process without finalization.

    The engine's binding counts its objects when the interpreter is finalized. It would write lines
    about objects that an error's traceback still references, below the error's own lines.
    """
    with suppress(Exception):
        atexit._run_exitfuncs()  # noqa: SLF001  open nodes are closed here
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(words: list[str]) -> int:
    is_debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    _prepare_streams()
    try:
        code = _invoke(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _exit_interrupted()
    except BrokenPipeError:
        return _handle_closed_pipe()
    except ThermoclineError as error:
        return _print_failure(describe_failure(error), error, words, is_debug=is_debug)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return _EXIT_HELP
        return _print_failure(_describe_misuse(error), error, words, is_debug=is_debug)
    except ImportError as error:
        extra = extra_with(error.name or "")
        if extra is None:
            return _print_bug(error, is_debug=is_debug)
        missing = Unsupported(
            "this command needs a package that is not installed",
            hint=install_command(extra),
            package=error.name,
        )
        return _print_failure(describe_failure(missing), error, words, is_debug=is_debug)
    except Exception as error:  # noqa: BLE001  # the last place that can report the error
        return _print_bug(error, is_debug=is_debug)
    return code


def _prepare_streams() -> None:
    """Make sure that every text can be written: an encoding never causes a traceback."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _invoke(words: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        code = command.main(words, prog_name=NAME, standalone_mode=False)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None
        raise
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _describe_misuse(error: typer.TyperException) -> Failure:
    context = getattr(error, "ctx", None)
    usage = context.get_usage() if context is not None else ""
    path = context.command_path if context is not None else NAME
    return describe_usage_failure(error.format_message(), usage, path)


def _print_failure(failure: Failure, error: Exception, words: list[str], *, is_debug: bool) -> int:
    if is_debug:
        traceback.print_exception(error)
    if "--json" in words:
        sys.stderr.write(failure.json().decode())
        return failure.exit_code
    what, why, do = failure.lines()
    if not sys.stderr.isatty():
        print(what, why, do, sep="\n", file=sys.stderr)
        return failure.exit_code
    from rich.table import Table
    from rich.text import Text

    from thermocline.cli.terminal.terminal import message_console

    grid = Table.grid(padding=(0, 1, 0, 0))
    for line, style in ((what, "bold red"), (why, "dim"), (do, "bold")):
        label, _, rest = line.partition(": ")
        grid.add_row(Text(f"{label}:", style=style), Text(rest))
    message_console().print(grid)
    return failure.exit_code


def _print_bug(error: Exception, *, is_debug: bool) -> int:
    if is_debug:
        traceback.print_exception(error)
        return EXIT_BUG
    text = " ".join(f"{type(error).__name__}: {error}".split())
    print(f"error: this is a bug in thermocline: {text}", file=sys.stderr)
    print("   do: run it again with --debug and report the traceback", file=sys.stderr)
    return EXIT_BUG


def _exit_interrupted() -> int:
    if threading.active_count() > 1:
        # The engine computes in another thread and cannot be stopped; a normal exit would wait.
        os._exit(EXIT_INTERRUPTED)
    return EXIT_INTERRUPTED


def _handle_closed_pipe() -> int:
    # The interpreter flushes stdout when it exits, and would report the closed pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE_CLOSED


if __name__ == "__main__":
    sys.exit(run())
