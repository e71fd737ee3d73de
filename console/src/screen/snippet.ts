// Snippets that query a table from other programs.
import { literal, name } from "./sql";
import type { TableInfo } from "./shape";

export function snippets(table: TableInfo, origin: string): Record<string, string> {
  const sql = `select * from ${name(table.name)} limit 10`;
  const host = new URL(origin).hostname;
  return {
    Python: [
      "from thermocline.client import Client",
      "",
      `lake = Client(${quoted(origin)}, api_key="tck_...")`,
      `rows = lake.sql(${quoted(sql)})          # an Arrow table`,
      `gaps = lake.table(${quoted(table.name)}).gaps()`,
    ].join("\n"),
    curl: [
      `curl ${origin}/api/v1/query \\`,
      `  -H 'Authorization: Bearer tck_...' \\`,
      `  -H 'Content-Type: application/json' \\`,
      `  -d ${shell(JSON.stringify({ sql, format: "csv" }))}`,
    ].join("\n"),
    Spark: [
      `table = ${quoted(`DIR/${table.name}`)}          # DIR is the node's data folder`,
      `rows = spark.read.format("thermocline").option("hot", "true").load(table)`,
      `then = spark.read.format("thermocline").option("asOf", ${table.version}).load(table)`,
    ].join("\n"),
    OTel: [
      `export OTEL_EXPORTER_OTLP_ENDPOINT=http://${host}:4318`,
      `export OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20tck_..."`,
      "# the node creates the tables of metrics, logs and traces with the first rows;",
      `# query them here: select * from otel_logs where service_name = ${literal("shop")}`,
    ].join("\n"),
  };
}

function quoted(text: string): string {
  return JSON.stringify(text);
}

function shell(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
