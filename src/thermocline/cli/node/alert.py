"""Commands about alerts: list rules with their states, set and remove rules, test them on the past.

- A lake is a folder that no other process writes, or the address of a node. Only a node evaluates
  rules.
- A test stores nothing and sends nothing.
"""

from typing import Annotated

import typer

from thermocline.cli.argument import CommandList, FormatOption, JsonOption
from thermocline.cli.node_address import KeyFileOption
from thermocline.cli.table.lake import LakeArgument, open_for_change, open_for_reading, print_rows
from thermocline.cli.terminal.terminal import print_line
from thermocline.errors import Invalid, NotFound

FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A TOML file with [[rules]], as in docs/alerts.md.")
]


def list_rules(
    lake: LakeArgument,
    key_file: KeyFileOption = None,
    form: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """List the rules that the lake keeps, each with its alerts that are pending or firing."""
    import pyarrow as pa

    from thermocline.alert.history import AlertHistory
    from thermocline.alert.rule_book import read_rule_book

    with open_for_reading(lake, key_file) as opened:
        rules, wrong = read_rule_book(opened)
        active, _ = AlertHistory(opened).load()
    rows = []
    for name in sorted(rules.keys() | active.keys() | wrong.keys()):
        rule, found = rules.get(name), list(active.get(name, {}).values())
        state = "wrong" if name in wrong else "inactive"
        kind = rule.kind if rule else ""
        rows += [(name, kind, one.state, one.labels, one.value) for one in found] or [
            (name, kind, state, "", None)
        ]
    columns = {
        column: pa.array([row[place] for row in rows], kind)
        for place, (column, kind) in enumerate(
            {
                "rule": pa.string(),
                "kind": pa.string(),
                "state": pa.string(),
                "labels": pa.string(),
                "value": pa.float64(),
            }.items()
        )
    }
    print_rows(pa.table(columns), form, json, name="alerts")


def set_rules(
    lake: LakeArgument,
    file: FileArgument,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Set every rule of a file; the others stay. A node evaluates them within seconds."""
    from thermocline.alert.rule import read_rules
    from thermocline.alert.rule_book import put_rule

    rules = read_rules(file)
    with open_for_change(lake, key_file) as opened:
        for rule in rules:
            put_rule(opened, rule)
    names = [rule.name for rule in rules]
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json({"rules": names})
    else:
        print_line(f"set {', '.join(names) or 'no rule'}")


def remove(
    lake: LakeArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The rule's name.")],
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Remove a rule that the lake keeps; its alerts end."""
    from thermocline.alert.rule_book import remove_rule

    with open_for_change(lake, key_file) as opened:
        remove_rule(opened, name)
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json({"removed": name})
    else:
        print_line(f"removed {name}")


def run_test(
    lake: LakeArgument,
    file: FileArgument,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="The first instant, such as 2024-06-01.")
    ],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="The last instant.")],
    name: Annotated[
        str | None,
        typer.Option("--rule", metavar="NAME", help="Which rule, if the file has several."),
    ] = None,
    key_file: KeyFileOption = None,
    form: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """Run a rule over the past, and print when its alerts would have changed their state."""
    import pyarrow as pa

    from thermocline.alert.backtest import run_over
    from thermocline.alert.evaluate import ask_lake
    from thermocline.alert.rule import read_rules
    from thermocline.format.instant import format_instant, to_instant

    rules = {rule.name: rule for rule in read_rules(file)}
    if name is None and len(rules) != 1:
        raise Invalid("the file has several rules, or none", hint="choose one with --rule")
    rule = rules.get(name or next(iter(rules)))
    if rule is None:
        raise NotFound("the file has no rule of this name", hint="check --rule", rule=name)
    with open_for_reading(lake, key_file) as opened:
        found = list(run_over(opened, rule, to_instant(start), to_instant(end), ask_lake(opened)))
    rows = pa.table(
        {
            "at": pa.array([format_instant(one.at_ns) for one in found], pa.string()),
            "state": pa.array([one.state for one in found], pa.string()),
            "labels": pa.array([one.labels for one in found], pa.string()),
            "value": pa.array([one.value for one in found], pa.float64()),
        }
    )
    print_rows(rows, form, json, name="changes")


COMMANDS: CommandList = (
    ("list", list_rules, ("thermocline alert list lake",)),
    ("set", set_rules, ("thermocline alert set lake rules.toml",)),
    ("remove", remove, ("thermocline alert remove lake errors",)),
    (
        "test",
        run_test,
        ("thermocline alert test lake rules.toml --from 2024-06-01 --to 2024-06-02",),
    ),
)
