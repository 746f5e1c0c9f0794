// SPDX-License-Identifier: Apache-2.0
// A small chart of lines over one axis.

import {axisBottom, axisLeft} from "d3-axis";
import {extent} from "d3-array";
import {type ScaleLinear, scaleLinear} from "d3-scale";
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
  /** Horizontal lines. One that is `beyond` lies above the axis: its name stands at the top, with an arrow. */
  limits?: {name: string; value: number; beyond?: boolean}[];
  /** `at`: a value where the reader points, as in "step 3". */
  x: {label: string; text: (value: number) => string; at: (value: number) => string; domain?: [number, number]};
  /** `atLeast`: a value that the axis reaches. */
  y: {text: (value: number) => string; fromZero?: boolean; atLeast?: number};
  height?: number;
  legend?: boolean;
}

/** The class of line `i`: colours, then the same colours dashed, then dotted. */
export function lineKind(i: number): string {
  return `line-${i % 6}${["", " dashed", " dotted"][Math.floor(i / 6) % 3]}`;
}

const WIDTH = 320;
const MARGIN = {left: 58, right: 10, top: 6, bottom: 30};

/** Whether a value has a place on an axis: losses may be infinite, and those of a damaged report of any size. */
function hasPlace(value: number): boolean {
  return Math.abs(value) < 1e100; // as all amounts that the program reads
}

/** Extent of the values that have a place. */
function range(series: Series[], of: (s: Series) => ArrayLike<number>): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const one of series) {
    const values = of(one);
    for (let i = one.begin ?? 0; i < (one.end ?? values.length); ++i) {
      if (!hasPlace(values[i])) continue;
      low = Math.min(low, values[i]);
      high = Math.max(high, values[i]);
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

function isPoint(series: Series, i: number): boolean {
  return hasPlace(series.x[i]) && hasPlace(series.y[i]);
}

/** A pixel that SVG can have, for a place far outside the chart. */
function within(pixel: number): number {
  return Math.max(-1e4, Math.min(1e4, pixel));
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
    if (!isPoint(series, i)) {
      flush();
      open = false;
      column = NaN;
      continue;
    }
    const px = within(x(series.x[i]));
    const py = within(y(series.y[i]));
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
  const limits = (options.limits ?? []).filter(({value}) => hasPlace(value));
  const bottom = height - MARGIN.bottom;
  const [lowX, highX] = options.x.domain ?? range(options.series, (s) => s.x);
  const values = range(options.series, (s) => s.y);
  const [lowY = 0, highY = 1] = extent([
    ...values,
    options.y.atLeast ?? values[1],
    ...limits.filter(({beyond}) => !beyond).map(({value}) => value),
  ]);
  const floor = options.y.fromZero ? Math.min(0, lowY) : lowY;
  const x = scaleLinear([lowX, highX > lowX ? highX : lowX + 1], [MARGIN.left, WIDTH - MARGIN.right]);
  const y = scaleLinear([floor, highY > floor ? highY : floor + (Math.abs(floor) || 1)], [bottom, MARGIN.top + 4]).nice(
    4,
  );

  const drawing = svg("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`,
    tabindex: 0,
    role: "application",
    "aria-label": `${options.title}. Left and right arrows read values`,
  });
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
  for (const {name, value, beyond} of limits) {
    const at = beyond ? MARGIN.top : y(value);
    if (!beyond) drawing.append(svg("line", {class: "limit", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: at, y2: at}));
    const place = {x: WIDTH - MARGIN.right - 2, y: at < 20 ? at + 11 : at - 3, "text-anchor": "end"};
    drawing.append(svg("text", {class: "label", ...place}, beyond ? `↑ ${name}` : name));
  }
  for (const series of options.series) {
    drawing.append(svg("path", {class: `curve ${series.kind}`, d: pathOf(series, x, y)}));
    if (!series.points || series.x.length > WIDTH) continue; // more points than pixels are the curve
    for (let i = 0; i < series.x.length; ++i) {
      if (isPoint(series, i))
        drawing.append(svg("circle", {class: series.kind, cx: within(x(series.x[i])), cy: within(y(series.y[i])), r: 2.5}));
    }
  }
  const names = options.legend
    ? options.series.map((series) => h("span", {class: `key ${series.kind}`}, h("i", {}), series.name))
    : [];
  return h(
    "figure",
    {class: "chart"},
    h("figcaption", {}, h("b", {}, options.title), ...names),
    drawing,
    readout(options, drawing, x, [MARGIN.top, bottom]),
  );
}

/** The entry of a series to read at `at`: the step that holds there, or the nearest point. -1: none. */
function entryAt(series: Series, at: number): number {
  const begin = series.begin ?? 0;
  const end = series.end ?? series.x.length;
  const i = lastAtMost(series.x, at, begin, end);
  const next = !series.steps && i + 1 < end && (i < begin || series.x[i + 1] - at < at - series.x[i]);
  const found = next ? i + 1 : i;
  return found < begin || !hasPlace(series.x[found]) ? -1 : found;
}

/** Shows the values where the pointer is, or where the arrow keys have led. */
function readout(
  options: ChartOptions,
  drawing: SVGElement,
  x: ScaleLinear<number, number>,
  [top, bottom]: [number, number],
): HTMLElement {
  const cursor = svg("line", {class: "cursor", y1: top, y2: bottom, visibility: "hidden"});
  drawing.append(cursor);
  const element = h("div", {class: "readout", role: "status", hidden: true});
  const [low, high] = x.domain();
  const points = options.series.find((series) => !series.steps);
  let at = low;
  const show = (where: number): void => {
    at = Math.max(low, Math.min(high, where));
    // The points of one series say where: those of others may lie beside it.
    const first = points ? entryAt(points, at) : -1;
    const shown = points && first >= 0 ? points.x[first] : at;
    const lines = options.series.map((series) => {
      const i = entryAt(series, shown);
      if (i < 0) return `${series.name}: none yet`;
      const elsewhere = !series.steps && series.x[i] !== shown ? ` (${options.x.at(series.x[i])})` : "";
      return `${series.name}: ${options.y.text(series.y[i])}${elsewhere}`;
    });
    element.replaceChildren(...[options.x.at(shown), ...lines].map((line) => h("div", {}, line)));
    element.hidden = false;
    element.classList.toggle("left", x(shown) > WIDTH * 0.55);
    cursor.setAttribute("x1", String(x(shown)));
    cursor.setAttribute("x2", String(x(shown)));
    cursor.setAttribute("visibility", "visible");
  };
  const hide = (): void => {
    cursor.setAttribute("visibility", "hidden");
    element.hidden = true;
  };
  const follow = (event: PointerEvent): void => show(x.invert(pointer(event, drawing)[0]));
  drawing.addEventListener("pointerdown", follow);
  drawing.addEventListener("pointermove", follow);
  drawing.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "touch") hide(); // a finger that is lifted leaves what it has asked for
  });
  drawing.addEventListener("blur", hide);
  drawing.addEventListener("keydown", (event) => {
    const step = points && points.x.length > 1 ? 1 : (high - low) / 100;
    const to: {[key: string]: number} = {ArrowLeft: at - step, ArrowRight: at + step, Home: low, End: high};
    if (event.key === "Escape") hide();
    else if (to[event.key] === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    else show(element.hidden ? at : to[event.key]);
    event.preventDefault();
  });
  return element;
}
