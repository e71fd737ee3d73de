// SQL that the console writes. Names and values are quoted, so they may contain any character.

// The words that DuckDB reserves, or accepts as names of functions or types only.
const KEYWORDS = new Set(
  `
  all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by
  case cast check collate collation column columns concurrently constraint create cross default
  deferrable desc describe distinct do else end except false fetch for foreign freeze from full
  generated glob group having ilike in initially inner intersect into is isnull join lambda
  lateral leading left like limit map natural not notnull null offset on only or order outer
  overlaps pivot pivot_longer pivot_wider placing positional primary qualify references returning
  right select semi show similar some struct summarize symmetric table tablesample then to
  trailing true try_cast tuple union unique unpack unpivot using variadic verbose when where
  window with
  `.trim().split(/\s+/),
);

export function name(text: string): string {
  return /^[a-z_][a-z0-9_]*$/.test(text) && !KEYWORDS.has(text) ? text : `"${text.replaceAll('"', '""')}"`;
}

export function literal(value: unknown): string {
  if (value === null || value === undefined) return "null";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  return `'${String(value).replaceAll("'", "''")}'`;
}

export function isEqual(column: string, value: unknown): string {
  return value === null ? `${name(column)} is null` : `${name(column)} = ${literal(value)}`;
}

export interface Stretch {
  table: string;
  entity: Record<string, unknown>;
  start: string;
  end: string;
}

/** A query for the gaps of an entity in a stretch of time: it has no rows once they are filled. */
export function gapSql({ table, entity, start, end }: Stretch): string {
  const conditions = Object.entries(entity).map(([column, value]) => isEqual(column, value));
  const where = conditions.length ? `\nwhere ${conditions.join("\n  and ")}` : "";
  return `select *\nfrom gaps(${[table, start, end].map(literal).join(", ")})${where}`;
}

/** A command that fills a stretch of time from files, and one that shows what is still missing. */
export function backfill({ table, entity, start, end }: Stretch): string {
  const named = Object.entries(entity).map(([column, value]) => word(`${column}=${String(value)}`));
  const which = named.map((one) => ` --entity ${one}`).join("");
  const span = `--start ${word(start)} --end ${word(end)}`;
  return [
    `thermocline pipeline backfill ${word(table)} FILES --data DIR`,
    `thermocline gaps ${word(`DIR/${table}`)} ${span}${which}`,
  ].join("\n");
}

/** A word for a shell, quoted where it must be. */
export function word(text: string): string {
  return /^[\w.,:/=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** The query, with a version added to every mention of a table after FROM or JOIN. */
export function asOf(sql: string, table: string, version: number): string {
  const escaped = table.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const named = new RegExp(`\\b(from|join)(\\s+)("?)(${escaped})\\3(?![\\w".])(?!\\s+as\\s+of\\b)`, "gi");
  return sql.replace(named, `$1$2$3$4$3 as of version ${version}`);
}
