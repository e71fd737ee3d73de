"""Reads what a node's table holds, as the report that a table in this process gives.

In:   a table of a node, a version or an instant
Out:  a `CoverageReport`: the same gaps, shares and pictures as beside the files

- For the newest version the parts are read one after another: rows that arrive in between may be in
  the coverage and not yet in the counts.
"""

from typing import TYPE_CHECKING, Any

from thermocline.cold.coverage_report import CoverageReport
from thermocline.cold.coverage_runs import read_coverage
from thermocline.format.bucket import decode_bucket
from thermocline.format.instant import parse_instant
from thermocline.format.layout import Version
from thermocline.format.log.action import TableSpec
from thermocline.format.log.commit_note import NoteHole
from thermocline.format.log.state import SegmentSet, TableState, Totals
from thermocline.format.schema import Schema

if TYPE_CHECKING:
    from thermocline.client.table import ClientTable


def read_held(table: "ClientTable", at: object = None) -> CoverageReport:
    """Return what a node's table holds, now or at a version or instant."""
    info = table.info(at)
    version = info["version"] if at is not None else None
    spec = TableSpec(
        "",
        info["time_column"],
        decode_bucket(info["bucket"], info["index_type"]),
        tuple(info["entity_columns"]),
        info["overlap"],
        info["timezone"],
        info["retention"],
    )
    known = list(table.schema(version))
    schema = Schema().add_columns(known) if known else Schema()
    runs = table.coverage(version)
    holes = tuple(NoteHole(**hole) for hole in _read_holes(table))
    state = TableState(
        Version(info["version"]),
        parse_instant(info["committed"]),
        spec,
        1,
        {1: schema},
        SegmentSet(),
        Totals(info["segments"], info["rows"], info["size_bytes"]),
        holes=holes,
    )
    is_verified = bool(holes) or (runs.schema.metadata or {}).get(b"verified") != b"false"
    return CoverageReport(state, read_coverage(runs, spec), is_verified)


def _read_holes(table: "ClientTable") -> list[dict[str, Any]]:
    found = table.holes()
    times = ("after", "before")
    return [
        {
            **row,
            **{name: None if row[name] is None else parse_instant(row[name]) for name in times},
        }
        for row in found.to_pylist()
    ]
