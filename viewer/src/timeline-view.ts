// SPDX-License-Identifier: Apache-2.0
// The timelines under each other on one time axis: zoom, pan, hover and selection.

import {scaleLinear} from "d3-scale";
import {select} from "d3-selection";
import {type D3ZoomEvent, type ZoomBehavior, type ZoomTransform, zoom, zoomIdentity, zoomTransform} from "d3-zoom";
import {lastAtMost} from "./data";
import {h} from "./dom";
import {type ColourBy, drawLane, type Picture, placeOf} from "./draw";
import type {Times} from "./format";
import {factsOf} from "./job-text";
import {arrange, isLow, type JobOfRun, type Lane} from "./lane";
import {colours, onThemeChange} from "./theme";
import {idleLines, jobLines} from "./tip";

const LEFT = 48;
const RIGHT = 10;
const AXIS = 24;

export interface ViewOptions {
  colourBy: ColourBy;
  showPath: boolean;
  showIdle: boolean;
  /** Rows as high as labels need, also where not all of them then fit. */
  tallRows: boolean;
}

export class TimelineView {
  readonly element: HTMLElement;
  readonly canvas: HTMLCanvasElement;
  readonly options: ViewOptions = {colourBy: "pass", showPath: false, showIdle: true, tallRows: false};
  /** Called after each change of the selection, and of the times shown. */
  onSelect: (selected: JobOfRun | null) => void = () => {};
  onZoom: (from: number, to: number) => void = () => {};
  /** Called after rows have got their height, with whether they are too low for labels. */
  onLayout: (low: boolean) => void = () => {};
  /** Milliseconds that the last drawing took. */
  drawTime = 0;

  private readonly scroller: HTMLElement;
  private readonly spacer: HTMLElement;
  private readonly tip: HTMLElement;
  private readonly behaviour: ZoomBehavior<HTMLCanvasElement, unknown>;
  private readonly picture: Picture;
  /** The whole time axis, in units. */
  private readonly begin: number;
  private readonly end: number;
  private asked = false;
  private printing = false;

  constructor(
    private readonly lanes: Lane[],
    private readonly times: Times,
  ) {
    this.begin = Math.min(0, ...lanes.map(({run, timeline}) => timeline.first * run.tick));
    const last = Math.max(...lanes.map(({run, timeline}) => timeline.last * run.tick));
    this.end = last > this.begin ? last : this.begin + 1;
    this.canvas = h("canvas", {
      tabindex: 0,
      role: "application",
      "aria-label":
        "Timelines. Plus and minus zoom, arrows pan, Enter selects a job, comma and full stop go to its neighbours, brackets along its dependencies, n to the next report",
    });
    this.spacer = h("div", {class: "spacer"});
    this.scroller = h("div", {class: "lanes"}, this.canvas, this.spacer);
    this.tip = h("div", {class: "tip", role: "tooltip", hidden: true});
    this.element = h("div", {class: "timelines"}, this.scroller, this.tip);
    const context = this.canvas.getContext("2d");
    if (!context) throw new Error("this browser has no canvas");
    this.picture = {
      context,
      colours: colours(),
      ratio: 1,
      width: 0,
      height: 0,
      left: LEFT,
      right: 0,
      from: this.begin,
      to: this.end,
      scroll: 0,
      top: AXIS,
      ...this.options,
      grid: [],
      hovered: null,
      selected: null,
    };
    this.behaviour = zoom<HTMLCanvasElement, unknown>()
      .filter(
        (event: MouseEvent) =>
          !event.button && !(event.type === "wheel" && (event.shiftKey || isSideways(event as WheelEvent))),
      )
      .scaleExtent([1, this.mostZoom()])
      .on("zoom", ({transform}: D3ZoomEvent<HTMLCanvasElement, unknown>) => this.follow(transform));
    select(this.canvas).call(this.behaviour).on("dblclick.zoom", null);
    this.listen();
  }

  get hovered(): JobOfRun | null {
    return this.picture.hovered;
  }
  get selected(): JobOfRun | null {
    return this.picture.selected;
  }
  /** The times at the left and the right edge, in units. */
  get shown(): [number, number] {
    return [this.picture.from, this.picture.to];
  }

