// SPDX-License-Identifier: Apache-2.0
// Why a step took as long as it did: parts of the difference, idle time by cause, the critical path, what is slow.

import {extent} from "d3-array";
import {asNumber, asNumbers, asObject, asObjects, asText, CAUSES, causesOf, type Json, type Run, type Timeline} from "./data";
import {type Cell, h, section, svg, table} from "./dom";
import {number, percent, signed, type Times} from "./format";
import {isCopy, PASSES} from "./jobs";
import {paged} from "./pager";
import {MEANING} from "./tip";

const NANOSECOND = 1e-9;

/** A card for each run that has one, side by side. Null when none has. */
function cards(title: string, id: string, runs: Run[], make: (run: Run) => (Node | null)[]): HTMLElement | null {
  const columns = h("div", {class: "columns"});
  for (const run of runs) {
    const parts = make(run).filter((part) => part !== null);
    if (parts.length > 0) columns.append(h("div", {}, runs.length > 1 ? h("h3", {}, run.title) : null, ...parts));
  }
  return columns.childElementCount > 0 ? section(title, id, columns) : null;
}

/** "measured", or "simulated" of a report of `sim`. */
function foundTitle(run: Run): string {
  return run.timelines[run.timelines.length - 1].title;
}

const PARTS: [string, string][] = [
  ["durations", "jobs took other times than predicted"],
  ["transfers", "results took other times to arrive"],
  ["order", "jobs ran in another order, or on other workers"],
  ["runtime", "StarPU, the policy, the operating system"],
];

export function differenceSection(runs: Run[], times: Times): HTMLElement | null {
  const titles = new Set(runs.filter((run) => run.report["explain"] !== undefined).map(foundTitle));
  const found = titles.size === 1 ? [...titles][0] : "measured";
  return cards(`From predicted to ${found}`, "difference", runs, (run) => {
    const explain = asObject(run.report["explain"]);
    const steps = asObject(explain["steps"]);
    const perStep = asObject(explain["per_step"]);
    const predicted = asNumber(perStep["predicted"]);
    const measured = asNumbers(perStep["measured"]);
    const [first, median] = [asNumber(steps["first"]), asNumber(steps["median"])];
    if (predicted === undefined || first === undefined || median === undefined || measured.length === 0) return [];
    const at = median - first;
    const share = (time: number): string => signed((time / predicted) * 100, "%");
    const text = (time: number): string => times.difference(time * NANOSECOND);
    const [least = 0, most = 0] = extent(measured);
    const spread = (values: number[]): string => {
      const [low = NaN, high = NaN] = extent(values);
      return `${text(low).replace(/ [^ ]*$/, "")} to ${text(high)}`;
    };
    const rows = [
      ["predicted", times.text(predicted * NANOSECOND), "", "", ""],
      ...PARTS.map(([name, meaning]) => {
        const values = asNumbers(perStep[name]);
        return [name, text(values[at]), share(values[at]), spread(values), meaning];
      }),
      [
        foundTitle(run),
        times.text(measured[at] * NANOSECOND),
        share(measured[at] - predicted),
        `${times.number(least * NANOSECOND)} to ${times.text(most * NANOSECOND)}`,
        "",
      ],
    ];
    const all = measured.length > 1 ? `steps ${first} to ${first + measured.length - 1}` : `step ${first}`;
    return [
      table(["", "time", "of predicted", all, ""], rows, {words: [4], kind: "sum", totals: 1}),
      h("p", {class: "note"}, `The parts add up. Of step ${median}, which has the median makespan of ${all}.`),
    ];
  });
}

/** Ticks by worker: idle by cause. */
function idleSums({idle, workers}: Timeline): Float64Array[] {
  return Array.from({length: workers}, (_, w) => {
    const sums = new Float64Array(CAUSES.length);
    for (let i = idle.offsets[w]; i < idle.offsets[w + 1]; ++i) sums[idle.cause[i]] += idle.end[i] - idle.start[i];
    return sums;
  });
}

/** Workers whose bars and rows are shown at a time. */
const MOST_BARS = 64;

export function idleSection(runs: Run[], times: Times): HTMLElement | null {
  const legend = h("p", {class: "legend"}, h("span", {class: "key busy"}, h("i", {}), "busy"));
  const causes = causesOf(runs);
  for (const cause of causes) legend.append(h("span", {class: `key idle-${cause}`}, h("i", {}), cause));
  const element = cards("Where each worker’s time went", "idle", runs, (run) => idleParts(run, times));
  if (runs.some((run) => run.timelines.length > 1)) element?.classList.add("wide");
  element?.insertBefore(legend, element.children[1]);
  const meanings = causes.map((cause) => [cause, MEANING[cause]]);
  element?.append(h("details", {}, h("summary", {}, "Why a worker is idle"), table(["", ""], meanings, {words: [1]})));
  return element;
}

