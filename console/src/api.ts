// Requests to the node's API. Every failure is a `Problem`.
import { key } from "./key";
import type { Params } from "./route";

export interface ProblemDocument {
  status: number;
  detail: string;
  code: string;
  hint?: string;
  facts?: Record<string, unknown>;
  request_id?: string;
}

/** An error that the node answered, or status 0 if the node could not be reached. */
export class Problem extends Error {
  status: number;
  code: string;
  hint: string;
  facts: Record<string, unknown>;
  requestId: string;

  constructor(document: ProblemDocument) {
    super(document.detail);
    this.status = document.status;
    this.code = document.code;
    this.hint = document.hint ?? "";
    this.facts = document.facts ?? {};
    this.requestId = document.request_id ?? "";
  }
}

export interface Asking {
  method?: string;
  params?: Params;
  body?: unknown;
  signal?: AbortSignal;
}

/** Send a request and return the response, with any kind of body; throws `Problem` for an error. */
export async function fetched(path: string, asking: Asking = {}): Promise<Response> {
  const kept = Object.entries(asking.params ?? {}).filter(([, value]) => value !== "");
  const search = new URLSearchParams(kept).toString();
  const headers: Record<string, string> = {};
  if (key()) headers["Authorization"] = `Bearer ${key()}`;
  if (asking.body !== undefined) headers["Content-Type"] = "application/json";
  const response = await reached(`api/v1/${path}${search ? `?${search}` : ""}`, {
    method: asking.method ?? (asking.body === undefined ? "GET" : "POST"),
    headers,
    body: asking.body === undefined ? null : JSON.stringify(asking.body),
    signal: asking.signal ?? null,
    cache: "no-store",
    credentials: "omit",
  });
  if (!response.ok) throw await problemIn(response);
  return response;
}

/** Send a request and return the JSON of the response. */
export async function asked<Answer>(path: string, asking: Asking = {}): Promise<Answer> {
  const response = await fetched(path, asking);
  if (response.status === 204) return undefined as Answer;
  return parsedExactly(await response.text()) as Answer;
}

/** The value of a JSON text; a number that a double would round keeps its digits. */
export function parsedExactly(text: string): unknown {
  return JSON.parse(text, exactly as Reviver);
}

type Reviver = (key: string, value: unknown) => unknown;

const RAW = JSON as unknown as { rawJSON?: (text: string) => unknown };
const DIGITS_KEPT = 15;

/** A number that a double would round stays text, and is sent as that text. */
function exactly(_: string, value: unknown, context?: { source?: string }): unknown {
  const source = context?.source;
  if (typeof value !== "number" || !source || !RAW.rawJSON) return value;
  const digits = source.replace(/e.*$/i, "").replace(/[-.]/g, "").replace(/^0+/, "");
  const isKept = digits.length <= DIGITS_KEPT || String(value) === source;
  return isKept ? value : RAW.rawJSON(source);
}

async function reached(address: string, how: RequestInit): Promise<Response> {
  try {
    return await fetch(address, how);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    const hint = "check that it runs and that this machine can reach it";
    throw new Problem({ status: 0, detail: "the node does not answer", code: "unreachable", hint });
  }
}

async function problemIn(response: Response): Promise<Problem> {
  try {
    const document = (await response.json()) as ProblemDocument & { error?: string; errorType?: string };
    if (document.error === undefined) return new Problem(document);
    // The routes of Prometheus answer errors in its form.
    return new Problem({ status: response.status, detail: document.error, code: document.errorType ?? "" });
  } catch {
    const detail = "the answer did not come from a Thermocline node";
    return new Problem({ status: response.status, detail, code: "unknown" });
  }
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Any thrown value as a problem that can be shown. */
export function problemOf(error: unknown): Problem {
  if (error instanceof Problem) return error;
  const detail = error instanceof Error ? error.message : String(error);
  return new Problem({ status: 0, detail, code: "internal" });
}

/** Quote one part of a path: names may contain any character. */
export const part = encodeURIComponent;
