// The types of the node's answers that the screens read; /api/v1/openapi.json describes all.

export interface TableBrief {
  name: string;
  version: number;
  rows: number;
  hot_rows: number;
  time_column: string;
  bucket: string;
}

export interface TableInfo {
  name: string;
  version: number;
  committed: string;
  rows: number;
  hot_rows: number;
  segments: number;
  size_bytes: number;
  start: string | null;
  end: string | null;
  buckets: number;
  buckets_held: number;
  ratio: number;
  time_column: string;
  bucket: string;
  entity_columns: string[];
  entities: number;
  overlap: string;
  retention: string | null;
  timezone: string | null;
  columns: { name: string; type: string; nullable: boolean }[];
}

export interface Rows<Row> {
  columns: { name: string; type: string }[];
  rows: Row[];
  row_count: number;
  is_truncated: boolean;
}

export interface Lane {
  entity: Record<string, unknown>;
  held: number[];
  unflushed: number[];
  buckets_held: number;
}

export interface Blocks {
  version: number;
  bucket: string;
  bucket_s: number;
  start: string | null;
  end: string | null;
  buckets: number;
  blocks: number;
  entities: number;
  is_verified: boolean;
  lanes: Lane[];
}

export interface Step {
  version: number;
  operation: string;
  at: string;
}

export interface TableFreshness {
  table: string;
  hot_rows: number;
  cold_rows: number;
  hot_s: number | null;
  newest: string | null;
  newest_cold: string | null;
  version: number;
  committed: string;
  flushed: Step | null;
  compacted: Step | null;
}

export interface Freshness {
  as_of: string;
  sync: string;
  tables: TableFreshness[];
}

export interface Commit {
  version: number;
  time: string;
  operation: string;
  segments_added: number;
  segments_removed: number;
  rows_added: number;
  rows_removed: number;
  txn_id: string | null;
}

export interface Diff {
  old: number;
  new: number;
  added: string[];
  removed: string[];
  changed: string[];
  rows: number;
  size_bytes: number;
  columns: string[];
  buckets_gained: number;
  buckets_lost: number;
}

export interface Entity {
  id: string;
  ver: number;
  schema_version: number;
  written_at: string;
  document: Record<string, unknown>;
}

export interface Contract {
  type: string;
  version: number;
  mode: string;
  document: Record<string, unknown>;
  columns: { id: number; name: string; type: string; is_hot: boolean }[];
}

export interface Revision {
  ver: number | null;
  document: Record<string, unknown> | null;
  at: string;
  version: number | null;
}

export interface KeyInfo {
  key_id: string;
  tenant: string;
  scopes: string[];
  state: "valid" | "expired" | "revoked";
  note: string;
  created: string;
  expires: string | null;
  revoked: string | null;
  last_used: string | null;
}

export interface JobRun {
  started_at: string;
  job: string;
  table: string;
  state: string;
  took_ms: number;
  version: number | null;
  numbers: Record<string, number>;
  error_code: string | null;
  error_message: string | null;
  master: string | null;
}

export interface Jobs {
  runs: JobRun[];
  flushes: { table: string; hot_rows: number; hot_bytes: number; hot_s: number | null }[];
  flush_error: { detail: string; hint?: string } | null;
  hot_bytes: number;
  hot_bytes_max: number;
  notes: string[];
}

export interface RunningQuery {
  query_id: string;
  state: string;
  seconds: number;
}
