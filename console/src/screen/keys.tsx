// Keys. The text of a new key is shown once, on this screen only.
import { useState } from "preact/hooks";
import { asked, part, problemOf } from "../api";
import { useAsk } from "../ask";
import { clock } from "../format";
import { key, keyId, putKey } from "../key";
import { Code } from "../show/copy";
import { Listing } from "../show/listing";
import { Asked, Empty, sentence } from "../show/state";
import type { KeyInfo } from "./shape";

const SCOPES = { query: "read", ingest: "write rows", admin: "change tables and keys" };
const LIVES = {
  "": "never",
  "86400": "in 1 day",
  "2592000": "in 30 days",
  "31536000": "in 1 year",
};
const ADMIN = "admin";

export function KeysScreen() {
  const ask = useAsk<{ keys: KeyInfo[] }>("keys");
  const [made, putMade] = useState("");
  const [isFirst, putFirst] = useState(false);
  const take = (text: string) => {
    putMade(text);
    putFirst(!key());
    // After the first key the node answers no request without one, so this tab uses it.
    if (key()) ask.again();
    else putKey(text);
  };
  return (
    <>
      <header class="title">
        <h1>Keys</h1>
      </header>
      {made && (
        <section class="card" role="status">
          <p>
            This is the new key. Copy it now and keep it safe: it is shown only this once.
            {isFirst &&
              " This tab uses it already. From now on every other client needs a key; create one for each here."}
          </p>
          <Code text={made} label="The new key" />
        </section>
      )}
      <Asked ask={ask}>
        {({ keys }) => (
          <div class="stack">
            {keys.length ? (
              <List of={keys} again={ask.again} />
            ) : (
              <Empty title="This node has no keys">
                <p>
                  Every user of this machine can read and change its data. After you create the first
                  key, the node answers only requests that carry a key.
                </p>
              </Empty>
            )}
            <NewKey key={keys.length ? "next" : "first"} take={take} isFirst={!keys.length} />
          </div>
        )}
      </Asked>
    </>
  );
}

function List({ of, again }: { of: KeyInfo[]; again: () => void }) {
  const [status, report] = useState("");
  const [asking, ask] = useState("");
  const revoke = async (key: KeyInfo) => {
    if (asking !== key.key_id) {
      ask(key.key_id); // once more, to be sure
      return;
    }
    ask("");
    try {
      await asked(`keys/${part(key.key_id)}`, { method: "DELETE" });
      report(`Key ${key.key_id} is revoked.`);
    } catch (error) {
      report(sentence(problemOf(error).message));
    }
    again();
  };
  return (
    <section class="card">
      <Listing
        label="Keys"
        rows={of}
        keyOf={(one) => one.key_id}
        fields={[
          {
            name: "Key",
            show: (key) => (
              <>
                <code>{key.key_id}</code> {key.key_id === keyId() && <em class="badge">yours</em>}
              </>
            ),
          },
          { name: "Note", show: (key) => key.note },
          { name: "Tenant", show: (key) => key.tenant },
          { name: "Scopes", show: (key) => key.scopes.join(", ") },
          {
            name: "State",
            show: (key) => <em class={`badge ${key.state === "valid" ? "cold" : ""}`}>{key.state}</em>,
          },
          { name: "Made", show: (key) => clock(key.created).slice(0, 16) },
          {
            name: "Last used",
            show: (key) => (key.last_used ? clock(key.last_used).slice(0, 16) : "never"),
          },
          { name: "Until", show: (key) => (key.expires ? clock(key.expires).slice(0, 16) : "") },
          {
            name: "",
            show: (key) =>
              key.state === "valid" && (
                <button
                  type="button"
                  class={asking === key.key_id ? "warm" : ""}
                  aria-label={`Revoke ${key.key_id}`}
                  onClick={() => void revoke(key)}
                >
                  {asking === key.key_id ? "Revoke it?" : "Revoke"}
                </button>
              ),
          },
        ]}
      />
      <p class="small quiet" role="status">
        {status}
      </p>
    </section>
  );
}

function NewKey({ take, isFirst }: { take: (key: string) => void; isFirst: boolean }) {
  const [scopes, putScopes] = useState<string[]>(isFirst ? Object.keys(SCOPES) : ["query"]);
  const [note, putNote] = useState("");
  const [life, putLife] = useState("");
  const [wrong, putWrong] = useState("");
  const make = async (event: Event) => {
    event.preventDefault();
    const body = { scopes, note, ...(life ? { lifetime_s: Number(life) } : {}) };
    try {
      take((await asked<{ key: string }>("keys", { body })).key);
      putWrong("");
    } catch (error) {
      const problem = problemOf(error);
      putWrong([sentence(problem.message), problem.hint].filter(Boolean).join("; "));
    }
  };
  const toggle = (scope: string) =>
    putScopes(scopes.includes(scope) ? scopes.filter((s) => s !== scope) : [...scopes, scope]);
  return (
    <section class="card" aria-labelledby="newkey">
      <h2 id="newkey">{isFirst ? "Create the first key" : "Create a key"}</h2>
      {isFirst && (
        <p class="small quiet">
          The first key always has the scope admin: without it no other key could be created.
        </p>
      )}
      <form class="row" onSubmit={(event) => void make(event)}>
        <fieldset class="checks">
          <legend>Scopes</legend>
          {Object.entries(SCOPES).map(([scope, text]) => (
            <label key={scope}>
              <input
                type="checkbox"
                checked={scopes.includes(scope)}
                disabled={isFirst && scope === ADMIN}
                onChange={() => toggle(scope)}
              />
              {scope} <span class="quiet small">{text}</span>
            </label>
          ))}
        </fieldset>
        <label class="field">
          <span>Note</span>
          <input
            value={note}
            maxLength={200}
            placeholder="what it is for"
            onInput={(event) => putNote(event.currentTarget.value)}
          />
        </label>
        <label class="field">
          <span>Expires</span>
          <select value={life} onChange={(event) => putLife(event.currentTarget.value)}>
            {Object.entries(LIVES).map(([value, text]) => (
              <option key={value} value={value}>
                {text}
              </option>
            ))}
          </select>
        </label>
        <button type="submit" class="primary" disabled={!scopes.length}>
          Create key
        </button>
      </form>
      {wrong && (
        <p class="notice" role="alert">
          {wrong}
        </p>
      )}
    </section>
  );
}