  /** To be called once the element is in the document. */
  start(): void {
    new ResizeObserver(() => this.resize()).observe(this.element);
    onThemeChange(() => {
      this.picture.colours = colours();
      this.draw();
    });
    this.picture.colours = colours();
    addEventListener("beforeprint", () => this.forPrint(true));
    addEventListener("afterprint", () => this.forPrint(false));
    this.resize();
  }

  /** Shows the times from `from` to `to`. */
  show(from: number, to: number): void {
    const {left, right} = this.picture;
    const whole = this.end - this.begin;
    const k = Math.min(Math.max(1, whole / Math.max(to - from, 1e-300)), this.mostZoom());
    const middle = (from + to) / 2;
    const x = left + ((middle - this.begin) / whole) * (right - left);
    const transform = zoomIdentity.translate((left + right) / 2 - k * x, 0).scale(k);
    this.behaviour.transform(select(this.canvas), transform);
  }

  /** Selects a job and brings it into view; null: none. */
  select(job: JobOfRun | null): void {
    this.picture.selected = job;
    if (job) this.reveal(job);
    this.onSelect(job);
    this.redraw();
  }

  hover(job: JobOfRun | null): void {
    if (same(job, this.picture.hovered)) return;
    this.picture.hovered = job;
    this.redraw();
  }

