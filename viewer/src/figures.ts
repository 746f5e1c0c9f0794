// SPDX-License-Identifier: Apache-2.0
// The figures of runs, and how they differ.

import {asNumber, asObject, asText, type Figures, inLine, type Run, type Timeline} from "./data";
import {type Cell, h, section, table} from "./dom";
import {bytes, change, counted, number, percent, signed, type Times} from "./format";
import {copies} from "./jobs";

interface Figure {
  name: string;
  of: (figures: Figures) => number;
  text: (value: number, times: Times) => string;
  /** Shares differ by points. */
  points?: boolean;
  /** Whether it says something of this run. */
  applies?: (run: Run) => boolean;
}

const most = (values: number[]): number => values.reduce((a, b) => Math.max(a, b), 0);
const sum = (values: number[]): number => values.reduce((a, b) => a + b, 0);
/** Between workers: L brings stashes back from their homes. */
const total = ({received}: Figures, what: "count" | "bytes"): number =>
  sum(Object.keys(received).map((kind) => (kind === "reloads" ? 0 : sum(received[kind][what]))));
export const reloaded = ({received}: Figures, what: "count" | "bytes"): number => sum(received["reloads"]?.[what] ?? []);

const FIGURES: Figure[] = [
  {name: "makespan", of: (f) => f.makespan, text: (v, times) => times.text(v)},
  {
    name: "with gradients summed",
    of: (f) => f.gradients_summed ?? 0,
    text: (v, times) => times.text(v),
    applies: (run) => run.timelines.every((timeline) => timeline.figures.gradients_summed !== undefined),
  },
  {name: "bubble fraction, by makespan", of: (f) => f.bubble_fraction, text: (v) => percent(v), points: true},
  {
    name: "recomputation, by makespan",
    of: (f) => f.recomputed_fraction,
    text: (v) => percent(v),
    points: true,
    applies: (run) => run.schedule.recomputes,
  },
  {name: "device span", of: (f) => f.device_span, text: (v, times) => times.text(v)},
  {name: "bubble fraction, by device span", of: (f) => f.device_bubble_fraction, text: (v) => percent(v), points: true},
  {name: "peak stashes of a worker", of: (f) => most(f.peak_stashes), text: (v) => number(v)},
  {
    name: "peak stash bytes of a worker",
    of: (f) => most(f.peak_stash_bytes),
    text: bytes,
    applies: (run) => run.hasBytes,
  },
  {name: "transfers between workers", of: (f) => total(f, "count"), text: (v) => number(v, 9)},
  {name: "bytes between workers", of: (f) => total(f, "bytes"), text: bytes, applies: (run) => run.hasBytes},
  {
    name: "stashes brought back",
    of: (f) => reloaded(f, "count"),
    text: (v) => number(v, 9),
    applies: (run) => copies(run.schedule),
  },
  {
    name: "bytes brought back",
    of: (f) => reloaded(f, "bytes"),
    text: bytes,
    applies: (run) => run.hasBytes && copies(run.schedule),
  },
];

function difference(figure: Figure, from: Timeline, to: Timeline): string {
  const a = figure.of(from.figures);
  const b = figure.of(to.figures);
  if (!figure.points) return change(a, b);
  return Math.abs(b - a) < 1e-6 ? "equal" : signed((b - a) * 100, "points");
}

/** The word for samples of a run ("tokens", "samples"), and how many a second the median step had. */
export function throughput(run: Run): {word: string; rate: number} | undefined {
  const key = Object.keys(run.report).find((name) => name.endsWith("_per_second"));
  const rate = key === undefined ? undefined : asNumber(run.report[key]);
  return key === undefined || rate === undefined ? undefined : {word: inLine(key.slice(0, -"_per_second".length)), rate};
}

/** What a report shows: "Training step of gpt, schedule 1f1b". */
export function headline({report, schedule, timelines}: Run): string {
  const model = asText(asObject(asObject(report["config"])["model"])["kind"]);
  const simulated = timelines[timelines.length - 1].title === "simulated";
  const step = report["step_seconds"] === undefined && !simulated ? "" : `${simulated ? "Simulated training" : "Training"} step`;
  const what = step || (report["policies"] === undefined ? "" : "Policies compared");
  if (!what) return `Schedule ${schedule.name}`;
  return `${what}${model ? ` of ${inLine(model)}` : ""}, schedule ${schedule.name}`;
}

