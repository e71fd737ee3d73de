// Entities: their types, contracts and documents, and the history of a document.
import { useState } from "preact/hooks";
import { part } from "../api";
import { useAsk } from "../ask";
import { clock, count } from "../format";
import { type Params, type Place, addressOf, change, go } from "../route";
import { Code } from "../show/copy";
import { Listing, Pick, Tabs } from "../show/listing";
import { Asked, Empty, sentence } from "../show/state";
import type { Contract, Entity, Revision } from "./shape";

const PAGE = 50;
const COLUMNS_MAX = 6;

export function EntitiesScreen({ place }: { place: Place }) {
  const [wanted, id] = place.parts;
  const ask = useAsk<{ types: string[] }>("entities");
  const types = ask.value?.types ?? [];
  const type = wanted ?? types[0];
  const isOff = ask.problem?.status === 400;
  return (
    <>
      <header class="title">
        <h1>Entities</h1>
        {types.length > 0 && (
          <Pick
            label="Type"
            of={types}
            chosen={type ?? ""}
            choose={(name) => go(addressOf("entities", [name]))}
          />
        )}
      </header>
      {isOff ? (
        <Empty title="This node keeps no entities">
          <p>{sentence(ask.problem?.hint ?? "")}.</p>
        </Empty>
      ) : (
        <Asked ask={ask}>
          {() => {
            if (type === undefined) return <NoTypes />;
            if (id !== undefined) return <OneEntity type={type} id={id} />;
            return <OneType key={type} type={type} params={place.params} />;
          }}
        </Asked>
      )}
    </>
  );
}

function NoTypes() {
  return (
    <Empty title="No entity types yet">
      <p>
        A type begins with its contract: <code>thermocline schema register order order.json</code>
      </p>
    </Empty>
  );
}

function OneType({ type, params }: { type: string; params: Params }) {
  const isSchema = params["view"] === "schema";
  return (
    <div class="stack">
      <Tabs
        label="View"
        names={{ documents: "Documents", schema: "Contract" }}
        chosen={isSchema ? "schema" : "documents"}
        choose={(view) => change({ view: view === "schema" ? view : "" })}
      />
      {isSchema ? <Schema type={type} /> : <Documents type={type} params={params} />}
    </div>
  );
}

function Schema({ type }: { type: string }) {
  const ask = useAsk<Contract>(`entities/${part(type)}/schema`);
  return (
    <Asked ask={ask}>
      {(contract) => (
        <section class="card" aria-label="Contract">
          <p>
            Version {count(contract.version)}, what may follow it is {contract.mode}.
          </p>
          <Listing
            label="Columns"
            rows={contract.columns}
            keyOf={(column) => column.id}
            fields={[
              { name: "Column", show: (column) => <code>{column.name}</code> },
              { name: "Type", show: (column) => column.type },
              {
                name: "Kept",
                show: (column) => column.is_hot && <em class="badge warm">hot column</em>,
              },
            ]}
          />
          <Code text={JSON.stringify(contract.document, null, 2)} label="The contract" />
        </section>
      )}
    </Asked>
  );
}

interface Page {
  entities: Entity[];
  after: string | null;
  total: number | null;
}