function idleParts(run: Run, times: Times): Node[] {
  const {timelines} = run;
  const several = timelines.length > 1;
  const causes = causesOf([run]);
  const sums = timelines.map(idleSums);
  const span = timelines.map((timeline) => timeline.last - timeline.first);
  /** Of the step: busy, then by cause. */
  const shares = (t: number, w: number): number[] => {
    if (!(span[t] > 0)) return [0, ...causes.map(() => 0)];
    const idle = causes.map((cause) => sums[t][w][CAUSES.indexOf(cause)] / span[t]);
    return [1 - idle.reduce((a, b) => a + b, 0), ...idle];
  };
  const {workers} = run.schedule;
  const all = Array.from({length: workers}, (_, w) => w);
  const means = timelines.map((_, t) =>
    ["", ...causes].map((_, k) => all.reduce((sum, w) => sum + shares(t, w)[k], 0) / workers),
  );
  const line = (name: string, t: number, values: number[]): string[] => [
    t === 0 ? name : "",
    ...(several ? [timelines[t].title] : []),
    ...values.map((share) => (share * 100).toFixed(1)),
  ];
  const titles = timelines.map(({title}) => title);
  const shown = paged(workers, MOST_BARS, "workers", (begin, end) => {
    const rows = all.slice(begin, end).flatMap((w) => timelines.map((_, t) => line(String(w), t, shares(t, w))));
    rows.push(...timelines.map((_, t) => line("mean", t, means[t])));
    const heads = ["worker", ...(several ? [""] : []), "busy", ...causes];
    return [
      h(
        "div",
        {class: "columns"},
        h("div", {}, idleBars(run, times, begin, end, shares)),
        h("div", {}, table(heads, rows, {kind: "dense", words: several ? [1] : [], totals: timelines.length})),
      ),
    ];
  });
  const order = several ? ` The bars of each worker are, from above: ${titles.join(", ")}.` : "";
  const of = workers > MOST_BARS ? ` The mean is of all ${workers} workers.` : "";
  return [shown, h("p", {class: "note"}, `Percent of the step.${of}${order}`)];
}

function idleBars(
  run: Run,
  times: Times,
  begin: number,
  end: number,
  shares: (t: number, w: number) => number[],
): SVGElement {
  const several = run.timelines.length;
  const room = Math.max(300, 26 * several) / (end - begin);
  const bar = Math.max(2, Math.min(several > 2 ? 6 : 9, Math.floor(room / several) - 1));
  const row = several * (bar + 1) + (bar > 4 ? 5 : 2);
  const width = 640;
  const drawing = svg("svg", {
    class: "bars",
    viewBox: `0 0 ${width} ${(end - begin) * row + 2}`,
    role: "img",
    "aria-label": "Busy and idle time of each worker, as in the table",
  });
  const kinds = ["busy", ...causesOf([run])];
  for (let w = begin; w < end; ++w) {
    const top = (w - begin) * row;
    if ((w - begin) % Math.ceil(11 / row) === 0) {
      const y = top + (several * (bar + 1)) / 2 + 4;
      drawing.append(svg("text", {class: "label", x: 20, y, "text-anchor": "end"}, String(w)));
    }
    for (let t = 0; t < several; ++t) {
      let x = 26;
      const length = (run.timelines[t].last - run.timelines[t].first) * run.tick;
      shares(t, w).forEach((share, k) => {
        const part = Math.max(0, share) * (width - 26);
        const text = `${run.timelines[t].title}, worker ${w}: ${kinds[k]} ${times.text(share * length)}, ${percent(share)}`;
        if (part > 0.05)
          drawing.append(
            svg(
              "rect",
              {class: k === 0 ? "busy" : `idle-${kinds[k]}`, x, y: top + t * (bar + 1), width: part, height: bar},
              svg("title", {}, text),
            ),
          );
        x += part;
      });
    }
  }
  return drawing;
}

interface PathSum {
  name: string;
  count: number;
  ticks: number;
  kind: string;
}

