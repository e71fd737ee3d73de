// Writes down what the built files were built from, and the licences of what is in them.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";

const HERE = import.meta.dirname;
const BUILT = join(HERE, "../src/thermocline/server/console/built");
const NOT_SOURCES = new Set(["node_modules", ".gitignore", ".npmrc"]);

function filesUnder(folder) {
  return readdirSync(folder)
    .filter((name) => !NOT_SOURCES.has(name))
    .map((name) => join(folder, name))
    .flatMap((path) => (statSync(path).isDirectory() ? filesUnder(path) : [path]));
}

function digests(root) {
  const named = filesUnder(root).map((path) => [relative(root, path).replaceAll("\\", "/"), path]);
  named.sort(([one], [other]) => (one < other ? -1 : 1));
  const digest = (path) => createHash("sha256").update(readFileSync(path)).digest("hex");
  return Object.fromEntries(named.map(([name, path]) => [name, digest(path)]));
}

function licences() {
  const lock = JSON.parse(readFileSync(join(HERE, "package-lock.json"), "utf8"));
  const parts = [];
  for (const [place, about] of Object.entries(lock.packages)) {
    if (!place || about.dev || about.optional) continue;
    const folder = join(HERE, place);
    const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
    const name = place.replace("node_modules/", "");
    const text = file ? readFileSync(join(folder, file), "utf8").trim() : about.license;
    parts.push(`${name} ${about.version}\n\n${text}\n`);
  }
  return parts.join(`\n${"-".repeat(80)}\n\n`);
}

writeFileSync(join(BUILT, "licences.txt"), licences());
const record = { sources: digests(HERE), built: digests(BUILT) };
writeFileSync(join(BUILT, "record.json"), `${JSON.stringify(record, null, 1)}\n`);