function Documents({ type, params }: { type: string; params: Params }) {
  const contract = useAsk<Contract>(`entities/${part(type)}/schema`);
  const [field, putField] = useState(params["field"] ?? "");
  const [value, putValue] = useState(params["is"] ?? "");
  const filter = params["field"]
    ? JSON.stringify({ field: params["field"], op: "eq", value: guess(params["is"] ?? "") })
    : "";
  const ask = useAsk<Page>(`entities/${part(type)}`, {
    params: {
      limit: String(PAGE),
      total: "true",
      after: params["after"] ?? "",
      sort: params["sort"] ?? "",
      filter,
    },
  });
  const names = contract.value?.columns.map((column) => column.name) ?? [];
  return (
    <section class="card" aria-label="Documents">
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          change({ field, is: value, after: "" });
        }}
      >
        <label class="field inline">
          <span>Where</span>
          <select value={field} onChange={(event) => putField(event.currentTarget.value)}>
            <option value="">all</option>
            {["_id", ...names].map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <label class="field inline">
          <span>is</span>
          <input value={value} onInput={(event) => putValue(event.currentTarget.value)} />
        </label>
        <button type="submit">Find</button>
      </form>
      <Asked ask={ask}>
        {(page) =>
          page.entities.length ? (
            <PageTable type={type} of={page} names={names.slice(0, COLUMNS_MAX)} />
          ) : (
            <Empty title={filter ? "No document matches" : "No documents yet"} />
          )
        }
      </Asked>
    </section>
  );
}

/** The value of a typed text: JSON if it is JSON, else the text. */
function guess(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function PageTable({ type, of, names }: { type: string; of: Page; names: string[] }) {
  return (
    <>
      <Listing
        label="Documents"
        rows={of.entities}
        keyOf={(one) => one.id}
        fields={[
          {
            name: "Key",
            show: (one) => <a href={addressOf("entities", [type, one.id])}>{one.id}</a>,
          },
          { name: "Version", isNumber: true, show: (one) => count(one.ver) },
          ...names.map((name) => ({
            name,
            show: (one: Entity) => <Short of={one.document[name]} />,
          })),
          { name: "Written, UTC", show: (one) => clock(one.written_at).slice(0, 19) },
        ]}
      />
      <div class="pages">
        <button type="button" onClick={() => change({ after: "" })}>
          First page
        </button>
        <span class="quiet small">{of.total !== null && `${count(of.total)} in all`}</span>
        <button
          type="button"
          disabled={!of.after}
          onClick={() => change({ after: of.after ?? "" }, "push")}
        >
          Next
        </button>
      </div>
    </>
  );
}

function Short({ of }: { of: unknown }) {
  if (of === undefined || of === null) return <span class="null">{of === null ? "null" : ""}</span>;
  const text = typeof of === "object" ? JSON.stringify(of) : String(of);
  return <>{text.length > 60 ? `${text.slice(0, 60)}…` : text}</>;
}

function OneEntity({ type, id }: { type: string; id: string }) {
  const path = `entities/${part(type)}/${part(id)}`;
  const now = useAsk<Entity & { warning: string }>(path);
  const past = useAsk<{ revisions: Revision[] }>(`${path}/history`);
  return (
    <div class="stack">
      <p class="crumb">
        <a href={addressOf("entities", [type])}>{type}</a>
      </p>
      <section class="card" aria-labelledby="now">
        <h2 id="now">{id}</h2>
        <Asked ask={now}>
          {(entity) => (
            <>
              <p class="quiet">
                Version {count(entity.ver)}, written {clock(entity.written_at)} UTC
                {entity.warning && <em class="badge warm">{entity.warning}</em>}
              </p>
              <Code text={JSON.stringify(entity.document, null, 2)} label="The document" />
            </>
          )}
        </Asked>
      </section>
      <section class="card" aria-labelledby="was">
        <h2 id="was">History of the document</h2>
        <Asked ask={past}>{({ revisions }) => <Revisions of={revisions} />}</Asked>
      </section>
    </div>
  );
}

function Revisions({ of }: { of: Revision[] }) {
  return (
    <ol class="revisions">
      {[...of].reverse().map((one, place) => (
        <li key={place}>
          <h3>
            {one.ver === null ? "Deleted" : `Version ${count(one.ver)}`}
            <span class="quiet small">
              {clock(one.at)} UTC,{" "}
              {one.version === null ? "not exported yet" : `lake version ${count(one.version)}`}
            </span>
          </h3>
          {one.document && (
            <Code text={JSON.stringify(one.document, null, 1)} label={`Document ${of.length - place}`} />
          )}
        </li>
      ))}
    </ol>
  );
}
