// Attributes of OpenTelemetry, which the tables hold as the text of a JSON object.
import { parsedExactly } from "../api";

export function Attributes({ title, json }: { title: string; json: string | null }) {
  const found = Object.entries(parsed(json));
  if (!found.length) return null;
  return (
    <>
      <h3 class="small">{title}</h3>
      <dl class="facts">
        {found.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{typeof value === "string" ? value : JSON.stringify(value)}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}

function parsed(json: string | null): Record<string, unknown> {
  try {
    const value = parsedExactly(json ?? "{}");
    return value !== null && typeof value === "object" ? (value as Record<string, unknown>) : {};
  } catch {
    return { text: json }; // shown as it is
  }
}
