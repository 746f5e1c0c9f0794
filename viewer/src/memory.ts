// SPDX-License-Identifier: Apache-2.0
// What workers hold over time, and their limits.

import {chart, lineKind, type Series} from "./chart";
import {asNumber, asNumbers, asObject, type Json, type JsonObject, type Run, type Timeline} from "./data";
import {type Cell, h, section, table} from "./dom";
import {bytes, number, type Times} from "./format";
import {paged} from "./pager";

const MOST_CHARTS = 16;
/** How many times the peak a limit may be, and still be drawn to scale. */
const MOST_ROOM = 3;

/** What a worker holds from each time on. Times in units. */
interface Steps {
  time: ArrayLike<number> & Iterable<number>;
  value: ArrayLike<number> & Iterable<number>;
}

/** A kind of charts: what is drawn of a worker. */
interface View {
  name: string;
  note: string;
  inBytes: boolean;
  has: (run: Run) => boolean;
  /** Undefined where it is not known. */
  steps: (run: Run, timeline: Timeline, worker: number) => Steps | undefined;
  /** The largest value of a worker; NaN where it is not known. */
  peak: (run: Run, timeline: Timeline, worker: number) => number;
  limit: (run: Run, worker: number) => number | undefined;
}

/** What a report has under `key` of a worker: "memory" the parts at its peak, "memory_over_time" all bytes. */
function reported(key: "memory" | "memory_over_time", run: Run, timeline: Timeline, worker: number): JsonObject | undefined {
  const value = run.report[key];
  // `simulate` has one timeline.
  const ofTimeline: Json | undefined = Array.isArray(value) ? value : asObject(value)[timeline.title];
  return Array.isArray(ofTimeline) ? asObject(ofTimeline[worker]) : undefined;
}

function levelsOf(run: Run, timeline: Timeline, worker: number): Steps | undefined {
  const over = asObject(reported("memory_over_time", run, timeline, worker));
  const [time, value] = [asNumbers(over["time"]), asNumbers(over["bytes"])];
  return time.length > 0 && time.length === value.length ? {time, value} : undefined;
}

function heldBy(run: Run, {memory}: Timeline, worker: number, of: Float64Array): Steps {
  const [begin, end] = [memory.offsets[worker], memory.offsets[worker + 1]];
  return {time: memory.time.subarray(begin, end).map((tick) => tick * run.tick), value: of.subarray(begin, end)};
}

function stashLimit(run: Run, worker: number): number | undefined {
  const limit = run.schedule.memory_limits?.[worker];
  return limit !== undefined && limit < 1e9 ? limit : undefined;
}

/** A limit in bytes on stashes: that of a search. */
function searchLimit(run: Run, worker: number): number | undefined {
  const limits = asObject(run.report["search"])["memory_limit"];
  return Array.isArray(limits) ? asNumber(limits[worker]) : asNumber(limits);
}

/** `runtime.memory_limit`, which bounds all memory of each worker. */
function wholeLimit(run: Run, worker: number): number | undefined {
  const limits = run.timelines.map((timeline) => reported("memory_over_time", run, timeline, worker)?.["limit"]);
  return asNumber(limits.find((limit) => limit !== undefined));
}

const VIEWS: View[] = [
  {
    name: "all memory",
    note:
      "All that a worker needs, at most: weights, gradients, optimizer state, stashes, activations and workspace. " +
      "It is counted from the times of the jobs, as if the worker had memory of its own.",
    inBytes: true,
    has: (run) => run.timelines.some((timeline) => levelsOf(run, timeline, 0) !== undefined),
    steps: levelsOf,
    peak: (run, timeline, worker) => {
      const steps = levelsOf(run, timeline, worker);
      return steps ? largestOf(steps.value) : NaN;
    },
    limit: wholeLimit,
  },
  {
    name: "held for backward passes, in bytes",
    note: "What each worker holds for backward passes: stashes of F, and with a split backward pass those of B.",
    inBytes: true,
    has: (run) => run.hasBytes,
    steps: (run, timeline, worker) => heldBy(run, timeline, worker, timeline.memory.bytes),
    peak: (_, {figures}, worker) => figures.peak_stash_bytes[worker],
    limit: searchLimit,
  },
  {
    name: "number of stashes",
    note: "The stashes of F that each worker holds for backward passes.",
    inBytes: false,
    has: () => true,
    steps: (run, timeline, worker) => heldBy(run, timeline, worker, timeline.memory.stashes),
    peak: (_, {figures}, worker) => figures.peak_stashes[worker],
    limit: stashLimit,
  },
];

/** The views that some of the runs have. The first is the one with a limit, if one has. */
function viewsOf(runs: Run[]): View[] {
  const views = VIEWS.filter((view) => runs.some(view.has));
  const limited = views.findIndex((view) => runs.some((run) => view.has(run) && view.limit(run, 0) !== undefined));
  return limited > 0 ? [views[limited], ...views.filter((_, v) => v !== limited)] : views;
}

export function memorySection(runs: Run[], times: Times): HTMLElement {
  const element = section("Memory over time", "memory");
  const views = viewsOf(runs);
  const body = h("div", {});
  const note = h("p", {class: "note"});
  const show = (view: View): void => {
    note.textContent = view.note;
    body.replaceChildren(h("div", {class: "columns"}, ...runs.map((run) => ofRun(runs, run, view, times))));
  };
  if (views.length > 1) {
    const choice = h("select", {"aria-label": "What the charts show"});
    for (const {name} of views) choice.append(h("option", {value: name}, name));
    choice.addEventListener("change", () => show(views[choice.selectedIndex]));
    element.append(h("div", {class: "controls"}, choice));
  }
  show(views[0]);
  element.append(body, note);
  return element;
}

