// SPDX-License-Identifier: Apache-2.0
// Memory, training curves, and what the run was.

import {
  asNumber,
  asNumbers,
  asObject,
  asObjects,
  asText,
  type Json,
  type JsonObject,
  type Licence,
  type Run,
} from "./data";
import {chart, type Series} from "./chart";
import {button, type Cell, h, section, table} from "./dom";
import {throughput} from "./figures";
import {bytes, number, type Times} from "./format";

// ---- memory ----

const MOST_CHARTS = 16;

/** What a worker holds over time, and its limit. */
export function memorySection(runs: Run[], times: Times): HTMLElement {
  const element = section("Memory over time", "memory");
  let byBytes = runs.every((run) => run.hasBytes);
  const body = h("div", {});
  const fill = (): void => {
    const columns = runs.map((run) => {
      const charts = h("div", {class: "charts"});
      const {workers} = run.schedule;
      const peak = Math.max(
        ...run.timelines.flatMap((t) => (byBytes ? t.figures.peak_stash_bytes : t.figures.peak_stashes)),
      );
      for (let w = 0; w < Math.min(workers, MOST_CHARTS); ++w) charts.append(memoryChart(run, w, byBytes, peak, times));
      const more =
        workers > MOST_CHARTS ? h("p", {class: "note"}, `The first ${MOST_CHARTS} of ${workers} workers.`) : null;
      return h("div", {}, runs.length > 1 ? h("h3", {}, run.title) : null, charts, more);
    });
    body.replaceChildren(h("div", {class: "columns"}, ...columns));
  };
  if (byBytes) {
    const toggle = button("Show stashes", "Bytes, or the number of stashes", () => {
      byBytes = !byBytes;
      toggle.textContent = byBytes ? "Show stashes" : "Show bytes";
      fill();
    });
    element.append(h("div", {class: "controls"}, toggle));
  }
  fill();
  element.append(
    body,
    h(
      "p",
      {class: "note"},
      "What each worker holds for backward passes: stashes of F, and with a split backward pass those of B.",
    ),
  );
  return element;
}

function memoryChart(run: Run, worker: number, byBytes: boolean, peak: number, times: Times): HTMLElement {
  // Ticks are round numbers of this unit.
  const power = byBytes ? Math.min(5, Math.max(0, Math.floor(Math.log2(Math.max(1, peak)) / 10))) : 0;
  const unit = 1024 ** power;
  const last = Math.max(...run.timelines.map((timeline) => timeline.last)) * run.tick;
  const series: Series[] = run.timelines.map(({title, memory}, t) => {
    const [begin, end] = [memory.offsets[worker], memory.offsets[worker + 1]];
    const y = (byBytes ? memory.bytes : memory.stashes).subarray(begin, end);
    const x = memory.time.subarray(begin, end).map((tick) => tick * run.tick);
    // A worker holds nothing before its first job, and what it holds after its last until the end.
    return {
      name: title,
      kind: `line-${t % 6}`,
      x: [0, ...x, last],
      y: [0, ...y, y.at(-1) ?? 0].map((value) => value / unit),
      steps: true,
    };
  });
  const limits: {name: string; value: number}[] = [];
  const stashLimit = run.schedule.memory_limits?.[worker];
  if (!byBytes && stashLimit !== undefined && stashLimit < 1e9)
    limits.push({name: `limit ${stashLimit}`, value: stashLimit});
  const byteLimits = asObject(run.report["search"])["memory_limit"];
  const byteLimit = Array.isArray(byteLimits) ? asNumber(byteLimits[worker]) : asNumber(byteLimits);
  if (byBytes && byteLimit !== undefined) limits.push({name: `limit ${bytes(byteLimit)}`, value: byteLimit / unit});
  const text = (value: number): string =>
    byBytes ? `${number(value, 4)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}` : number(value);
  return chart({
    title: `worker ${worker}`,
    series,
    limits,
    x: {label: times.name || "time", text: (time) => times.tick(time), domain: [0, last]},
    y: {text, fromZero: true, atLeast: peak / unit}, // one scale for all workers
    height: 120,
    legend: worker === 0 && run.timelines.length > 1,
  });
}

// ---- training ----

interface CurveKind {
  title: string;
  of: (report: JsonObject, run: Run) => number[];
  text: (value: number) => string;
}

const CURVES: CurveKind[] = [
  {title: "loss", of: (report) => asNumbers(report["losses"]), text: (value) => number(value, 4)},
  {title: "gradient norm", of: (report) => asNumbers(report["gradient_norms"]), text: (value) => number(value, 4)},
  {title: "learning rate", of: (report) => asNumbers(report["learning_rates"]), text: (value) => number(value, 3)},
  {title: "throughput", of: throughputs, text: (value) => number(value, 4)},
];

/** Samples a second of each step. The report has that of the median step after the first. */
function throughputs(report: JsonObject, run: Run): number[] {
  const rate = throughput(run);
  const seconds = asNumbers(report["step_seconds"]);
  if (!rate || seconds.length === 0) return [];
  const after = seconds.slice(seconds.length > 1 ? 1 : 0).sort((a, b) => a - b);
  const samples = Math.round(rate.rate * after[Math.floor(after.length / 2)]);
  return seconds.map((time) => samples / time);
}

