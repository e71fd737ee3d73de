// The frame around each screen: the name, the navigation, the theme, the key.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Place, lastAddress, usePlace } from "./route";
import { keyId, putKey, useKey } from "./key";
import { useTheme } from "./theme";
import { KeyForm } from "./show/keyform";
import { Empty } from "./show/state";
import { QueryScreen } from "./query/screen";
import { TablesScreen } from "./screen/tables";
import { CoverageScreen } from "./screen/coverage";
import { FreshnessScreen } from "./screen/freshness";
import { HistoryScreen } from "./screen/history";
import { EntitiesScreen } from "./screen/entities";
import { JobsScreen } from "./screen/jobs";
import { KeysScreen } from "./screen/keys";
import { AlertsScreen } from "./telemetry/alerts";
import { LogsScreen } from "./telemetry/logs";
import { MetricsScreen } from "./telemetry/metrics";
import { TracesScreen } from "./telemetry/traces";

type Screen = (asked: { place: Place }) => preact.JSX.Element;

const SCREENS: Record<string, [name: string, screen: Screen]> = {
  query: ["Query", QueryScreen],
  metrics: ["Metrics", MetricsScreen],
  logs: ["Logs", LogsScreen],
  traces: ["Traces", TracesScreen],
  alerts: ["Alerts", AlertsScreen],
  tables: ["Tables", TablesScreen],
  coverage: ["Coverage", CoverageScreen],
  freshness: ["Freshness", FreshnessScreen],
  history: ["History", HistoryScreen],
  entities: ["Entities", EntitiesScreen],
  jobs: ["Jobs", JobsScreen],
  keys: ["Keys", KeysScreen],
};

export function Frame() {
  const place = usePlace();
  const found = SCREENS[place.screen];
  const name = found?.[0] ?? "Nothing here";
  const nav = useRef<HTMLElement>(null);
  useEffect(() => {
    document.title = `${name} · Thermocline`;
    // On a narrow screen the current link may be hidden.
    nav.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }, [name]);
  const Shown = found?.[1];
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={skipped}>
        Skip to the content
      </a>
      <header class="bar">
        <a class="mark" href="#/query">
          <Mark /> Thermocline
        </a>
        <nav ref={nav} aria-label="Screens">
          {Object.entries(SCREENS).map(([path, [text]]) => (
            <a
              key={path}
              href={lastAddress(path)}
              aria-current={path === place.screen ? "page" : undefined}
            >
              {text}
            </a>
          ))}
        </nav>
        <div class="corner">
          <ThemeSwitch />
          <KeyCorner />
        </div>
      </header>
      <main id="main" tabIndex={-1}>
        {Shown ? (
          <Shown key={place.screen} place={place} />
        ) : (
          <>
            <h1 class="offscreen">{name}</h1>
            <Empty title="There is no such screen">
              <a href="#/query">Go to the query</a>
            </Empty>
          </>
        )}
      </main>
    </div>
  );
}

function skipped(event: Event): void {
  event.preventDefault(); // the address after `#` must stay
  document.getElementById("main")?.focus();
}

function Mark() {
  return (
    <svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true">
      <path class="warm" d="M2 7q5-4 10 0t10 0" />
      <path d="M2 12q5-4 10 0t10 0" />
      <path class="cold" d="M2 17q5-4 10 0t10 0" />
    </svg>
  );
}

function ThemeSwitch() {
  const [theme, next] = useTheme();
  return (
    <button type="button" class="quiet" onClick={next} aria-label={`Theme: ${theme}`}>
      <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
        <circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.6" />
        <path d="M8 1.8a6.2 6.2 0 0 1 0 12.4z" fill="currentColor" />
      </svg>
      <span class="wide">{theme}</span>
    </button>
  );
}

function KeyCorner() {
  const key = useKey();
  const [isOpen, put] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    box.current?.querySelector("input")?.focus();
    const close = (event: KeyboardEvent) => event.key === "Escape" && put(false);
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
  }, [isOpen]);
  return (
    <div class="keycorner">
      <button type="button" class="quiet" aria-expanded={isOpen} onClick={() => put(!isOpen)}>
        <span class={`dot ${key ? "on" : ""}`} aria-hidden="true" />
        {key ? `Key ${keyId()}` : "No key"}
      </button>
      {isOpen && (
        <div class="pop" ref={box}>
          <p class="small quiet">
            The key stays in this tab until you close it, and is sent to this node only.
          </p>
          <KeyForm done={() => put(false)} />
          {key && (
            <button type="button" onClick={() => (putKey(""), put(false))}>
              Forget the key
            </button>
          )}
        </div>
      )}
    </div>
  );
}
