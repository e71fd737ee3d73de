"""Export of changed entities: one shared snapshot on Spark, against Spark's own JDBC reader.

    python bench/export.py --quick          10,000 entities
    python bench/export.py                  1,000,000 entities

Both read the same changed rows from one PostgreSQL with the same session and the same number of
connections. Ours makes them a version: segments by key, deletion vectors, a commit, and the changes
retired. JDBC only writes the rows as zstd Parquet, from as many snapshots as connections; it is
the floor of what moving them costs. Its driver comes from Maven Central, with `mvn`, for this bench
alone; without it ours is measured alone.
"""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import measure
import thermocline as tc
from thermocline.config import LakeSettings
from thermocline.hot.postgres.schema.migrate import open_tenant
from thermocline.hot.postgres.server.cluster import open_server, stop_server
from thermocline.hot.postgres.session.pool import Pool
from thermocline.pipeline.export import ExportJob, ExportLimits
from thermocline.pipeline.run.job import Task, ignore_progress
from thermocline.pipeline.run.workspace import JobWorkspace
from thermocline.pipeline.spark.session import session, stop

DRIVER = "org.postgresql:postgresql:42.7.4"
CONNECTIONS = 4
ENTITY = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "x-hot": True},
        "quantity": {"type": "integer", "x-hot": True},
        "price": {"type": "string", "x-type": "decimal(18,2)"},
        "weight": {"type": "number"},
        "note": {"type": "string"},
        "city": {"type": "string"},
    },
    "required": ["status"],
}
FILL = """
insert into e_1 (id, ver, schema_version, written_at, rest, h_1, h_2)
select 'o' || lpad(n::text, 9, '0'), 1, 1, now(),
       jsonb_build_object('price', (n % 1000) || '.50', 'weight', n / 7.0, 'note', md5(n::text),
                          'city', 'city ' || n % 500),
       case n % 3 when 0 then 'open' when 1 then 'paid' else 'sent' end, n % 100
from generate_series(1, {count}) as n;
insert into change (type_id, id, ver, op) select 1, id, 1, 'u' from e_1;
"""


def driver_jar(folder: Path) -> str | None:
    """Return the JDBC driver, fetched with Maven; None where that cannot be done."""
    if shutil.which("mvn") is None:
        return None
    copy = ["mvn", "-q", "dependency:copy", f"-Dartifact={DRIVER}", f"-DoutputDirectory={folder}"]
    done = subprocess.run(copy, check=False, capture_output=True)
    found = list(folder.glob("postgresql-*.jar"))
    return str(found[0]) if done.returncode == 0 and found else None


def fill(dsn: str, count: int) -> None:
    """Change so many entities, without the way through the API."""
    pool = Pool(dsn)
    tenant = open_tenant(pool, "default")
    with pool.transaction(tenant, limit_s=600) as connection:
        connection.execute("set local statement_timeout = 0")
        connection.execute("truncate e_1, change")
        connection.execute(FILL.format(count=count))
        connection.execute("analyze e_1; analyze change")
    pool.close()


def ours(spark, folder: Path, dsn: str, count: int) -> float:
    """Export all of them; return the seconds it took."""
    with JobWorkspace(folder, settings=LakeSettings(postgres=dsn, export_age_s=86_400)) as site:
        job = ExportJob(ExportLimits(part_keys=1, connections_max=CONNECTIONS))
        began_s = time.perf_counter()
        done = job.run(site, Task("export", "orders", "bench"), lambda: spark, ignore_progress)
        took_s = time.perf_counter() - began_s
    assert done.numbers["rows"] == count
    return took_s


def jdbc(spark, target: Path, server, count: int) -> float:
    """Read the same rows over JDBC and write them as Parquet; return the seconds it took."""
    from psycopg import conninfo

    parts = conninfo.conninfo_to_dict(server.owner_dsn)
    database = conninfo.conninfo_to_dict(server.dsn)["dbname"]
    reader = spark.read.format("jdbc").options(
        url=f"jdbc:postgresql://{parts['host']}:{parts['port']}/{database}",
        user=parts["user"],
        password=parts["password"],
        driver="org.postgresql.Driver",
        dbtable=(
            "(select e.*, e.rest::text as rest_text, right(e.id, 9)::int as place from "
            "tc_default.e_1 e where id in (select id from tc_default.change)) as changed"
        ),
        partitionColumn="place",
        lowerBound="1",
        upperBound=str(count),
        numPartitions=str(CONNECTIONS),
        fetchsize="10000",
    )
    began_s = time.perf_counter()
    reader.load().drop("rest").write.parquet(str(target))
    return time.perf_counter() - began_s


def main() -> None:
    """Run the bench and write its section."""
    parser = measure.options(__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, help="how many entities")
    given = parser.parse_args()
    count = given.count or (10_000 if given.quick else 1_000_000)
    folder = Path(tempfile.mkdtemp(prefix="thermocline-bench-export-"))
    folder.chmod(0o711)
    jar = driver_jar(folder)
    server = open_server(folder=str(folder / "server"))
    spark = session(f"local[{CONNECTIONS}]", settings={"spark.jars": jar} if jar else {})
    try:
        with tc.connect(folder / "lake", postgres=server.dsn, export_age_s=86_400) as lake:
            lake.register("orders", ENTITY)
        fill(server.dsn, 1_000)
        ours(spark, folder / "lake", server.dsn, 1_000)  # warm, both ways
        if jar:
            jdbc(spark, folder / "warm", server, 1_000)
        fill(server.dsn, count)
        with measure.Noise(folder) as noise:
            floor_s = jdbc(spark, folder / "rows", server, count) if jar else None
            took_s = ours(spark, folder / "lake", server.dsn, count)
    finally:
        version = spark.version
        stop(spark)
        stop_server(str(folder / "server"), mode="immediate")
        shutil.rmtree(folder, ignore_errors=True)
    lines = ["## Export", "", measure.provenance("export.py", {"pyspark": version}), ""]
    lines += [noise.line(), ""]
    lines += [f"{count:,} changed entities, {CONNECTIONS} connections.", ""]
    lines += ["| way | seconds | entities/s |", "|---|---|---|"]
    lines.append(f"| export: one snapshot, one commit | {took_s:.1f} | {count / took_s:,.0f} |")
    if floor_s is not None:
        lines.append(f"| Spark JDBC to Parquet, torn | {floor_s:.1f} | {count / floor_s:,.0f} |")
        lines.append(f"| export / JDBC | {took_s / floor_s:.2f} | |")
    text = "\n".join(lines)
    print(text)
    measure.write_section(given.results, "export", text)


if __name__ == "__main__":
    main()