export function trainingSection(runs: Run[]): HTMLElement | null {
  const charts = h("div", {class: "charts"});
  const trained = runs.filter((run) => Array.isArray(run.report["step_seconds"]));
  for (const kind of CURVES) {
    const series: Series[] = [];
    trained.forEach((run, r) => {
      const values = kind.of(run.report, run);
      if (values.length === 0) return;
      const first = asNumber(run.report["first_step"]) ?? 1;
      const name = trained.length > 1 ? run.title : kind.title;
      series.push({name, kind: `line-${r % 6}`, x: values.map((_, i) => first + i), y: values});
      if (kind.title !== "loss") return;
      const evaluations = asObjects(run.report["evaluations"]);
      if (evaluations.length > 0) {
        series.push({
          name: trained.length > 1 ? `${run.title}, validation` : "validation",
          kind: `line-${(r + 3) % 6} dashed`,
          x: evaluations.map((of) => asNumber(of["step"]) ?? NaN),
          y: evaluations.map((of) => asNumber(of["loss"]) ?? NaN),
          points: true,
        });
      }
    });
    if (series.length === 0) continue;
    const word = kind.title === "throughput" ? `${throughput(trained[0])?.word ?? "samples"}/s` : kind.title;
    charts.append(
      chart({
        title: word,
        series,
        x: {label: "step", text: (value) => (Number.isInteger(value) ? String(value) : "")},
        y: {text: kind.text, fromZero: kind.title !== "loss"},
        legend: series.length > 1,
      }),
    );
  }
  return charts.childElementCount > 0 ? section("Training", "training", charts) : null;
}

// ---- what the run was ----

/** Values with their paths: "model.kind". */
function leaves(value: Json, path: string, into: [string, string][]): void {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, member] of Object.entries(value)) leaves(member, path ? `${path}.${key}` : key, into);
    return;
  }
  into.push([path, value === null ? "" : Array.isArray(value) ? JSON.stringify(value) : String(value)]);
}

function differing(runs: Run[], of: (run: Run) => Json): HTMLElement {
  const all = runs.map((run) => {
    const pairs: [string, string][] = [];
    leaves(of(run), "", pairs);
    return new Map(pairs);
  });
  const names = [...new Set(all.flatMap((pairs) => [...pairs.keys()]))];
  const rows = names.map((name): (string | Cell)[] => {
    const values = all.map((pairs) => pairs.get(name) ?? "");
    const differs = values.some((value) => value !== values[0]);
    return [name, ...values.map((text): Cell => ({text, kind: differs ? "differs" : ""}))];
  });
  const heads = runs.length > 1 ? ["", ...runs.map((run) => run.title)] : [];
  return table(heads.length ? heads : ["", ""], rows, {words: runs.map((_, i) => i + 1), kind: "settings"});
}

export function aboutSection(runs: Run[]): HTMLElement | null {
  const parts: HTMLElement[] = [];
  const add = (title: string, has: (run: Run) => boolean, of: (run: Run) => Json, open: boolean): void => {
    const those = runs.filter(has);
    if (those.length === 0) return;
    parts.push(h("details", {open}, h("summary", {}, title), differing(those, of)));
  };
  const object =
    (key: string) =>
    (run: Run): JsonObject =>
      asObject(run.report[key]);
  const filled =
    (key: string) =>
    (run: Run): boolean =>
      Object.keys(object(key)(run)).length > 0;
  add("Configuration", filled("config"), object("config"), false);
  add("Versions", filled("versions"), object("versions"), false);
  add(
    "Machine",
    filled("machine"),
    (run) => ({
      ...object("machine")(run),
      time: run.report["time"] ?? null,
      configuration: run.report["config_file"] ?? null,
    }),
    false,
  );
  for (const run of runs) {
    const ranks = asObjects(run.report["ranks"]);
    if (ranks.length === 0) continue;
    const keys = [...new Set(ranks.flatMap((rank) => Object.keys(rank)))];
    const rows = ranks.map((rank) =>
      keys.map((key) => (typeof rank[key] === "object" ? JSON.stringify(rank[key]) : asTextOf(rank[key]))),
    );
    parts.push(
      h(
        "details",
        {open: true},
        h("summary", {}, runs.length > 1 ? `Ranks of ${run.title}` : "Ranks"),
        table(keys, rows, {words: keys.map((_, i) => i)}),
      ),
    );
  }
  return parts.length > 0 ? section("The run", "about", ...parts) : null;
}

function asTextOf(value: Json | undefined): string {
  return value === undefined || value === null ? "" : asText(value) || String(value);
}

export function footer(program: string, licences: Licence[]): HTMLElement {
  const keys = table(
    ["Keys and gestures, on the timelines", ""],
    [
      ["wheel, pinch, + and −", "zoom"],
      ["drag, ← and →, shift with the wheel", "pan"],
      ["0, Home", "show the whole step"],
      ["↑ and ↓", "scroll, where there are many workers"],
      ["click, Enter", "select a job: its chain of dependencies lights up; Escape selects none"],
      [", and .", "the job before, or after, on the same worker"],
      ["[ and ]", "a job that the selected one waits for, or one that waits for it"],
    ],
    {words: [1]},
  );
  const names = licences.map(({name, version, licence}) => `${name} ${version} (${licence})`).join(", ");
  return h(
    "footer",
    {},
    h("details", {}, h("summary", {}, "Keys and gestures"), keys),
    h(
      "details",
      {id: "licences-shown"},
      h("summary", {}, "Licences"),
      h("p", {}, `This page is part of starpipe (Apache-2.0) and contains ${names}.`),
      ...licences.map(({name, text}) => h("details", {}, h("summary", {}, name), h("pre", {}, text))),
    ),
    h("p", {class: "note"}, `Written by ${program}.`),
  );
}
