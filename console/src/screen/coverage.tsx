// Coverage: which stretches of time a table holds for each entity, and how to fill its gaps.
import { useEffect, useRef, useState } from "preact/hooks";
import { part } from "../api";
import { useAsk } from "../ask";
import { clock, count, counted, instantOf, seconds, share } from "../format";
import { type Params, type Place, change } from "../route";
import { Listing, Tabs } from "../show/listing";
import { Asked, Empty } from "../show/state";
import { Gaps } from "./gaps";
import { Heat, edge, laneName } from "./heat";
import { OfTable } from "./pickers";
import type { Blocks, Lane, TableBrief } from "./shape";

const LANES = 40;
const BLOCK_PX = 7;
const BLOCKS_MIN = 24;
const BLOCKS_MAX = 240;
const TYPED_MS = 250;

export function CoverageScreen({ place }: { place: Place }) {
  return (
    <OfTable title="Coverage" screen="coverage" chosen={place.parts[0]}>
      {(table) => <OneTable key={table.name} table={table} params={place.params} />}
    </OfTable>
  );
}

function OneTable({ table, params }: { table: TableBrief; params: Params }) {
  const box = useRef<HTMLDivElement>(null);
  const [blocks, putBlocks] = useState(0);
  useEffect(() => {
    const width = box.current?.clientWidth ?? 600;
    putBlocks(Math.min(BLOCKS_MAX, Math.max(BLOCKS_MIN, Math.floor((width - 150) / BLOCK_PX))));
  }, []);
  const page = Math.max(0, Number(params["page"] ?? 0) || 0);
  const ask = useAsk<Blocks>(blocks ? `tables/${part(table.name)}/blocks` : null, {
    params: {
      start: params["start"] ?? "",
      end: params["end"] ?? "",
      contains: params["find"] ?? "",
      order: params["order"] === "name" ? "name" : "",
      offset: page ? String(page * LANES) : "",
      limit: String(LANES),
      blocks: String(blocks),
    },
  });
  // The last picture stays until the next one is ready, so that zooming does not flicker.
  const shown = useRef<Blocks | undefined>(undefined);
  if (ask.value) shown.current = ask.value;
  const found = ask.value ?? (ask.problem ? undefined : shown.current);
  return (
    <div class="stack" ref={box}>
      <Controls params={params} of={found} />
      {found ? (
        <Picture table={table} of={found} params={params} page={page} />
      ) : (
        <Asked ask={ask}>{() => null}</Asked>
      )}
    </div>
  );
}

function Controls({ params, of }: { params: Params; of: Blocks | undefined }) {
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const find = (text: string) => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change({ find: text, page: "" }), TYPED_MS);
  };
  const closer = (factor: number) => of && zoomed(of, factor);
  return (
    <div class="tools">
      <label class="field inline">
        <span>Find</span>
        <input
          type="search"
          placeholder="an entity"
          defaultValue={params["find"] ?? ""}
          onInput={(event) => find(event.currentTarget.value)}
        />
      </label>
      <Tabs
        label="Order"
        names={{ worst: "Worst first", name: "By name" }}
        chosen={params["order"] === "name" ? "name" : "worst"}
        choose={(order) => change({ order: order === "name" ? "name" : "", page: "" })}
      />
      <span class="gap" />
      <div class="zoom" role="group" aria-label="Zoom">
        <button type="button" onClick={() => closer(0.5)} aria-label="Zoom in">
          +
        </button>
        <button type="button" onClick={() => closer(2)} aria-label="Zoom out">
          −
        </button>
        <button type="button" onClick={() => change({ start: "", end: "" }, "push")}>
          All
        </button>
      </div>
      <Tabs
        label="View"
        names={{ picture: "Picture", table: "Table" }}
        chosen={params["view"] === "table" ? "table" : "picture"}
        choose={(view) => change({ view: view === "table" ? "table" : "" })}
      />
    </div>
  );
}

