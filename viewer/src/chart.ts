// SPDX-License-Identifier: Apache-2.0
// A small chart of lines over one axis.

import {axisBottom, axisLeft} from "d3-axis";
import {extent} from "d3-array";
import {scaleLinear} from "d3-scale";
import {pointer, select} from "d3-selection";
import {lastAtMost} from "./data";
import {h, svg} from "./dom";

export interface Series {
  name: string;
  /** A class of the style sheet, which gives colour and dashes. */
  kind: string;
  x: ArrayLike<number>;
  y: ArrayLike<number>;
  /** Entries from `begin` to `end`; all without. */
  begin?: number;
  end?: number;
  /** A value holds until the next. */
  steps?: boolean;
  points?: boolean;
}

export interface ChartOptions {
  title: string;
  series: Series[];
  /** Horizontal lines. */
  limits?: {name: string; value: number}[];
  x: {label: string; text: (value: number) => string; domain?: [number, number]};
  /** `atLeast`: a value that the axis reaches. */
  y: {text: (value: number) => string; fromZero?: boolean; atLeast?: number};
  height?: number;
  legend?: boolean;
}

const WIDTH = 420;
const MARGIN = {left: 58, right: 10, top: 6, bottom: 30};

/** Extent of the finite values. */
function range(series: Series[], of: (s: Series) => ArrayLike<number>): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const one of series) {
    const values = of(one);
    for (let i = one.begin ?? 0; i < (one.end ?? values.length); ++i) {
      if (!Number.isFinite(values[i])) continue;
      low = Math.min(low, values[i]);
      high = Math.max(high, values[i]);
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

/** A path through the values; of those in one pixel the first, the smallest, the largest and the last. */
function pathOf(series: Series, x: (v: number) => number, y: (v: number) => number): string {
  const begin = series.begin ?? 0;
  const end = series.end ?? series.x.length;
  const parts: string[] = [];
  let open = false;
  let column = NaN;
  let pending: [number, number] | null = null;
  let low = 0;
  let high = 0;
  let lastY = 0;
  const flush = (): void => {
    if (!pending) return;
    const [px, py] = pending;
    if (low < Math.min(py, lastY)) parts.push(`L${px},${low.toFixed(1)}`);
    if (high > Math.max(py, lastY)) parts.push(`L${px},${high.toFixed(1)}`);
    if (low < py || high > py) parts.push(`L${px},${lastY.toFixed(1)}`);
    pending = null;
  };
  for (let i = begin; i < end; ++i) {
    if (!Number.isFinite(series.y[i])) {
      flush();
      open = false;
      column = NaN;
      continue;
    }
    const px = x(series.x[i]);
    const py = y(series.y[i]);
    const at = Math.round(px * 2) / 2;
    if (at === column && pending) {
      low = Math.min(low, py);
      high = Math.max(high, py);
      lastY = py;
      continue;
    }
    flush();
    if (series.steps && open) parts.push(`L${px.toFixed(1)},${lastY.toFixed(1)}`);
    parts.push(`${open ? "L" : "M"}${px.toFixed(1)},${py.toFixed(1)}`);
    open = true;
    column = at;
    pending = [Number(px.toFixed(1)), py];
    low = high = lastY = py;
  }
  flush();
  return parts.join("");
}

export function chart(options: ChartOptions): HTMLElement {
  const height = options.height ?? 170;
  const bottom = height - MARGIN.bottom;
  const [lowX, highX] = options.x.domain ?? range(options.series, (s) => s.x);
  const values = range(options.series, (s) => s.y);
  const [lowY = 0, highY = 1] = extent([
    ...values,
    options.y.atLeast ?? values[1],
    ...(options.limits ?? []).map(({value}) => value),
  ]);
  const floor = options.y.fromZero ? Math.min(0, lowY) : lowY;
  const x = scaleLinear([lowX, highX > lowX ? highX : lowX + 1], [MARGIN.left, WIDTH - MARGIN.right]);
  const y = scaleLinear([floor, highY > floor ? highY : floor + (Math.abs(floor) || 1)], [bottom, MARGIN.top + 4]).nice(
    4,
  );

  const drawing = svg("svg", {viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": options.title});
  const left = svg("g", {class: "axis", transform: `translate(${MARGIN.left},0)`});
  const below = svg("g", {class: "axis", transform: `translate(0,${bottom})`});
  select(left).call(
    axisLeft(y)
      .ticks(4)
      .tickSizeOuter(0)
      .tickSizeInner(-(WIDTH - MARGIN.left - MARGIN.right))
      .tickFormat((v) => options.y.text(Number(v))),
  );
  select(below).call(
    axisBottom(x)
      .ticks(5)
      .tickSizeOuter(0)
      .tickFormat((v) => options.x.text(Number(v))),
  );
  drawing.append(left, below);
  drawing.append(
    svg("text", {class: "label", x: WIDTH - MARGIN.right, y: height - 2, "text-anchor": "end"}, options.x.label),
  );
  for (const {name, value} of options.limits ?? []) {
    drawing.append(
      svg("line", {class: "limit", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(value), y2: y(value)}),
      svg(
        "text",
        {
          class: "label",
          x: WIDTH - MARGIN.right - 2,
          y: y(value) < 20 ? y(value) + 11 : y(value) - 3,
          "text-anchor": "end",
        },
        name,
      ),
    );
  }
  for (const series of options.series) {
    drawing.append(svg("path", {class: `curve ${series.kind}`, d: pathOf(series, x, y)}));
    if (!series.points) continue;
    for (let i = 0; i < series.x.length; ++i) {
      if (Number.isFinite(series.y[i]))
        drawing.append(svg("circle", {class: series.kind, cx: x(series.x[i]), cy: y(series.y[i]), r: 2.5}));
    }
  }
  const cursor = svg("line", {class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden"});
  drawing.append(cursor);
  const readout = h("span", {class: "readout", "aria-hidden": true});
  drawing.addEventListener("pointermove", (event) => {
    const at = x.invert(Math.max(MARGIN.left, Math.min(WIDTH - MARGIN.right, pointer(event, drawing)[0])));
    const texts: string[] = [];
    let shown = at;
    for (const series of options.series) {
      const begin = series.begin ?? 0;
      const end = series.end ?? series.x.length;
      let i = lastAtMost(series.x, at, begin, end);
      if (!series.steps && i + 1 < end && (i < begin || series.x[i + 1] - at < at - series.x[i])) ++i;
      if (i < begin) continue;
      if (!series.steps) shown = series.x[i];
      texts.push(`${series.name} ${options.y.text(series.y[i])}`);
    }
    cursor.setAttribute("x1", String(x(shown)));
    cursor.setAttribute("x2", String(x(shown)));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `${options.x.label} ${options.x.text(shown)}: ${texts.join(", ")}`;
  });
  drawing.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = "";
  });
  const names = options.legend
    ? options.series.map((series) => h("span", {class: `key ${series.kind}`}, h("i", {}), series.name))
    : [];
  return h("figure", {class: "chart"}, h("figcaption", {}, h("b", {}, options.title), ...names, readout), drawing);
}