  /** Draws with the present options, before the next frame. */
  redraw(): void {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.draw();
    });
  }

  /** Where a job is in the window: the middle of its bar. For tests. */
  placeOf(lane: number, id: number): {x: number; y: number} | null {
    const place = placeOf(this.picture, this.lanes[lane], id);
    if (!place) return null;
    const box = this.canvas.getBoundingClientRect();
    return {x: box.left + (place.x0 + place.x1) / 2, y: box.top + place.top + place.height / 2};
  }

  // ---- drawing ----

  private draw(): void {
    const before = performance.now();
    const {picture} = this;
    Object.assign(picture, this.options);
    picture.scroll = this.scroller.scrollTop;
    const {context} = picture;
    context.setTransform(picture.ratio, 0, 0, picture.ratio, 0, 0);
    context.fillStyle = picture.colours.background;
    context.fillRect(0, 0, picture.width, picture.height);
    this.drawGrid();
    context.save();
    context.beginPath();
    context.rect(0, AXIS, picture.width, picture.height - AXIS);
    context.clip();
    for (const lane of this.lanes) drawLane(picture, lane);
    context.restore();
    this.drawTime = performance.now() - before;
  }

  private drawGrid(): void {
    const {context, colours: of, left, right, from, to, height} = this.picture;
    const scale = scaleLinear([this.times.shown(from), this.times.shown(to)], [left, right]);
    const ticks = scale.ticks(Math.max(2, Math.floor((right - left) / 110)));
    const label = scale.tickFormat(ticks.length);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "center";
    this.picture.grid = ticks.map((tick) => Math.round(scale(tick)));
    for (const [t, tick] of ticks.entries()) {
      const x = this.picture.grid[t];
      context.fillStyle = of.line;
      context.fillRect(x, AXIS - 5, 1, height);
      context.fillStyle = of.muted;
      const text = label(tick);
      const half = context.measureText(text).width / 2;
      if (x - half > left - 5 && x + half < right - 24) context.fillText(text, x, AXIS / 2 - 1);
    }
    context.textAlign = "right";
    context.fillText("worker", left - 7, AXIS / 2 - 1);
    if (this.times.name) context.fillText(this.times.name, right + RIGHT - 2, AXIS / 2 - 1);
  }

  /** For paper: of its width, so that text has the size of the page's. */
  private forPrint(printing: boolean): void {
    this.printing = printing;
    this.resize();
  }

  /** Fits the drawing to the element, to the window and to the options. */
  resize(): void {
    const {picture} = this;
    const [from, to] = this.shown;
    const width = this.printing ? 760 : Math.max(240, this.element.clientWidth);
    const room = Math.max(220, Math.min(innerHeight * 0.84, 1000));
    const all = arrange(this.lanes, room - AXIS, this.options.tallRows) + AXIS;
    this.onLayout(isLow(this.lanes));
    const height = this.printing ? Math.min(all, 4000) : Math.min(all, room);
    picture.ratio = this.printing ? 3 : Math.min(3, devicePixelRatio || 1);
    picture.width = width;
    picture.height = height;
    picture.right = width - RIGHT;
    this.canvas.width = Math.round(width * picture.ratio);
    this.canvas.height = Math.round(height * picture.ratio);
    this.canvas.style.height = `${height}px`;
    this.scroller.style.height = `${height}px`;
    this.spacer.style.height = `${all - height}px`;
    this.behaviour.extent([
      [picture.left, 0],
      [picture.right, height],
    ]);
    this.behaviour.translateExtent([
      [picture.left, 0],
      [picture.right, height],
    ]);
    this.show(from, to);
    this.draw();
  }

  // ---- zoom and pan ----

  /** So that the view is at least a thousandth of a mean job. */
  private mostZoom(): number {
    return 1000 * Math.max(...this.lanes.map(({timeline}) => timeline.count / timeline.workers), 1);
  }

  private follow(transform: ZoomTransform): void {
    const {picture} = this;
    const whole = this.end - this.begin;
    const at = (x: number): number =>
      this.begin + ((transform.invertX(x) - picture.left) / (picture.right - picture.left)) * whole;
    picture.from = at(picture.left);
    picture.to = at(picture.right);
    this.onZoom(picture.from, picture.to);
    this.redraw();
  }

  private pan(share: number): void {
    const width = (this.picture.right - this.picture.left) / zoomTransform(this.canvas).k;
    this.behaviour.translateBy(select(this.canvas), -share * width, 0);
  }

  private scale(factor: number): void {
    const middle: [number, number] = [(this.picture.left + this.picture.right) / 2, 0];
    this.behaviour.scaleBy(select(this.canvas), factor, middle);
  }

  private reveal(job: JobOfRun): void {
    const lane = this.lanes.find((of) => of.run === job.run && of.timeline.entry[job.id] >= 0);
    if (!lane) return;
    const {timeline, run} = lane;
    const entry = timeline.entry[job.id];
    const start = timeline.start[entry] * run.tick;
    const end = timeline.end[entry] * run.tick;
    const {from, to} = this.picture;
    const narrow = ((end - start) / (to - from)) * (this.picture.right - this.picture.left) < 4;
    if (end < from || start > to || narrow) {
      const span = narrow ? Math.max((end - start) * 30, (100 * (this.end - this.begin)) / this.mostZoom()) : to - from;
      this.show((start + end - span) / 2, (start + end + span) / 2);
    }
    const row = timeline.rowOf(entry);
    const place = lane.rowTop(row);
    const top = this.scroller.scrollTop;
    const height = this.picture.height - AXIS;
    if (place < top || place + lane.heightOf(row) > top + height) this.scroller.scrollTop = place - height / 2;
  }

  // ---- hover, click, keys ----

  private listen(): void {
    const {canvas} = this;
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("click", (event) => this.select(this.hit(event)?.job ?? null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("wheel", (event) => this.wheel(event), {passive: false});
    this.scroller.addEventListener("scroll", () => this.redraw());
  }

  private wheel(event: WheelEvent): void {
    if (!event.shiftKey && !isSideways(event)) return;
    event.preventDefault();
    const pixels = (event.deltaX || event.deltaY) * (event.deltaMode === 1 ? 16 : 1);
    this.pan(pixels / (this.picture.right - this.picture.left));
  }

  private hit(event: MouseEvent): {lane: Lane; row: number; time: number; job: JobOfRun | null} | null {
    const {picture} = this;
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top - AXIS + this.scroller.scrollTop;
    if (x < picture.left || x > picture.right || event.clientY - box.top < AXIS) return null;
    const lane = this.lanes.find((of) => of.rowAt(y) >= 0);
    if (!lane) return null;
    const row = lane.rowAt(y);
    const perPixel = (picture.to - picture.from) / (picture.right - picture.left);
    const time = picture.from + (x - picture.left) * perPixel;
    const {timeline, run} = lane;
    const tick = time / run.tick;
    const begin = timeline.offsets[row];
    const i = lastAtMost(timeline.start, tick, begin, timeline.offsets[row + 1]);
    const slack = Math.min(2, picture.width) * (perPixel / run.tick); // jobs narrower than a pixel can be hit
    const found = i >= begin && timeline.end[i] + slack >= tick ? i : -1;
    return {lane, row, time, job: found < 0 ? null : {run, id: timeline.id[found]}};
  }

  private point(event: PointerEvent): void {
    if (event.buttons !== 0) {
      this.tip.hidden = true;
      return;
    }
    const hit = this.hit(event);
    this.hover(hit?.job ?? null);
    if (!hit) {
      this.tip.hidden = true;
      return;
    }
    const lines = hit.job
      ? jobLines(hit.lane, hit.job, this.times)
      : idleLines(hit.lane, hit.row, hit.time, this.times);
    this.tip.hidden = lines.length === 0;
    this.tip.replaceChildren(...lines.map((line, i) => h("div", {class: i === 0 ? "title" : undefined}, line)));
    const box = this.element.getBoundingClientRect();
    const {offsetWidth: width, offsetHeight: height} = this.tip;
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    this.tip.style.left = `${Math.max(0, x + 14 + width > box.width ? x - width - 10 : x + 14)}px`;
    this.tip.style.top = `${y + 16 + height > box.height && y > height + 10 ? y - height - 8 : y + 16}px`;
  }

  private leave(): void {
    this.tip.hidden = true;
    this.hover(null);
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.press(event.key)) event.preventDefault();
  }

  /** Does what a key does. Returns whether it does anything. */
  press(key: string): boolean {
    const acts: {[key: string]: () => void} = {
      ArrowLeft: () => this.pan(-0.15),
      ArrowRight: () => this.pan(0.15),
      ArrowUp: () => (this.scroller.scrollTop -= 40),
      ArrowDown: () => (this.scroller.scrollTop += 40),
      "+": () => this.scale(1.5),
      "=": () => this.scale(1.5),
      "-": () => this.scale(1 / 1.5),
      "0": () => this.show(this.begin, this.end),
      Home: () => this.show(this.begin, this.end),
      ",": () => this.step("previous"),
      ".": () => this.step("next"),
      "[": () => this.step("before"),
      "]": () => this.step("after"),
      n: () => this.selectInNextRun(),
      Enter: () => this.selectMiddle(),
      Escape: () => this.select(null),
    };
    const act = acts[key];
    act?.();
    return act !== undefined;
  }

  /** From the selected job to the one before or after on its worker, or along its dependencies. */
  private step(where: "previous" | "next" | "before" | "after"): void {
    const {selected} = this.picture;
    if (!selected) {
      this.selectMiddle();
      return;
    }
    const {run, id} = selected;
    const lane = this.lanes.find((of) => of.run === run);
    const facts = lane && factsOf(run, lane.timeline, id);
    if (!facts) return;
    const other =
      where === "previous" || where === "next" ? facts[where] : run.jobs[where](id).at(where === "before" ? -1 : 0);
    if (other !== undefined) this.select({run, id: other});
  }

  /** The same job in the next report that has it; else a job in the middle of the next report. */
  private selectInNextRun(): void {
    const runs = [...new Set(this.lanes.map(({run}) => run))];
    const {selected} = this.picture;
    if (!selected) {
      this.selectMiddle();
      return;
    }
    const {stage, microbatch, pass} = selected.run.jobs.job(selected.id);
    const at = runs.indexOf(selected.run);
    const others = [...runs.slice(at + 1), ...runs.slice(0, at)];
    if (others.length === 0) return;
    const run = others.find(({jobs}) => jobs.find(stage, microbatch, pass) !== undefined);
    const id = run?.jobs.find(stage, microbatch, pass);
    if (run && id !== undefined) this.select({run, id});
    else this.selectMiddle(this.lanes.find((lane) => lane.run === others[0]));
  }

  private selectMiddle(lane = this.lanes[0]): void {
    const {from, to} = this.picture;
    const {timeline, run} = lane;
    for (let worker = 0; worker < timeline.workers; ++worker) {
      const begin = timeline.offsets[worker];
      const i = lastAtMost(timeline.start, (from + to) / 2 / run.tick, begin, timeline.offsets[worker + 1]);
      if (i < begin) continue;
      this.select({run, id: timeline.id[i]});
      return;
    }
  }
}

function same(a: JobOfRun | null, b: JobOfRun | null): boolean {
  return a === b || (a !== null && b !== null && a.run === b.run && a.id === b.id);
}

function isSideways(event: WheelEvent): boolean {
  return Math.abs(event.deltaX) > Math.abs(event.deltaY);
}
