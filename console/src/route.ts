// The address after `#` names the screen, the item it shows, and its settings.
// Browsers never send the part after `#` to a server, so no log contains the query of a link.
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
    return part; // the link was cut in the middle
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

/** Go to an address; with `replace`, the browser's Back button skips the current one. */
export function go(address: string, how: "push" | "replace" = "push"): void {
  if (address === location.hash) return;
  history[how === "push" ? "pushState" : "replaceState"](null, "", address);
  moved();
}

/** Change settings of the current screen, without an entry in the browser's history. */
export function change(params: Params, how: "push" | "replace" = "replace"): void {
  const place = here();
  go(addressOf(place.screen, place.parts, { ...place.params, ...params }), how);
}

/** The last address of a screen, so that its tab leads back to it. */
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
