"""Compares what engines of another environment read with what we read: `make interop`.

    python tests/interop/matrix.py PYTHON [ENGINE...]

PYTHON is the interpreter of an environment with the engines. The exit code is 1 if an engine read
other values than ours without an error, or is not installed. An engine that refuses a table is
reported, and counts as right.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from interop import test_readers as cases
from interop.engines import NEWEST_ONLY
from interop.readers import comparable
from thermocline.iceberg.publish import publish
from thermocline.table import TimeSeriesTable

ENGINES = Path(__file__).parent / "engines.py"
UNLIKE = {
    ("chdb", "every type"): ["time", "timestamp"],
    ("chdb", "nested"): ["labels"],
}
"""Columns that an engine has no equal values for, which docs/iceberg.md says: not compared."""


def make_tables(folder):
    """Return the tables of the matrix by name: each published at every version that it shows."""

    def create(name):
        root = folder / name.replace(" ", "-")
        return TimeSeriesTable.create(
            root, time_column="ts", bucket="1h", entity_columns=["host"], overlap="allow"
        )

    types = create("every type")
    types.append(cases.rows(0, **cases.SHOWN))
    nested = create("nested")
    point = pa.array([{"x": n, "tags": ["t", None]} for n in range(4)], cases.POINT)
    labels = pa.array([[("k", 1)], [], None, [("l", None)]], pa.map_(pa.string(), pa.int64()))
    nested.append(cases.rows(0, at=point, labels=labels))
    return {
        "changed": cases.change(create("changed")),
        "every type": types,
        "nested": nested,
        "without ids": cases.copy_files(create("without ids"), folder),
    }


def read(python, engine, location, version, folder):
    """Return the rows that an engine reads, or the last line of its error."""
    output = folder / "rows.arrow"
    output.unlink(missing_ok=True)
    command = [python, str(ENGINES), engine, location, str(version), str(output)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, cwd=folder
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:120]
    return pa.ipc.open_file(output).read_all()


def is_equal(theirs, ours, unlike):
    """Tell whether two tables have equal rows, but for some columns."""
    same = sorted(theirs.schema.names) == sorted(ours.schema.names)
    return same and comparable(theirs.drop_columns(unlike)) == comparable(ours.drop_columns(unlike))


def main(python, engines):
    """Print a line for each engine, table and version; return the exit code."""
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="thermocline-interop-") as name:
        folder = Path(name)
        for table_name, table in make_tables(folder).items():
            done = publish(table)
            versions = [one["snapshot-id"] for one in done.metadata["snapshots"]]
            for engine in engines:
                unlike = UNLIKE.get((engine, table_name), [])
                for version in ["newest", *([] if engine in NEWEST_ONLY else versions)]:
                    found = read(python, engine, done.location, version, folder)
                    at = None if version == "newest" else version
                    if isinstance(found, str):
                        said = f"refused: {found}"
                        wrong += "ImportError" in found or "ModuleNotFoundError" in found
                    elif is_equal(found, table.to_arrow(at=at), unlike):
                        said = f"equal but for {', '.join(unlike)}" if unlike else "equal"
                    else:
                        said, wrong = "WRONG", wrong + 1
                    print(f"{engine:12} {table_name:12} {version!s:8} {said}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:] or ["duckdb", "datafusion", "chdb"]))
