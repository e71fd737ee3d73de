// The key that the user typed. It is kept until the tab closes, and sent to this node only.
import { useEffect, useState } from "preact/hooks";

const NAME = "thermocline.key";
const listeners = new Set<() => void>();

export function key(): string {
  return sessionStorage.getItem(NAME) ?? "";
}

export function putKey(text: string): void {
  if (text) sessionStorage.setItem(NAME, text.trim());
  else sessionStorage.removeItem(NAME);
  for (const listener of listeners) listener();
}

/** The key's id, which is not secret; empty without a key. */
export function keyId(): string {
  return key().split("_")[1] ?? "";
}

export function useKey(): string {
  const [held, put] = useState(key);
  useEffect(() => {
    const look = () => put(key());
    listeners.add(look);
    return () => void listeners.delete(look);
  }, []);
  return held;
}
