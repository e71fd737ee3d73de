// The choice of a table, for screens about one table; the first table unless the user chooses.
import type { ComponentChildren } from "preact";
import { useAsk } from "../ask";
import { addressOf, go } from "../route";
import { Pick } from "../show/listing";
import { Asked } from "../show/state";
import { NoTables } from "./tables";
import type { TableBrief } from "./shape";

interface TablePickAsked {
  title: string;
  screen: string;
  chosen: string | undefined;
  children: (table: TableBrief) => ComponentChildren;
}

export function OfTable({ title, screen, chosen, children }: TablePickAsked) {
  const ask = useAsk<{ tables: TableBrief[] }>("tables");
  const tables = ask.value?.tables ?? [];
  const table = tables.find((one) => one.name === chosen) ?? (chosen ? undefined : tables[0]);
  return (
    <>
      <header class="title">
        <h1>{title}</h1>
        {tables.length > 0 && (
          <Pick
            label="Table"
            of={[...(table ? [] : [chosen ?? ""]), ...tables.map((one) => one.name)]}
            chosen={table?.name ?? chosen ?? ""}
            choose={(name) => go(addressOf(screen, [name]))}
          />
        )}
      </header>
      <Asked ask={ask}>
        {() => {
          if (!tables.length) return <NoTables />;
          return table ? children(table) : <p class="quiet">There is no table of this name.</p>;
        }}
      </Asked>
    </>
  );
}
