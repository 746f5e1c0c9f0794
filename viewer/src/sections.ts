// SPDX-License-Identifier: Apache-2.0
// Training curves, and what the run was.

import {
  asNumber,
  asNumbers,
  asObject,
  asObjects,
  type Json,
  type JsonObject,
  type Licence,
  type Run,
} from "./data";
import {chart, lineKind, type Series} from "./chart";
import {type Cell, h, section, table} from "./dom";
import {throughput} from "./figures";
import {counted, listed, number} from "./format";

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
      const name = trained.length > 1 ? run.title : kind.title === "loss" ? "training" : kind.title;
      series.push({name, kind: lineKind(r), x: values.map((_, i) => first + i), y: values});
      if (kind.title !== "loss") return;
      const evaluations = asObjects(run.report["evaluations"]);
      if (evaluations.length > 0) {
        series.push({
          name: trained.length > 1 ? `${run.title}, validation` : "validation",
          kind: trained.length > 1 ? `${lineKind(r)} dashed` : `${lineKind(3)} dashed`,
          x: evaluations.map((of) => asNumber(of["step"]) ?? NaN),
          y: evaluations.map((of) => asNumber(of["loss"]) ?? NaN),
          points: true,
        });
      }
    });
    if (series.length === 0) continue;
    const clips = new Set(trained.map(clipOf));
    const clip = kind.title === "gradient norm" && clips.size === 1 ? [...clips][0] : undefined;
    const word = kind.title === "throughput" ? `${throughput(trained[0])?.word ?? "samples"}/s` : kind.title;
    charts.append(
      chart({
        title: word,
        series,
        ...(clip === undefined ? {} : {limits: [{name: `clip ${number(clip)}`, value: clip}]}),
        x: {label: "step", text: (value) => (Number.isInteger(value) ? String(value) : ""), at: (value) => `step ${value}`},
        y: {text: kind.text, fromZero: kind.title !== "loss"},
        legend: series.length > 1,
      }),
    );
  }
  if (charts.childElementCount === 0) return null;
  const notes = trained.flatMap((run) => eventsOf(run).map((text) => (trained.length > 1 ? `${run.title}: ${text}` : text)));
  return section("Training", "training", charts, ...notes.map((text) => h("p", {class: "note"}, text)));
}

function clipOf(run: Run): number | undefined {
  return asNumber(asObject(asObject(run.report["config"])["training"])["clip"]);
}

/** What happened in single steps: sentences. */
function eventsOf({report}: Run): string[] {
  const sentences: string[] = [];
  const clipped = asNumber(asObject(report["clipped_steps"])["count"]);
  if (clipped !== undefined) sentences.push(`The gradient was clipped in ${counted(clipped, "step")}.`);
  const skipped = asObjects(asObject(report["skipped_steps"])["steps"]);
  if (skipped.length > 0) {
    const steps = skipped.map(({step}) => String(step)).slice(0, 20).join(", ");
    const more = skipped.length > 20 ? ", …" : "";
    sentences.push(`The update was skipped in ${counted(skipped.length, "step")}, for infinity or NaN: ${steps}${more}.`);
  }
  return sentences;
}

// ---- what the run was ----

/** Values with their paths: "model.kind". */
function leaves(value: Json, path: string, into: [string, string][]): void {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, member] of Object.entries(value)) leaves(member, path ? `${path}.${key}` : key, into);
    return;
  }
  into.push([path, textOf(value)]);
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

const RANK_WORDS: {[key: string]: string} = {
  binding: "hardware threads it may use",
  bound_by: "chosen by",
  workers_bound: "each on its own core",
  mpi_thread: "MPI’s thread",
  logical_workers: "numbers of its workers",
  devices: "where its workers run",
  transport: "messages over",
  products: "matrix products by",
};

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
    const keys = [...new Set(ranks.flatMap((rank) => Object.keys(rank)))].filter((key) => key !== "rank");
    const rows = ranks.map((rank, r) => [textOf(rank["rank"] ?? r), ...keys.map((key) => textOf(rank[key]))]);
    const heads = ["rank", ...keys.map((key) => RANK_WORDS[key] ?? key.replaceAll("_", " "))];
    parts.push(
      h(
        "details",
        {open: true},
        h("summary", {}, runs.length > 1 ? `Ranks of ${run.title}` : "Ranks"),
        table(heads, rows, {words: heads.map((_, i) => i), kind: "ranks"}),
      ),
    );
  }
  return parts.length > 0 ? section("The run", "about", ...parts) : null;
}

function textOf(value: Json | undefined): string {
  if (value === undefined || value === null) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (!Array.isArray(value)) return typeof value === "object" ? JSON.stringify(value) : String(value);
  return value.every((entry) => typeof entry !== "object") ? listed(value.map(String)) : JSON.stringify(value);
}

export function footer(program: string, licences: Licence[]): HTMLElement {
  const keys = table(
    ["Keys and gestures, most of them on the timelines", ""],
    [
      ["wheel, pinch, + and −", "zoom"],
      ["drag, ← and →, shift with the wheel", "pan"],
      ["0, Home", "show the whole step"],
      ["↑ and ↓", "scroll, where there are many workers"],
      ["click, Enter", "select a job: its chain of dependencies lights up; Escape selects none"],
      [", and .", "the job before, or after, on the same worker"],
      ["[ and ]", "a job that the selected one waits for, or one that waits for it"],
      ["n", "the same job in the next report, where there are several"],
      ["← and → on a chart", "its values; Escape hides them"],
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
