// A screen of telemetry before its table exists: how to send the first data.
import type { ComponentChildren } from "preact";
import { useAsk } from "../ask";
import type { TableBrief } from "../screen/shape";
import { Code } from "../show/copy";
import { Asked, Empty } from "../show/state";

const OTLP_PORT = 4318;

interface FirstAsked {
  /** Such as `logs`: what is missing, and the last part of the OTLP path. */
  signal: string;
  tables: string[];
  children: () => ComponentChildren;
}

/** Show the screen if one of its tables exists, else how to send data. */
export function WithData({ signal, tables, children }: FirstAsked) {
  const ask = useAsk<{ tables: TableBrief[] }>("tables");
  return (
    <Asked ask={ask}>
      {(found) => (found.tables.some((one) => tables.includes(one.name)) ? children() : <First signal={signal} />)}
    </Asked>
  );
}

function First({ signal }: { signal: string }) {
  const endpoint = `http://${location.hostname}:${OTLP_PORT}`;
  return (
    <>
      <Empty title={`No ${signal} yet`}>
        <p>
          Point an OpenTelemetry SDK or collector at this node. The first {signal} create their table, and this screen
          shows them at once.
        </p>
      </Empty>
      <section class="card" aria-labelledby="send">
        <h2 id="send">Send your first data</h2>
        <Code
          label="Environment of a program with OpenTelemetry"
          text={`export OTEL_EXPORTER_OTLP_ENDPOINT=${endpoint}\nexport OTEL_SERVICE_NAME=my-service`}
        />
        <p class="small quiet">
          {OTLP_PORT} is the port for OTLP over HTTP unless the node sets another. If the node has keys, the sender needs
          one with the scope ingest.
        </p>
      </section>
    </>
  );
}
