// The field for a key.
import { useState } from "preact/hooks";
import { putKey } from "../key";

export function KeyForm({ done }: { done?: () => void }) {
  const [text, put] = useState("");
  const use = (event: Event) => {
    event.preventDefault();
    putKey(text);
    done?.();
  };
  return (
    <form class="keyform" onSubmit={use}>
      <label>
        <span>Key</span>
        <input
          type="password"
          name="key"
          autocomplete="off"
          spellcheck={false}
          placeholder="tck_…"
          value={text}
          onInput={(event) => put(event.currentTarget.value)}
        />
      </label>
      <button type="submit" class="primary" disabled={!text.trim()}>
        Use this key
      </button>
    </form>
  );
}
