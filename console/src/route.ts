// Where the user is: a screen, what of it, and its settings, all in the address after `#`.
// The part after `#` is never sent to a server, so a query in a link is in nobody's log.
import { useEffect, useState } from "preact/hooks";

export type Params = Record<string, string>;

export interface Place {
  screen: string;
  parts: string[];
  params: Params;
}

const remembered = new Map<string, string>();
const listeners = new Set<() => void>();

export function parsePlace(hash: string): Place {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [screen = "", ...parts] = path.split("/").map(decoded);
  return { screen: screen || "query", parts: parts.filter(Boolean), params: parsed(search) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a link that somebody cut in the middle
  }
}

function parsed(search: string): Params {
  return Object.fromEntries(new URLSearchParams(search));
}

export function addressOf(screen: string, parts: string[] = [], params: Params = {}): string {
  const path = [screen, ...parts].map(encodeURIComponent).join("/");
  const kept = Object.entries(params).filter(([, value]) => value !== "");
  const search = new URLSearchParams(kept).toString();
  return `#/${path}${search ? `?${search}` : ""}`;
}

export function here(): Place {
  return parsePlace(location.hash);
}

/** Go somewhere; `replace` where the way back should not lead here. */
export function go(address: string, how: "push" | "replace" = "push"): void {
  if (address === location.hash) return;
  history[how === "push" ? "pushState" : "replaceState"](null, "", address);
  moved();
}

/** Change settings of the present screen, without a step in the history. */
export function change(params: Params, how: "push" | "replace" = "replace"): void {
  const place = here();
  go(addressOf(place.screen, place.parts, { ...place.params, ...params }), how);
}

/** The address that a screen was left at, so that its tab leads back to it. */
export function lastAddress(screen: string): string {
  return remembered.get(screen) ?? addressOf(screen);
}

function moved(): void {
  remembered.set(here().screen, location.hash || addressOf("query"));
  for (const listener of listeners) listener();
}

export function usePlace(): Place {
  const [place, put] = useState(here);
  useEffect(() => {
    const look = () => put(here());
    listeners.add(look);
    look();
    return () => void listeners.delete(look);
  }, []);
  return place;
}

addEventListener("hashchange", moved);
addEventListener("popstate", moved);
remembered.set(here().screen, location.hash || addressOf("query"));
