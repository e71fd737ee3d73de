// What a screen shows instead of its content: waiting, refused, failed or empty.
import type { ComponentChildren } from "preact";
import type { Ask } from "../ask";
import type { Problem } from "../api";
import { KeyForm } from "./keyform";

export function Waiting({ of = "the node" }: { of?: string }) {
  return (
    <div class="state" role="status" data-state="loading">
      <span class="spinner" aria-hidden="true" />
      <p>Asking {of}…</p>
    </div>
  );
}

interface EmptyAsked {
  title: string;
  children?: ComponentChildren;
}

export function Empty({ title, children }: EmptyAsked) {
  return (
    <div class="state" data-state="empty">
      <Waves />
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Failed({ problem, again }: { problem: Problem; again?: () => void }) {
  if (problem.status === 401 || problem.status === 403) return <Refused problem={problem} />;
  return (
    <div class="state" role="alert" data-state="error">
      <h2>{sentence(problem.message)}</h2>
      {problem.hint && <p>{sentence(problem.hint)}.</p>}
      <Facts of={problem.facts} />
      {problem.requestId && (
        <p class="quiet small">
          Request <code>{problem.requestId}</code>
        </p>
      )}
      {again && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

function Refused({ problem }: { problem: Problem }) {
  const isUnknown = problem.status === 401;
  return (
    <div class="state" role="alert" data-state="forbidden">
      <h2>{isUnknown ? "This node requires a key" : "This key does not allow this"}</h2>
      <p>
        {isUnknown
          ? "Create one with “thermocline key create”, or ask an administrator to create one on the screen Keys."
          : "It needs a key with another scope. Ask your administrator for one, or use another key."}
      </p>
      <KeyForm />
      <p class="quiet small">{sentence(problem.message)}</p>
    </div>
  );
}

function Facts({ of }: { of: Record<string, unknown> }) {
  const shown = Object.entries(of).filter(([name]) => name !== "query_id");
  if (!shown.length) return null;
  return (
    <dl class="facts">
      {shown.map(([name, fact]) => (
        <div key={name}>
          <dt>{name.replaceAll("_", " ")}</dt>
          <dd>{typeof fact === "object" ? JSON.stringify(fact) : String(fact)}</dd>
        </div>
      ))}
    </dl>
  );
}

function Waves() {
  return (
    <svg class="waves" viewBox="0 0 64 40" aria-hidden="true">
      <path class="warm" d="M2 8q10-6 20 0t20 0 20 0" />
      <path d="M2 20q10-6 20 0t20 0 20 0" />
      <path class="cold" d="M2 32q10-6 20 0t20 0 20 0" />
    </svg>
  );
}

interface AskedAsked<Answer> {
  ask: Ask<Answer>;
  of?: string;
  children: (value: Answer) => ComponentChildren;
}

/** Show an answer, or the state of its request. */
export function Asked<Answer>({ ask, of, children }: AskedAsked<Answer>) {
  if (ask.problem) return <Failed problem={ask.problem} again={ask.again} />;
  if (ask.value === undefined) return <Waiting {...(of ? { of } : {})} />;
  return <>{children(ask.value)}</>;
}

export function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
