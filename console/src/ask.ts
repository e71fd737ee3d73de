// A request to the node as a component sees it: waiting, answered, or failed.
import { useEffect, useState } from "preact/hooks";
import { type Asking, type Problem, asked, isAbort, problemOf } from "./api";
import { useKey } from "./key";

export interface Ask<Answer> {
  value: Answer | undefined;
  problem: Problem | undefined;
  isWaiting: boolean;
  again: () => void;
}

/**
 * Send the request when the component appears, when the path or the key changes, and, if `everyMs`
 * is given, at that interval. The last answer stays until the next one arrives.
 */
export function useAsk<Answer>(
  path: string | null,
  asking: Asking = {},
  everyMs = 0,
): Ask<Answer> {
  const key = useKey();
  const question = JSON.stringify([path, asking.params ?? null, asking.body ?? null, key]);
  const [turn, putTurn] = useState(0);
  const [state, put] = useState<{ question: string; value?: Answer; problem?: Problem }>({
    question: "",
  });
  const again = () => putTurn((turn) => turn + 1);
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    const answered = (found: { value?: Answer; problem?: Problem }) => {
      if (!stop.signal.aborted) put({ question, ...found });
    };
    asked<Answer>(path, { ...asking, signal: stop.signal }).then(
      (value) => answered({ value }),
      (error) => isAbort(error) || answered({ problem: problemOf(error) }),
    );
    const timer = everyMs ? setInterval(again, everyMs) : undefined;
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [question, turn, everyMs]);
  const isOld = state.question !== question;
  return {
    value: isOld ? undefined : state.value,
    problem: isOld ? undefined : state.problem,
    isWaiting: path !== null && isOld,
    again,
  };
}
