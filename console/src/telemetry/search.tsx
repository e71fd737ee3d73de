// A form of search fields whose values stand in the address.
import type { ComponentChildren } from "preact";
import type { Params } from "../route";

interface SearchAsked {
  label: string;
  /** What the button says. */
  verb?: string;
  children: ComponentChildren;
  found: (typed: Params) => void;
}

/** Calls `found` with every field when the user presses Enter or the button. */
export function Search({ label, verb = "Search", children, found }: SearchAsked) {
  const submitted = (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const fields = [...form.elements].filter((one) => one instanceof HTMLInputElement);
    found(Object.fromEntries(fields.map((one) => [one.name, valueOf(one)])));
  };
  return (
    <form class="search" aria-label={label} onSubmit={submitted}>
      {children}
      <button type="submit" class="primary">
        {verb}
      </button>
    </form>
  );
}

function valueOf(field: HTMLInputElement): string {
  return field.type === "checkbox" ? (field.checked ? "1" : "") : field.value.trim();
}

interface TypedAsked {
  label: string;
  name: string;
  value: string | undefined;
  isNumber?: boolean;
}

export function Typed({ label, name, value, isNumber }: TypedAsked) {
  return (
    <label>
      <span>{label}</span>
      <input
        key={value ?? ""}
        name={name}
        defaultValue={value ?? ""}
        autocomplete="off"
        spellcheck={false}
        inputMode={isNumber ? "decimal" : "text"}
      />
    </label>
  );
}

export function Tick({ label, name, isOn }: { label: string; name: string; isOn: boolean }) {
  return (
    <label class="tick">
      <input key={String(isOn)} type="checkbox" name={name} defaultChecked={isOn} />
      <span>{label}</span>
    </label>
  );
}
