// The one query of this tab: it can be started, watched and cancelled, and outlives its screen.
import { useEffect, useState } from "preact/hooks";
import { Problem, asked, fetched, isAbort, part, problemOf } from "../api";
import type { Rows } from "./arrow";
import { remember } from "./past";

export const ROWS_FIRST = 100_000;
export const ANSWER_BYTES_MAX = 512_000_000;
const SHOWN_MS = 120;

export interface TableRead {
  version: number;
  as_of: string;
  hot_rows: number;
  cold_rows: number;
  files: number;
  files_pruned: number;
  warning: string;
}

export interface Outcome {
  sql: string;
  rows: Rows;
  tables: Record<string, TableRead>;
  seconds: number;
  bytes: number;
  isTruncated: boolean;
}

export type RunState =
  | { kind: "idle" }
  | { kind: "running"; since: number; bytes: number }
  | { kind: "done"; outcome: Outcome }
  | { kind: "failed"; problem: Problem; sql: string }
  | { kind: "cancelled"; seconds: number };

let state: RunState = { kind: "idle" };
let current: { queryId: string; stop: AbortController; since: number } | null = null;
let asking = "";
const listeners = new Set<() => void>();

function put(next: RunState): void {
  state = next;
  for (const listener of listeners) listener();
}

export function runState(): RunState {
  return state;
}

/** The query that was started last, even if it failed. */
export function lastSql(): string {
  return asking;
}

export function useRun(): RunState {
  const [held, hold] = useState(state);
  useEffect(() => {
    const look = () => hold(state);
    listeners.add(look);
    look();
    return () => void listeners.delete(look);
  }, []);
  return held;
}

/** An id for a query. `crypto.randomUUID` does not exist without TLS. */
export function newQueryId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `console-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Run a query; cancels a running one first. */
export async function run(sql: string, isWhole: boolean): Promise<void> {
  asking = sql;
  if (current) await cancel();
  const mine = { queryId: newQueryId(), stop: new AbortController(), since: performance.now() };
  current = mine;
  put({ kind: "running", since: mine.since, bytes: 0 });
  try {
    const outcome = await answered(sql, isWhole, mine);
    if (current !== mine) return;
    put({ kind: "done", outcome });
    remember({ sql, seconds: outcome.seconds, rows: outcome.rows.count });
  } catch (error) {
    if (current !== mine || isAbort(error)) return;
    put({ kind: "failed", problem: problemOf(error), sql });
    remember({ sql, seconds: passed(mine.since), rows: null });
  } finally {
    if (current === mine) current = null;
  }
}

/** Cancel the running query: at the node first, then here. */
export async function cancel(): Promise<void> {
  const mine = current;
  if (!mine) return;
  current = null;
  put({ kind: "cancelled", seconds: passed(mine.since) });
  try {
    await asked(`queries/${part(mine.queryId)}`, { method: "DELETE" });
  } catch {
    // The query had ended already, or the node is gone: either way no query runs for this tab.
  }
  mine.stop.abort();
}

function passed(since: number): number {
  return (performance.now() - since) / 1000;
}

async function answered(
  sql: string,
  isWhole: boolean,
  mine: NonNullable<typeof current>,
): Promise<Outcome> {
  const decoder = import("./arrow");
  const response = await fetched("query", {
    body: {
      sql,
      format: "arrow",
      query_id: mine.queryId,
      ...(isWhole ? {} : { rows_max: ROWS_FIRST }),
    },
    signal: mine.stop.signal,
  });
  const data = await collected(response, mine);
  const { decoded } = await decoder;
  const report = JSON.parse(response.headers.get("X-Thermocline-Report") ?? "{}") as {
    tables?: Record<string, TableRead>;
  };
  return {
    sql,
    rows: decoded(data),
    tables: report.tables ?? {},
    seconds: passed(mine.since),
    bytes: data.length,
    isTruncated: response.headers.get("X-Thermocline-Truncated") === "true",
  };
}

/** Read a body to its end and report the progress; a truncated answer is an error. */
async function collected(
  response: Response,
  mine: NonNullable<typeof current>,
): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  let shown = 0;
  const reader = response.body?.getReader();
  if (!reader) return new Uint8Array();
  for (;;) {
    const next = await reader.read().catch((error: unknown) => cut(error, mine.queryId));
    if (next.done) break;
    parts.push(next.value);
    bytes += next.value.length;
    if (bytes > ANSWER_BYTES_MAX) {
      await reader.cancel();
      throw tooLarge();
    }
    if (performance.now() - shown > SHOWN_MS && current === mine) {
      shown = performance.now();
      put({ kind: "running", since: mine.since, bytes });
    }
  }
  return joined(parts, bytes);
}

async function cut(error: unknown, queryId: string): Promise<never> {
  if (isAbort(error)) throw error;
  // The status was sent before the failure, so ask the node why the query ended.
  const state = await asked<{ error: { detail: string } | null }>(`queries/${part(queryId)}`);
  if (state.error) throw new Problem(state.error as ConstructorParameters<typeof Problem>[0]);
  throw new Problem({ status: 0, detail: "the answer ended too early", code: "cut" });
}

function joined(parts: Uint8Array[], bytes: number): Uint8Array {
  const whole = new Uint8Array(bytes);
  let offset = 0;
  for (const one of parts) {
    whole.set(one, offset);
    offset += one.length;
  }
  return whole;
}

function tooLarge(): Problem {
  return new Problem({
    status: 0,
    code: "too_large",
    detail: "the answer is too large to show",
    hint: "select fewer rows or columns, or download the answer",
    facts: { bytes_max: ANSWER_BYTES_MAX },
  });
}
