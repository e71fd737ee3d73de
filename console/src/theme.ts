// The theme, light or dark: the system's, unless the user chose one.
import { useState } from "preact/hooks";

export type Theme = "system" | "light" | "dark";

const NAME = "thermocline.theme";
const THEMES: Theme[] = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function chosen(): Theme {
  const found = localStorage.getItem(NAME) as Theme | null;
  return found && THEMES.includes(found) ? found : "system";
}

export function isDark(): boolean {
  return chosen() === "dark" || (chosen() === "system" && dark.matches);
}

function apply(): void {
  document.documentElement.dataset["theme"] = isDark() ? "dark" : "light";
  for (const listener of listeners) listener();
}

/** Call a function when the colours change, to draw canvases again; returns a way to stop this. */
export function onTheme(listener: () => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

/** A colour of the current theme, for drawing on a canvas. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function useTheme(): [Theme, () => void] {
  const [theme, put] = useState(chosen);
  const next = () => {
    const after = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system";
    localStorage.setItem(NAME, after);
    put(after);
    apply();
  };
  return [theme, next];
}

dark.addEventListener("change", apply);
apply();