/** Change the length of the stretch around its middle, in whole buckets. */
function zoomed(of: Blocks, factor: number): void {
  if (!of.start || !of.end) return;
  const start = seconds(of.start);
  const span = seconds(of.end) - start;
  const next = Math.max(2, Math.round((span * factor) / of.bucket_s)) * of.bucket_s;
  const from = Math.round((start + (span - next) / 2) / of.bucket_s) * of.bucket_s;
  change({ start: instantOf(from), end: instantOf(from + next) }, "push");
}

interface PictureAsked {
  table: TableBrief;
  of: Blocks;
  params: Params;
  page: number;
}

function Picture({ table, of, params, page }: PictureAsked) {
  if (!of.lanes.length || !of.blocks) {
    return (
      <Empty title={params["find"] ? "No entity matches" : "No rows yet"}>
        <p>{params["find"] ? "Change the text to find an entity." : "Coverage begins with the first rows."}</p>
      </Empty>
    );
  }
  const pick = (lane: Lane | undefined, start: string, end: string) => {
    if (lane) change({ entity: JSON.stringify(lane.entity), from: start, to: end });
  };
  const chosen = chosenIn(params);
  return (
    <>
      <section class="card" aria-label="Coverage">
        <p class="legend small">
          <span class="key cold">held</span> <span class="key hot">held, unflushed</span>{" "}
          <span class="key missing">missing</span>
          <span class="quiet">
            {clock(of.start ?? "")} to {clock(of.end ?? "")} UTC,{" "}
            {counted(of.buckets, "bucket")} of {of.bucket}
          </span>
          {!of.is_verified && <em class="badge warm">not verified</em>}
        </p>
        {params["view"] === "table" ? (
          <LaneTable of={of} pick={pick} />
        ) : (
          <Heat
            of={of}
            pick={({ lane, block }) => pick(of.lanes[lane], edge(of, block), edge(of, block + 1))}
            zoom={(start, end) => start !== end && change({ start, end }, "push")}
            closer={(factor) => zoomed(of, factor)}
          />
        )}
        <Pages of={of} page={page} />
      </section>
      {chosen && <Gaps table={table} {...chosen} />}
    </>
  );
}

function chosenIn(params: Params) {
  const { entity, from, to } = params;
  if (entity === undefined || !from || !to) return null;
  try {
    return { entity: JSON.parse(entity) as Record<string, unknown>, start: from, end: to };
  } catch {
    return null; // the link was cut in the middle
  }
}

interface LaneTableAsked {
  of: Blocks;
  pick: (lane: Lane, start: string, end: string) => void;
}

function LaneTable({ of, pick }: LaneTableAsked) {
  const sum = (values: number[]) => values.reduce((total, one) => total + one, 0);
  return (
    <Listing
      label="Coverage by entity"
      rows={of.lanes}
      keyOf={(_, place) => place}
      fields={[
        { name: "Entity", show: (lane) => laneName(lane.entity) },
        { name: "Held", isNumber: true, show: (lane) => share(lane.buckets_held / of.buckets) },
        {
          name: "Missing",
          isNumber: true,
          show: (lane) => counted(of.buckets - lane.buckets_held, "bucket"),
        },
        { name: "Unflushed", isNumber: true, show: (lane) => count(sum(lane.unflushed)) },
        {
          name: "",
          show: (lane) => (
            <button
              type="button"
              aria-label={`Gaps of ${laneName(lane.entity)}`}
              onClick={() => pick(lane, of.start ?? "", of.end ?? "")}
            >
              Gaps
            </button>
          ),
        },
      ]}
    />
  );
}

function Pages({ of, page }: { of: Blocks; page: number }) {
  if (of.entities <= LANES) return null;
  const last = Math.ceil(of.entities / LANES) - 1;
  const to = (next: number) => change({ page: next ? String(next) : "" });
  return (
    <div class="pages">
      <button type="button" disabled={page === 0} onClick={() => to(page - 1)}>
        Before
      </button>
      <span class="quiet small">
        {count(page * LANES + 1)} to {count(Math.min(of.entities, (page + 1) * LANES))} of{" "}
        {counted(of.entities, "entity", "entities")}
      </span>
      <button type="button" disabled={page >= last} onClick={() => to(page + 1)}>
        Next
      </button>
    </div>
  );
}