function ofRun(runs: Run[], run: Run, view: View, times: Times): HTMLElement {
  const title = runs.length > 1 ? h("h3", {}, run.title) : null;
  if (!view.has(run)) return h("div", {}, title, h("p", {}, "Not in this report."));
  const {workers} = run.schedule;
  const peaks = run.timelines.map((timeline) => Array.from({length: workers}, (_, w) => view.peak(run, timeline, w)));
  const peak = largestOf(peaks.map(largestOf));
  const scale = new Scale(view, peak);
  const charts = paged(workers, MOST_CHARTS, "workers", (begin, end) => {
    const shown = Array.from({length: end - begin}, (_, i) => begin + i);
    const parts = view === VIEWS[0] ? partsTable(run, shown) : null;
    return [
      h("div", {class: "charts"}, ...shown.map((w) => memoryChart(run, w, w === begin, view, scale, times))),
      ...(parts ? [parts] : []),
    ];
  });
  return h("div", {}, title, workers > MOST_CHARTS ? peakChart(run, view, scale, peaks) : null, charts);
}

/** Of the known values; 0 when there are none. */
function largestOf(values: ArrayLike<number>): number {
  let largest = 0;
  for (let i = 0; i < values.length; ++i) if (values[i] > largest) largest = values[i];
  return largest;
}

/** Bytes in a unit of which ticks are round numbers. */
class Scale {
  readonly unit: number;
  private readonly power: number;

  /** `peak`: of all workers, whose charts have one scale. */
  constructor(
    private readonly view: View,
    readonly peak: number,
  ) {
    this.power = view.inBytes ? Math.min(5, Math.max(0, Math.floor(Math.log2(Math.max(1, peak)) / 10))) : 0;
    this.unit = 1024 ** this.power;
  }
  text(value: number): string {
    return this.view.inBytes ? `${number(value, 4)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][this.power]}` : number(value);
  }
  limits(limit: number | undefined): {name: string; value: number; beyond: boolean}[] {
    if (limit === undefined) return [];
    const name = `limit ${this.view.inBytes ? bytes(limit) : number(limit)}`;
    return [{name, value: limit / this.unit, beyond: limit > MOST_ROOM * this.peak}];
  }
}

function memoryChart(run: Run, worker: number, legend: boolean, view: View, scale: Scale, times: Times): HTMLElement {
  const last = Math.max(...run.timelines.map((timeline) => timeline.last)) * run.tick;
  const series: Series[] = [];
  run.timelines.forEach((timeline, t) => {
    const steps = view.steps(run, timeline, worker);
    if (!steps) return;
    const {time, value} = steps;
    // A worker holds nothing before the first step, and what it holds after the last until the end.
    const before = time.length > 0 && time[0] <= 0 ? [] : [0];
    series.push({
      name: timeline.title,
      kind: lineKind(t),
      x: [...before, ...time, last],
      y: [...before, ...value, value[value.length - 1] ?? 0].map((of) => of / scale.unit),
      steps: true,
    });
  });
  return chart({
    title: `worker ${worker}`,
    series,
    limits: scale.limits(view.limit(run, worker)),
    x: {label: times.name || "time", text: (time) => times.tick(time), at: (time) => times.text(time), domain: [0, last]},
    y: {text: (value) => scale.text(value), fromZero: true, atLeast: scale.peak / scale.unit},
    height: 120,
    legend: legend && series.length > 1,
  });
}

/** The peaks of all workers, where their charts are not all shown. */
function peakChart(run: Run, view: View, scale: Scale, peaks: number[][]): HTMLElement {
  const {workers} = run.schedule;
  const series: Series[] = [];
  run.timelines.forEach((timeline, t) => {
    if (peaks[t].every(Number.isNaN)) return;
    const x = Array.from({length: workers + 1}, (_, w) => w);
    const y = [...peaks[t], peaks[t][workers - 1]].map((peak) => peak / scale.unit);
    series.push({name: timeline.title, kind: lineKind(t), x, y, steps: true});
  });
  const worker = (at: number): number => Math.min(workers - 1, Math.floor(at));
  const element = chart({
    title: "the most that each worker holds",
    series,
    limits: scale.limits(view.limit(run, 0)),
    x: {
      label: "worker",
      text: (w) => (Number.isInteger(w) ? String(w) : ""),
      at: (w) => `worker ${worker(w)}`,
      domain: [0, workers],
    },
    y: {text: (value) => scale.text(value), fromZero: true},
    height: 140,
    legend: series.length > 1,
  });
  element.classList.add("single");
  return element;
}

/** The parts of each worker's memory at its peak. */
function partsTable(run: Run, workers: number[]): HTMLElement | null {
  const timeline = [...run.timelines].reverse().find((of) => reported("memory", run, of, 0) !== undefined);
  if (!timeline) return null;
  const needs = workers.map((worker) => reported("memory", run, timeline, worker) ?? {});
  const names = Object.keys(needs[0]).filter((name) => typeof needs[0][name] === "number");
  const rows = needs.map((need, i): (string | Cell)[] => {
    const parts = names.map((name) => asNumber(need[name]) ?? 0);
    return [
      String(workers[i]),
      ...parts.map(bytes),
      bytes(parts.reduce((a, b) => a + b, 0)),
    ];
  });
  return table(["worker", ...names, "all"], rows, {caption: `At the peak, ${timeline.title}`, kind: "dense"});
}
