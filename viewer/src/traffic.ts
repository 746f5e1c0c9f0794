// SPDX-License-Identifier: Apache-2.0
// What moved between workers: a matrix with numbers for few workers, a map of colours for many.

import type {Run, Traffic} from "./data";
import {type Cell, h, section, svg, table} from "./dom";
import {reloaded} from "./figures";
import {bytes, counted, number} from "./format";
import {copies} from "./jobs";

/** Workers up to which cells have numbers, and above which only the largest pairs are listed. */
const MOST_NUMBERS = 12;
const MOST_CELLS = 256;
const LEVELS = 5;

export function trafficSection(runs: Run[]): HTMLElement {
  const columns = h("div", {class: "columns"});
  for (const run of runs) {
    const parts = run.timelines.map((timeline, t) => {
      const [first] = run.timelines;
      if (t > 0 && isEqual(timeline.traffic, first.traffic)) return null;
      const same = run.timelines.filter((other, o) => o > t && isEqual(other.traffic, first.traffic) && t === 0);
      const titles = [timeline, ...same].map((one) => one.title).join(", ");
      return h("div", {}, run.timelines.length > 1 ? h("h4", {}, titles) : null, of(run, timeline.traffic));
    });
    const title = runs.length > 1 ? h("h3", {}, run.title) : null;
    columns.append(h("div", {}, title, h("div", {class: "tables"}, ...parts), copied(run)));
  }
  const note = h("p", {class: "note"}, "In one step: rows send, columns receive.");
  const element = section("What moved between workers", "traffic", columns, note);
  if (runs.some(({schedule, timelines}) => timelines.length > 2 || (schedule.workers > 6 && schedule.workers <= MOST_NUMBERS)))
    element.classList.add("wide");
  return element;
}

/** What moved between workers and homes: the copies of all timelines are the same. */
function copied(run: Run): HTMLElement | null {
  if (!copies(run.schedule)) return null;
  const [{figures}] = run.timelines;
  if (reloaded(figures, "count") === 0) return null; // between workers, above
  const size = run.hasBytes ? ` (${bytes(reloaded(figures, "bytes"))})` : "";
  const stashes = counted(reloaded(figures, "count"), "stash");
  return h("p", {}, `Besides, O copied ${stashes}${size} from workers to their homes, and L copied them back.`);
}

function isEqual(a: Traffic[], b: Traffic[]): boolean {
  return (
    a.length === b.length &&
    a.every((pair, i) => {
      const other = b[i];
      return (
        pair.from === other.from && pair.to === other.to && pair.count === other.count && pair.bytes === other.bytes
      );
    })
  );
}

function of(run: Run, traffic: Traffic[]): HTMLElement {
  if (traffic.length === 0) return h("p", {}, "Nothing.");
  const value = (pair: Traffic): number => (run.hasBytes ? pair.bytes : pair.count);
  const text = run.hasBytes ? bytes : (count: number): string => number(count, 9);
  const most = traffic.reduce((largest, pair) => Math.max(largest, value(pair)), 0);
  const level = (pair: Traffic): number => (most > 0 ? Math.ceil((value(pair) / most) * LEVELS) : 1);
  const caption = run.hasBytes ? "Bytes" : "Number of transfers: the report knows no sizes";
  const {workers} = run.schedule;
  if (workers <= MOST_NUMBERS) return numbers(traffic, workers, value, text, level, caption);
  if (workers <= MOST_CELLS) return colours(traffic, workers, value, text, level, caption);
  return h("div", {}, ...largestPairs(traffic, value, text));
}

const MOST_PAIRS = 40;

/** The pairs of workers that exchange most, as words: for those who cannot point at the map. */
function largestPairs(traffic: Traffic[], value: Value, text: (value: number) => string): Node[] {
  const rows = [...traffic]
    .sort((a, b) => value(b) - value(a))
    .slice(0, MOST_PAIRS)
    .map((pair) => [`${pair.from} to ${pair.to}`, number(pair.count, 9), text(value(pair))]);
  const note = `The largest of ${counted(traffic.length, "pair")}.`;
  return [
    table(["workers", "transfers", "in all"], rows),
    ...(traffic.length > MOST_PAIRS ? [h("p", {class: "note"}, note)] : []),
  ];
}

type Value = (pair: Traffic) => number;

function numbers(
  traffic: Traffic[],
  workers: number,
  value: Value,
  text: (value: number) => string,
  level: Value,
  caption: string,
): HTMLElement {
  const pairs = new Map(traffic.map((pair) => [pair.from * workers + pair.to, pair]));
  const sum = (which: (pair: Traffic) => boolean): string =>
    text(traffic.filter(which).reduce((total, pair) => total + value(pair), 0));
  const all = Array.from({length: workers}, (_, w) => w);
  const line = (from: number): (string | Cell)[] => [
    String(from),
    ...all.map((to): Cell => {
      const pair = pairs.get(from * workers + to);
      if (!pair) return {text: from === to ? "" : "·", kind: "none"};
      return {text: text(value(pair)), kind: `heat-${level(pair)}`};
    }),
    sum((pair) => pair.from === from),
  ];
  const received = ["received", ...all.map((to) => sum((pair) => pair.to === to)), sum(() => true)];
  const heads = ["from \\ to", ...all.map(String), "sent"];
  return table(heads, [...all.map(line), received], {kind: "matrix", caption, totals: 1});
}

function colours(
  traffic: Traffic[],
  workers: number,
  value: Value,
  text: (value: number) => string,
  level: Value,
  caption: string,
): HTMLElement {
  const cell = Math.max(2, Math.floor(520 / workers));
  const margin = 28;
  const size = workers * cell;
  const drawing = svg("svg", {
    class: "bars",
    viewBox: `0 0 ${margin + size + 1} ${margin + size + 1}`,
    role: "img",
    "aria-label": caption,
  });
  drawing.append(svg("rect", {class: "frame", x: margin, y: margin, width: size, height: size}));
  for (const pair of traffic) {
    const title = `${pair.from} to ${pair.to}: ${text(value(pair))}, ${counted(pair.count, "transfer")}`;
    const place = {x: margin + pair.to * cell, y: margin + pair.from * cell, width: cell, height: cell};
    drawing.append(svg("rect", {class: `heat-${level(pair)}`, ...place}, svg("title", {}, title)));
  }
  const every = Math.ceil(24 / cell);
  for (let w = 0; w < workers; w += every) {
    const middle = margin + (w + 0.5) * cell;
    drawing.append(
      svg("text", {x: middle, y: margin - 6, "text-anchor": "middle"}, String(w)),
      svg("text", {x: margin - 6, y: middle + 4, "text-anchor": "end"}, String(w)),
    );
  }
  const total = traffic.reduce((sum, pair) => sum + value(pair), 0);
  const most = traffic.reduce((largest, pair) => (value(pair) > value(largest) ? pair : largest));
  const note = `In all ${text(total)}; the most from ${most.from} to ${most.to}: ${text(value(most))}.`;
  const words = h("details", {}, h("summary", {}, "The largest pairs"), ...largestPairs(traffic, value, text));
  return h("div", {}, h("p", {class: "note"}, `${caption}. ${note}`), drawing, words);
}
