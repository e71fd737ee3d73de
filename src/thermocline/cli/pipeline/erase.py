"""`thermocline pipeline erase`: removes a subject's rows from every table, with a certificate.

- A subject is a column and its value, not a condition on rows: a condition deletes rows without
  proof.
- Nothing is removed unless a person confirms it, or `--yes` is given; `--dry-run` only searches.
- The certificate is stored in the lake's folder and written to stdout. It contains only a hash of
  the subject.
- If the erasure is not complete, the command says why and exits with the code of a conflict.
"""

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thermocline.cli.argument import JsonOption, YesOption, expand_options
from thermocline.cli.node_address import URL, KeyFileOption, UrlOption, read_key
from thermocline.cli.pipeline.job_progress import report_record, show_task_progress
from thermocline.cli.pipeline.workspace import (
    JobTarget,
    MasterOption,
    open_runner,
)
from thermocline.cli.terminal.terminal import confirm, print_line
from thermocline.errors import Conflict, Invalid

if TYPE_CHECKING:
    from thermocline.pipeline.erase.certificate import ErasureCertificate
    from thermocline.pipeline.erase.search import TraceSearch
    from thermocline.pipeline.erase.subject import Subject

EVERY_TABLE = "_all"
_COMPARING = ("<", ">", "!", "~")


@expand_options
def erase(
    subject: Annotated[
        list[str],
        typer.Option("--subject", metavar="COLUMN=VALUE", help="The subject; once for each."),
    ],
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="NAME", help="Who requests it; default: this user."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Search, show what is found, and do nothing.")
    ] = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    master: MasterOption = None,
    *,
    target: JobTarget,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Erase a subject from every table of a tenant: hot, cold, entities and old versions."""
    from thermocline.pipeline.erase.search import check_columns_exist, search_remains
    from thermocline.pipeline.erase.subject import distinct_subjects
    from thermocline.pipeline.spark.java_gateway import spark_home

    wanted = distinct_subjects([_parse_subject(text) for text in subject])
    address, key = url or os.environ.get(URL), read_key(key_file)
    opened = open_runner(target, master, url=address, api_key=key)
    with opened as (site, runner):
        if dry_run:
            check_columns_exist(site, wanted)
            _print_traces(search_remains(site, *wanted), is_json=json)
            return
        spark_home()
        otherwise = "permanently erase the subject from every table and every version"
        if not confirm(f"This will {otherwise}. Continue?", is_yes=yes, otherwise=otherwise):
            raise Invalid("nothing was erased", hint="answer yes, or search with --dry-run first")
        certificate = _run_erasure(runner, wanted, by)
    if json:
        from thermocline.cli.terminal.output import print_json

        print_json(certificate.json())
    else:
        for line in certificate.lines():
            print_line(line)
    if not certificate.is_complete:
        hint = "see what was found; wait for readers that pin old versions, then run it again"
        raise Conflict("the erasure is not complete", hint=hint, id=certificate.certificate_id)


def _run_erasure(
    runner: Any, subjects: "tuple[Subject, ...]", by: str | None
) -> "ErasureCertificate":
    from thermocline.format.layout import Version
    from thermocline.pipeline.compact.job import merge_on_spark
    from thermocline.pipeline.erase.certificate import write_certificate
    from thermocline.pipeline.erase.job import Erasure
    from thermocline.pipeline.erase.job import erase as erase_subject
    from thermocline.pipeline.run.job import Task, TaskResult
    from thermocline.pipeline.run.runner import RequestedJob

    made: list[ErasureCertificate] = []

    def work(site: Any, spark: Any, tell: Any) -> TaskResult:
        how = Erasure(lambda *given: merge_on_spark(spark(), *given), progress=tell)
        how = how if by is None else replace(how, by=by)
        certificate = erase_subject(site, subjects, how)
        write_certificate(site, certificate)
        made.append(certificate)
        numbers = {
            "tables": len(certificate.tables),
            "rows": sum(one.rows for one in certificate.tables),
            "places_left": len(certificate.searched.found),
        }
        newest = [max(one.versions, default=0) for one in certificate.tables]
        return TaskResult(Version(max(newest, default=0)), numbers)

    task = Task("erase", EVERY_TABLE, "asked for")
    with show_task_progress() as tell:
        ran = report_record(runner.run_task(RequestedJob("erase", work), task, tell(task)))
    if ran.error is not None:
        raise ran.error
    return made[0]


def _parse_subject(text: str) -> "Subject":
    from thermocline.pipeline.erase.subject import Subject

    column, is_pair, value = text.partition("=")
    if is_pair and (column[-1:] in _COMPARING or value[:1] == "=" or column != column.strip()):
        hint = (
            "write --subject COLUMN=VALUE, once for each value; to delete rows by a condition, "
            "without a certificate, use `thermocline table delete --where`"
        )
        raise Invalid("a subject is a column and its value, not a condition", hint=hint)
    if not is_pair:
        hint = "write --subject COLUMN=VALUE, such as --subject email=ada@example.org"
        raise Invalid("expected a column and its value", hint=hint)
    return Subject(column, value)


def _print_traces(searched: "TraceSearch", *, is_json: bool) -> None:
    if is_json:
        from dataclasses import asdict

        from thermocline.cli.terminal.output import print_json

        print_json(asdict(searched))
        return
    print_line(f"searched {searched.files:,} files: {len(searched.found):,} places found")
    for one in searched.found:
        print_line(f"{one.table}  {one.path}  {one.what}  {one.rows:,}")