/** One line on what a run is. */
export function subtitle(run: Run): string {
  const {schedule, report, title} = run;
  const ranks = Array.isArray(report["ranks"]) ? report["ranks"].length : 0;
  const policy = asObject(report["policy"]);
  return [
    ...(title === schedule.name ? [] : [schedule.name]),
    counted(schedule.workers, "worker"),
    counted(schedule.stages, "stage"),
    counted(schedule.microbatches, "micro-batch"),
    schedule.discipline,
    ...(schedule.recomputes ? ["recomputation"] : []),
    ...(copies(schedule) ? ["copies of stashes"] : []),
    ...(ranks > 0 ? [counted(ranks, "rank")] : []),
    ...(asText(policy["ran"]) ? [`policy ${inLine(asText(policy["ran"]))}`] : []),
    ...(report["emulated"] === true ? ["emulated"] : []),
  ].join(", ");
}

/** A search's lower bound and method, as sentences; empty for other runs. */
export function searchSentences(run: Run, times: Times): string[] {
  const bound = asNumber(run.report["lower_bound"]);
  const search = asObject(run.report["search"]);
  if (bound === undefined) return [];
  const {makespan} = run.timelines[0].figures;
  const above = bound > 0 ? `${percent(makespan / bound - 1, 2)} above` : "above";
  const sentences = [`No schedule ends before ${times.text(bound)}: this one is ${above} this lower bound.`];
  if (search["seed"] !== undefined) {
    const complete = search["complete"] === true ? "which it did not use up" : "which ended it: another run may differ";
    sentences.push(
      `Found by tabu search with seed ${search["seed"]} and a budget of ${search["budget"]} s, ${complete}. ` +
        `Layout ${asText(search["layout"])}, ${counted(asNumber(search["chunks"]) ?? 1, "chunk")} a worker.`,
    );
  }
  return sentences;
}

function key(name: string, value: string, note = ""): HTMLElement {
  return h(
    "div",
    {class: "key-figure"},
    h("span", {class: "name"}, name),
    h("span", {class: "value"}, value),
    h("span", {class: "note"}, note),
  );
}

/** The figures of more than two timelines: a row each. */
function wideTable(run: Run, times: Times): HTMLElement {
  const figures = FIGURES.filter((figure) => figure.applies?.(run) ?? true);
  const first = run.timelines[0];
  const heads = ["", ...figures.flatMap((figure, f) => (f === 0 ? [figure.name, `to ${first.title}`] : [figure.name]))];
  const rows = run.timelines.map((timeline, t): (string | Cell)[] => [
    timeline.title,
    ...figures.flatMap((figure, f): Cell[] => {
      const value = {text: figure.text(figure.of(timeline.figures), times)};
      const differs = {text: t === 0 ? "" : difference(figure, first, timeline), kind: "difference"};
      return f === 0 ? [value, differs] : [value];
    }),
  ]);
  return table(heads, rows, {kind: "wrapped"});
}

/** The few figures that one looks for first. */
export function keyFigures(run: Run, times: Times): HTMLElement {
  const first = run.timelines[0];
  const last = run.timelines[run.timelines.length - 1];
  const both = run.timelines.length > 1;
  if (run.timelines.length > 2) {
    return h(
      "div",
      {class: "key-figures"},
      ...run.timelines.map(({title, figures}) =>
        key(`makespan, ${title}`, times.text(figures.makespan), `bubble fraction ${percent(figures.bubble_fraction)}`),
      ),
    );
  }
  const note = both
    ? `${times.text(first.figures.makespan)} ${first.title}: ${change(first.figures.makespan, last.figures.makespan)}`
    : "";
  const element = h(
    "div",
    {class: "key-figures"},
    key(both ? `makespan, ${last.title}` : "makespan", times.text(last.figures.makespan), note),
  );
  element.append(
    key(
      "bubble fraction",
      percent(last.figures.bubble_fraction),
      both ? `${percent(first.figures.bubble_fraction)} ${first.title}` : "by makespan",
    ),
  );
  if (run.schedule.recomputes)
    element.append(key("recomputation", percent(last.figures.recomputed_fraction), "F computed again, by makespan"));
  const rate = throughput(run);
  if (rate) element.append(key("throughput", `${number(rate.rate, 4)} ${rate.word}/s`, "median step after the first"));
  const bound = asNumber(run.report["lower_bound"]);
  if (bound !== undefined)
    element.append(
      key("lower bound", times.text(bound), `makespan ${percent(last.figures.makespan / bound - 1, 2)} above`),
    );
  element.append(
    key(
      "peak stashes",
      number(most(last.figures.peak_stashes)),
      run.hasBytes ? bytes(most(last.figures.peak_stash_bytes)) : "of a worker",
    ),
  );
  const losses = Array.isArray(run.report["losses"]) ? run.report["losses"] : [];
  const final = asNumber(losses[losses.length - 1]);
  if (final !== undefined)
    element.append(key("last loss", number(final, 4), `after ${counted(losses.length, "step")}`));
  return element;
}

