"""The command as a whole: quick to start, helpful, and never a traceback."""

import resource
import subprocess
import sys

import typer

from thermocline.cli.main import app

START_CPU_S_MAX = 0.4


def leaves(command=None, path=("thermocline",)):
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from leaves(inner, (*path, name))


def cpu_s_of(shell, *words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shell.ok(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_version_and_the_help_cost_little(shell):
    for words in (("--version",), ("--help",)):
        assert min(cpu_s_of(shell, *words) for _ in range(3)) < START_CPU_S_MAX


def test_help_loads_neither_arrow_nor_the_engine(shell):
    code = (
        "import sys; from thermocline.cli.main import run; run(['table', 'append', '--help']); "
        "print([m for m in ('pyarrow', 'duckdb', 'numpy', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_the_packages(shell):
    import thermocline

    assert shell.ok("--version").out == f"thermocline {thermocline.__version__}\n"


def test_every_command_has_a_help_and_an_example_of_itself():
    found = list(leaves())
    assert len(found) >= 18
    for path, command in found:
        assert command.help, path
        assert " ".join(path) in command.epilog, path


def test_every_option_and_argument_says_what_it_is():
    for path, command in leaves():
        for parameter in command.params:
            assert parameter.help, (path, parameter.name)


def test_without_a_command_the_help_is_shown(shell):
    ran = shell.run()
    assert ran.code == 2
    assert "Commands:" in ran.err
    assert "gaps" in ran.err


def test_a_command_that_does_not_exist_is_three_lines_and_names_the_nearest(shell):
    ran = shell.run("gapz", "prices")
    assert ran.code == 2
    assert "Did you mean 'gaps'" in ran.told()[0]
    assert ran.out == ""


def test_an_unknown_option_is_three_lines_with_the_usage(shell):
    ran = shell.run("table", "append", "--frobnicate")
    assert ran.code == 2
    what, why, do = ran.told()
    assert "--frobnicate" in what
    assert "thermocline table append" in why
    assert "thermocline table append --help" in do


def test_a_usage_error_is_json_when_json_is_asked_for(shell):
    ran = shell.run("table", "info", "--json")
    assert ran.code == 2
    assert ran.error()["code"] == "invalid"
    assert "TABLE" in ran.error()["message"]
    assert ran.error()["exit_code"] == 2


BUG = """
import sys
from thermocline.cli import main
main.app.command("boom")(lambda: 1 / 0)
sys.exit(main.run(sys.argv[1:]))
"""


def run_bug(*words):
    return subprocess.run(
        [sys.executable, "-c", BUG, "boom", *words], capture_output=True, text=True, check=False
    )


def test_a_bug_is_one_line_and_how_to_see_more():
    done = run_bug()
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert "ZeroDivisionError: division by zero" in first
    assert "--debug" in second


def test_debug_shows_the_traceback_of_a_bug():
    done = run_bug("--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_debug_shows_the_traceback_of_an_error_and_then_its_three_lines(shell):
    ran = shell.run("table", "info", "nowhere", "--debug")
    assert ran.code == 3
    assert "Traceback" in ran.err
    assert ran.err.splitlines()[-3].startswith("error: ")


def test_a_closed_stdout_or_stderr_is_no_reason_for_a_traceback(market):
    for redirection, code in (("gaps prices >&-", 0), ("gaps nowhere 2>&-", 3)):
        line = f"{sys.executable} -m thermocline.cli.main {redirection}"
        done = subprocess.run(
            ["sh", "-c", line], cwd=market.folder, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_no_command_loads_pandas_and_none_is_kept_from_who_calls_run(market):
    code = """
import sys
from thermocline.cli.main import run
sys.argv = ["thermocline", "gaps", "prices"]
is_own_process = sys.stdin.read() == "own"
assert run(None if is_own_process else sys.argv[1:]) == 0
import pyarrow
assert ("pandas" in sys.modules) != is_own_process
if not is_own_process:
    pyarrow.table({"a": [1]}).to_pandas()
"""
    for word in ("own", "embedded"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=market.folder,
            input=word,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), word
