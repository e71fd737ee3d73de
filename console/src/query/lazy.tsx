// Loads a component when it is first shown.
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { problemOf } from "../api";
import { Failed } from "../show/state";

type Loaded<Asked> = ComponentType<Asked>;

export function lazy<Asked extends object>(load: () => Promise<Loaded<Asked>>): Loaded<Asked> {
  let found: Loaded<Asked> | null = null;
  return function Lazy(asked: Asked) {
    const [, redraw] = useState(0);
    const [error, fail] = useState<unknown>(null);
    useEffect(() => {
      if (found) return;
      load().then(
        (component) => {
          found = component;
          redraw((turn) => turn + 1);
        },
        (reason: unknown) => fail(reason ?? new Error("a part of the page did not load")),
      );
    }, []);
    if (error) return <Failed problem={problemOf(error)} again={() => location.reload()} />;
    const Found = found;
    return Found ? <Found {...asked} /> : null;
  };
}
