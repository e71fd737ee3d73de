// Small tables, and figures with their names.
import type { ComponentChildren } from "preact";

export interface Field<Row> {
  name: string;
  show: (row: Row) => ComponentChildren;
  isNumber?: boolean;
}

interface ListingAsked<Row> {
  label: string;
  rows: Row[];
  fields: Field<Row>[];
  keyOf: (row: Row, place: number) => string | number;
  isPicked?: (row: Row) => boolean;
}

export function Listing<Row>({ label, rows, fields, keyOf, isPicked }: ListingAsked<Row>) {
  // A group, not a region: the section around it is the landmark, often with the same name.
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label={label}>
      <table>
        <caption class="offscreen">{label}</caption>
        <thead>
          <tr>
            {fields.map((field) => (
              <th key={field.name} scope="col" class={field.isNumber ? "number" : ""}>
                {field.name || <span class="offscreen">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, place) => (
            <tr key={keyOf(row, place)} class={isPicked?.(row) ? "picked" : ""}>
              {fields.map((field) => (
                <td key={field.name} class={field.isNumber ? "number" : ""}>
                  {field.show(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export type Figure = [name: string, value: ComponentChildren, note?: ComponentChildren];

export function Figures({ of }: { of: Figure[] }) {
  return (
    <dl class="figures">
      {of.map(([name, value, note]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
          {note !== undefined && <dd class="note">{note}</dd>}
        </div>
      ))}
    </dl>
  );
}

interface TabsAsked {
  label: string;
  names: Record<string, string>;
  chosen: string;
  choose: (name: string) => void;
}

/** A choice of a few: a radio group that looks like one control. */
export function Tabs({ label, names, chosen, choose }: TabsAsked) {
  return (
    <fieldset class="tabs">
      <legend class="offscreen">{label}</legend>
      {Object.entries(names).map(([name, text]) => (
        <label key={name} class={name === chosen ? "chosen" : ""}>
          <input
            type="radio"
            name={label}
            class="offscreen"
            checked={name === chosen}
            onChange={() => choose(name)}
          />
          {text}
        </label>
      ))}
    </fieldset>
  );
}

interface PickAsked {
  label: string;
  of: string[];
  chosen: string;
  choose: (name: string) => void;
}

export function Pick({ label, of, chosen, choose }: PickAsked) {
  return (
    <label class="pick">
      <span>{label}</span>
      <select value={chosen} onChange={(event) => choose(event.currentTarget.value)}>
        {of.map((name) => (
          <option key={name} value={name}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}
