// The past queries, newest first. They stay in this browser.

export interface Past {
  sql: string;
  at: string;
  seconds: number;
  rows: number | null;
}

const NAME = "thermocline.queries";
const KEPT_MAX = 100;
const CHARACTERS_MAX = 20_000;

export function past(): Past[] {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(NAME) ?? "[]");
    return Array.isArray(found) ? (found as Past[]) : [];
  } catch {
    return []; // another page wrote there
  }
}

/** Remember a query; the same one again moves to the front. */
export function remember(one: Omit<Past, "at">): void {
  if (one.sql.length > CHARACTERS_MAX) return;
  const others = past().filter((other) => other.sql !== one.sql);
  const kept = [{ ...one, at: new Date().toISOString() }, ...others].slice(0, KEPT_MAX);
  try {
    localStorage.setItem(NAME, JSON.stringify(kept));
  } catch {
    localStorage.removeItem(NAME); // the storage is full: the list must not make a query fail
  }
}

export function forgetAll(): void {
  localStorage.removeItem(NAME);
}