/** The critical path by kind of job, link, and the runtime; the largest first. */
function pathSums(run: Run, timeline: Timeline): PathSum[] {
  const {path, entry} = timeline;
  const sums = new Map<string, PathSum>();
  for (let i = 0; i < path.kind.length; ++i) {
    const job = run.jobs.job(path.job[i]);
    const worker = timeline.workerOf(entry[path.job[i]]);
    const name = [
      `${PASSES[job.pass]} of stage ${run.jobs.label(job.stage)} on worker ${worker}`,
      `transfer from worker ${path.from[i]} to ${worker}`,
      "runtime",
    ][path.kind[i]];
    const kind = [isCopy(job.pass) ? "copy" : "compute", "transfer", "runtime"][path.kind[i]];
    const sum = sums.get(name) ?? {name, count: 0, ticks: 0, kind};
    sum.count += 1;
    sum.ticks += path.end[i] - path.start[i];
    sums.set(name, sum);
  }
  return [...sums.values()].sort((a, b) => b.ticks - a.ticks);
}

export function pathSection(runs: Run[], times: Times): HTMLElement | null {
  const element = cards("Critical path", "path", runs, (run) => {
    // Of a prediction and a measurement the measurement; of several policies each.
    const shown = run.timelines.length > 2 ? run.timelines : run.timelines.slice(-1);
    return [
      h("div", {class: "columns"}, ...shown.map((timeline) => pathTable(run, timeline, times, shown.length > 1 ? 6 : 12))),
      h(
        "p",
        {class: "note"},
        "The chain of jobs, transfers and delays that made the step as long as it was. To shorten the step, shorten these.",
      ),
    ];
  });
  if (runs.some((run) => run.timelines.length > 2)) element?.classList.add("wide");
  return element;
}

function pathTable(run: Run, timeline: Timeline, times: Times, most: number): HTMLElement {
  const all = pathSums(run, timeline);
  const total = all.reduce((sum, {ticks}) => sum + ticks, 0);
  const rows = all.slice(0, most).map(({name, count, ticks, kind}): (string | Cell)[] => [
    name,
    String(count),
    times.fine(ticks * run.tick),
    percent(ticks / total),
    {
      text: "",
      node: h("span", {class: `share ${kind}`, style: `width:${((ticks / all[0].ticks) * 100).toFixed(1)}%`}),
      kind: "share-cell",
    },
  ]);
  if (all.length > most) {
    const rest = all.slice(most);
    const ticks = rest.reduce((sum, of) => sum + of.ticks, 0);
    rows.push([
      `${rest.length} more`,
      String(rest.reduce((sum, of) => sum + of.count, 0)),
      times.text(ticks * run.tick),
      percent(ticks / total),
      "",
    ]);
  }
  return table([timeline.title, "times", "time", "of the step", ""], rows);
}

export function slownessSection(runs: Run[], times: Times): HTMLElement | null {
  const time = (value: Json | undefined): string => times.fine((asNumber(value) ?? 0) * NANOSECOND);
  const text = (value: Json | undefined): string => (value === undefined || value === null ? "" : String(value));
  const element = cards("What is slow", "slow", runs, (run) => {
    const explain = asObject(run.report["explain"]);
    const kernels = asObjects(explain["kernels"]).slice(0, 8);
    const links = asObjects(explain["links"]).slice(0, 8);
    const waits = asObjects(explain["waited_for"]).slice(0, 5);
    const linkWaits = asObjects(explain["waited_for_transfers"]).slice(0, 5);
    const kernel = (of: (typeof kernels)[0]): string =>
      `${asText(of["pass"])} of stage ${run.jobs.label(asNumber(of["stage"]) ?? 0)} on worker ${text(of["worker"])}`;
    const link = (of: (typeof links)[0]): string => `worker ${text(of["from"])} to ${text(of["to"])}`;
    const ratio = (of: (typeof links)[0]): string => `${number(asNumber(of["times_typical"]) ?? 1, 3)} ×`;
    const tables = [
      kernels.length
        ? table(
            ["Slowest kernels", "jobs", "mean", "of typical"],
            kernels.map((of) => [kernel(of), text(of["jobs"]), time(of["mean"]), ratio(of)]),
          )
        : null,
      links.length
        ? table(
            ["Slowest links", "transfers", "median", "of typical"],
            links.map((of) => [link(of), text(of["transfers"]), time(of["median"]), ratio(of)]),
          )
        : null,
      waits.length
        ? table(
            ["Jobs that workers waited for longest", "time"],
            waits.map((of) => [kernel(of), time(of["time"])]),
          )
        : null,
      linkWaits.length
        ? table(
            ["Transfers that workers waited for longest", "time"],
            linkWaits.map((of) => [link(of), time(of["time"])]),
          )
        : null,
    ].filter((of) => of !== null);
    return tables.length > 0 ? [h("div", {class: "tables"}, ...tables)] : [];
  });
  element?.classList.add("wide");
  return element;
}