/** The table of differences: of a run's timelines, or of several runs. */
export function figuresSection(runs: Run[], times: Times): HTMLElement {
  const element = section(runs.length > 1 ? "Differences" : "Figures", "figures");
  const reference = runs[0].timelines[runs[0].timelines.length - 1];
  if (runs.length > 1) {
    const rows = FIGURES.filter((figure) => runs.every((run) => figure.applies?.(run) ?? true)).map(
      (figure): (string | Cell)[] => [
        figure.name,
        ...runs.flatMap((run, r): Cell[] => {
          const timeline = run.timelines[run.timelines.length - 1];
          const value = {text: figure.text(figure.of(timeline.figures), times)};
          return r === 0 ? [value] : [value, {text: difference(figure, reference, timeline), kind: "difference"}];
        }),
      ],
    );
    const rates = runs.map(throughput);
    if (rates.every((rate) => rate !== undefined)) {
      rows.push([
        `${rates[0].word} a second`,
        ...rates.flatMap((rate, r): Cell[] => {
          const value = {text: number(rate.rate, 4)};
          return r === 0 ? [value] : [value, {text: change(rates[0].rate, rate.rate), kind: "difference"}];
        }),
      ]);
    }
    const heads = ["", ...runs.flatMap((run, r) => (r === 0 ? [run.title] : [run.title, `to ${runs[0].title}`]))];
    element.append(table(heads, rows));
    element.append(h("p", {class: "note"}, `Of each report the last timeline (${reference.title}).`));
  }
  const columns = h("div", {class: "columns"});
  const allAbove = runs.length > 1 && runs.every(({timelines}) => timelines.length === 1);
  for (const run of runs) {
    const sentences = searchSentences(run, times).map((text) => h("p", {}, text));
    if (allAbove) {
      if (sentences.length > 0) columns.append(h("div", {}, h("h3", {}, run.title), ...sentences));
      continue;
    }
    if (run.timelines.length > 2) {
      columns.append(h("div", {}, runs.length > 1 ? h("h3", {}, run.title) : null, wideTable(run, times)));
      element.classList.add("wide");
      continue;
    }
    const first = run.timelines[0];
    const several = run.timelines.length > 1;
    const rows = FIGURES.filter((figure) => figure.applies?.(run) ?? true).map((figure): (string | Cell)[] => [
      figure.name,
      ...run.timelines.flatMap((timeline, t): Cell[] => {
        const value = {text: figure.text(figure.of(timeline.figures), times)};
        return t === 0 ? [value] : [value, {text: difference(figure, first, timeline), kind: "difference"}];
      }),
    ]);
    const between = asObject(run.report["bytes_between_ranks"]);
    const [predicted, found] = [first, run.timelines[run.timelines.length - 1]].map(({title}) => asNumber(between[title]));
    if (several && predicted !== undefined && found !== undefined)
      rows.push([
        "bytes between ranks, whole run",
        bytes(predicted),
        bytes(found),
        {text: change(predicted, found), kind: "difference"},
      ]);
    const heads = [
      "",
      ...run.timelines.flatMap((timeline, t) => (t === 0 ? [timeline.title] : [timeline.title, "difference"])),
    ];
    columns.append(
      h(
        "div",
        {},
        runs.length > 1 ? h("h3", {}, run.title) : null,
        table(several ? heads : ["", first.title], rows),
        ...sentences,
      ),
    );
  }
  element.append(columns);
  return element;
}
