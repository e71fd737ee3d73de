// A button that copies a text and says that it did.
import { useEffect, useState } from "preact/hooks";

const TOLD_MS = 1600;

export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Without TLS a browser offers pages no clipboard, but still has this command.
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "offscreen";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

interface CopyAsked {
  text: string | (() => string);
  label: string;
  quiet?: boolean;
}

export function Copy({ text, label, quiet }: CopyAsked) {
  const [isDone, put] = useState(false);
  useEffect(() => {
    if (!isDone) return;
    const timer = setTimeout(() => put(false), TOLD_MS);
    return () => clearTimeout(timer);
  }, [isDone]);
  const copy = () => {
    copyText(typeof text === "string" ? text : text()).then(
      () => put(true),
      () => put(false),
    );
  };
  return (
    <button type="button" class={quiet ? "quiet" : ""} onClick={copy}>
      <span aria-live="polite">{isDone ? "Copied" : label}</span>
    </button>
  );
}

export function Code({ text, label }: { text: string; label: string }) {
  return (
    <figure class="code">
      <pre tabIndex={0} role="region" aria-label={label}>
        {text}
      </pre>
      <Copy text={text} label="Copy" quiet />
    </figure>
  );
}
