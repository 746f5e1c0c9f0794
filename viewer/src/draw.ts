// SPDX-License-Identifier: Apache-2.0
// Draws timelines on a canvas. Where jobs are narrower than some pixels, a column of pixels shows the share of time that
// each pass takes, exactly: so drawing takes O(pixels log jobs), however many jobs there are.

import {CAUSES, lastAtMost, type Run} from "./data";
import {F, O, PASSES, R} from "./jobs";
import {type JobOfRun, type Lane, HEADER} from "./lane";
import type {Colours} from "./theme";

export type ColourBy = "pass" | "micro-batch" | "stage";

/** Light for F, R and O, dark for the other passes: the palette of the SVG drawings (src/plan/drawing/svg_text.hpp). */
const HUES: readonly (readonly [string, string])[] = [
  ["#a9d0f2", "#1c5d9c"],
  ["#fbd19b", "#a85200"],
  ["#a3dfc8", "#0b6e53"],
  ["#e6c0e4", "#86358a"],
  ["#f0e48f", "#766500"],
  ["#f8bcb3", "#a82a22"],
  ["#a5e2ea", "#0c6879"],
  ["#d3d7dc", "#4a535e"],
];

/** What is drawn, and where. Times in units. */
export interface Picture {
  context: CanvasRenderingContext2D;
  colours: Colours;
  ratio: number;
  /** Pixels of the page: of the canvas, and where rows begin and end. */
  width: number;
  height: number;
  left: number;
  right: number;
  /** The time at `left` and at `right`. */
  from: number;
  to: number;
  /** How far lanes are scrolled up, and where they begin below the axis. */
  scroll: number;
  top: number;
  colourBy: ColourBy;
  showPath: boolean;
  showIdle: boolean;
  /** Pixels of the vertical lines. */
  grid: number[];
  hovered: JobOfRun | null;
  selected: JobOfRun | null;
}

/** Opacity of jobs behind a chain that lights up. */
const DIMMED = 0.28;

/** Pixels of a job below which its row is drawn as shares. */
const NARROW = 2.5;

export function drawLane(picture: Picture, lane: Lane): void {
  const {context, colours, left, right} = picture;
  const y = lane.top - picture.scroll + picture.top;
  if (y > picture.height || y + lane.height < picture.top) return;
  context.fillStyle = colours.text;
  context.font = "600 12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillText(fitted(context, lane.title, `: ${lane.makespan}`, right - 8), 8, y + HEADER / 2 + 1);
  const chain = picture.selected?.run === lane.run ? lane.run.jobs.chain(picture.selected.id) : null;
  const xOf = scaleOf(picture, lane.run);
  for (let row = 0; row < lane.timeline.rows; ++row) {
    const top = lane.rowTop(row) - picture.scroll + picture.top;
    const height = lane.heightOf(row);
    if (top > picture.height || top + height < picture.top) continue;
    context.fillStyle = colours.panel;
    context.fillRect(left, top, right - left, height - 1);
    context.fillStyle = colours.line;
    for (const x of picture.grid) context.fillRect(x, top, 1, height - 1);
    context.fillStyle = colours.muted;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    if (row < lane.timeline.workers && row % Math.ceil(12 / lane.pitch) === 0)
      context.fillText(String(row), left - 7, top + height / 2);
    context.save();
    context.beginPath();
    context.rect(left, top, right - left, height);
    context.clip();
    drawRow(picture, lane, row, top, xOf, chain !== null);
    context.restore();
  }
  context.save();
  context.beginPath();
  context.rect(left, Math.max(picture.top, y), right - left, lane.height);
  context.clip();
  if (picture.showPath && !chain) drawPath(picture, lane, xOf);
  if (chain) {
    for (const id of chain.jobs) drawOne(picture, lane, id, xOf);
    drawLinks(picture, lane, chain.links, xOf);
  }
  if (picture.hovered?.run === lane.run) {
    if (!chain) drawLinks(picture, lane, lane.run.jobs.chain(picture.hovered.id).links, xOf);
    outline(picture, lane, picture.hovered.id, xOf, colours.text);
  }
  if (chain && picture.selected) outline(picture, lane, picture.selected.id, xOf, colours.selected);
  context.restore();
}

/** `name` and `rest`, with the middle of a name that is too long left out. */
function fitted(context: CanvasRenderingContext2D, name: string, rest: string, width: number): string {
  if (context.measureText(name + rest).width <= width) return name + rest;
  const letters = Array.from(name);
  const short = (kept: number): string =>
    `${letters.slice(0, Math.ceil(kept / 2)).join("")}…${letters.slice(letters.length - Math.floor(kept / 2)).join("")}${rest}`;
  let low = 0;
  let high = Math.min(letters.length, 400);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(short(middle)).width <= width) low = middle;
    else high = middle - 1;
  }
  return short(low);
}

type Scale = (tick: number) => number;

function scaleOf(picture: Picture, run: Run): Scale {
  const factor = (picture.right - picture.left) / (picture.to - picture.from);
  return (tick) => picture.left + (tick * run.tick - picture.from) * factor;
}

/** `dimmed`: behind a chain that lights up. Labels stay legible. */
function drawRow(picture: Picture, lane: Lane, row: number, top: number, xOf: Scale, dimmed: boolean): void {
  const {timeline, run} = lane;
  const {offsets, start, end} = timeline;
  const from = picture.from / run.tick;
  const to = picture.to / run.tick;
  const begin = Math.max(offsets[row], lastAtMost(start, from, offsets[row], offsets[row + 1]));
  const stop = lastAtMost(start, to, offsets[row], offsets[row + 1]) + 1;
  if (dimmed) picture.context.globalAlpha = DIMMED;
  const showIdle = picture.showIdle && row < timeline.workers;
  if ((stop - begin) * NARROW > picture.right - picture.left) {
    drawShares(picture, lane, row, top, from, to, showIdle);
    return;
  }
  if (showIdle) drawIdle(picture, lane, row, top, from, to, xOf);
  for (let i = begin; i < stop; ++i)
    drawJob(picture, lane, timeline.id[i], xOf(start[i]), xOf(end[i]), top, lane.heightOf(row), dimmed);
  drawPairs(picture, lane, begin, stop, top, xOf);
}

/** A line over the two jobs of each pair. */
function drawPairs(picture: Picture, lane: Lane, begin: number, stop: number, top: number, xOf: Scale): void {
  const {run, timeline} = lane;
  if (run.schedule.pairs === undefined) return;
  picture.context.fillStyle = picture.colours.text;
  for (let i = begin; i < stop; ++i) {
    if (run.jobs.pass(timeline.id[i]) !== F) continue;
    const partner = run.jobs.partner(timeline.id[i]);
    const last = partner === undefined ? -1 : timeline.entry[partner];
    if (last < 0) continue;
    const x = xOf(timeline.start[i]) + 1.5;
    picture.context.fillRect(x, top + 1, Math.max(0, xOf(timeline.end[last]) - x - 2.5), 2);
  }
}

/** Why the worker was idle: at the foot of its row. */
function drawIdle(picture: Picture, lane: Lane, worker: number, top: number, from: number, to: number, xOf: Scale): void {
  const {idle} = lane.timeline;
  const [begin, end] = [idle.offsets[worker], idle.offsets[worker + 1]];
  const first = Math.max(begin, lastAtMost(idle.start, from, begin, end));
  const stop = lastAtMost(idle.start, to, begin, end) + 1;
  const height = Math.max(1, Math.min(Math.max(3, Math.round(lane.rowHeight * 0.22)), Math.round(lane.rowHeight / 3)));
  for (let i = first; i < stop; ++i) {
    const x = xOf(idle.start[i]);
    const width = xOf(idle.end[i]) - x;
    if (width < 0.3) continue;
    picture.context.fillStyle = picture.colours.causes[idle.cause[i]];
    picture.context.fillRect(x, top + lane.rowHeight - 1 - height, width, height);
  }
}

function drawShares(
  picture: Picture,
  lane: Lane,
  row: number,
  top: number,
  from: number,
  to: number,
  showIdle: boolean,
): void {
  const {context, colours, ratio} = picture;
  const columns = Math.max(1, Math.round((picture.right - picture.left) * ratio));
  const height = Math.max(1, Math.round((lane.heightOf(row) - 1) * ratio));
  const passes = PASSES.length;
  const busy = new Float64Array(columns * passes);
  lane.shares.fill(row, from, to, columns, busy);
  const causes = CAUSES.length;
  const waiting = showIdle ? new Float64Array(columns * causes) : null;
  if (waiting) lane.shareOfIdle.fill(row, from, to, columns, waiting);
  const image = context.createImageData(columns, height);
  const pixels = new Uint32Array(image.data.buffer);
  const solid = colours.passes.map((colour) => pixelOf(colour, 255));
  const pale = colours.causes.map((colour) => pixelOf(colour, 120));
  for (let c = 0; c < columns; ++c) {
    let y = height;
    let share = 0;
    const stack = (part: number, colour: number): void => {
      if (part <= 0) return;
      share += part;
      const until = Math.max(0, Math.round(height * (1 - share)));
      while (y > until) pixels[--y * columns + c] = colour;
    };
    for (let k = 0; k < passes; ++k) stack(busy[c * passes + k], solid[k]);
    if (waiting) for (let k = 0; k < causes; ++k) stack(waiting[c * causes + k], pale[k]);
  }
  scratch.width = columns;
  scratch.height = height;
  scratch.getContext("2d")?.putImageData(image, 0, 0);
  context.drawImage(scratch, picture.left, top, picture.right - picture.left, lane.heightOf(row) - 1);
}

const scratch = document.createElement("canvas");

/** A pixel of ImageData on a little-endian machine, as all are that have browsers. `colour`: #rrggbb. */
function pixelOf(colour: string, alpha: number): number {
  const value = parseInt(colour.slice(1), 16);
  return ((alpha << 24) | ((value & 255) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

function colourOf(picture: Picture, run: Run, id: number): [string, string] {
  const {stage, microbatch, pass} = run.jobs.job(id);
  if (picture.colourBy === "pass") return [picture.colours.passes[pass], picture.colours.onPasses[pass]];
  const [light, dark] = HUES[(picture.colourBy === "stage" ? stage : microbatch) % HUES.length];
  return pass === F || pass === R || pass === O ? [light, "#000000"] : [dark, "#ffffff"];
}

function drawJob(
  picture: Picture,
  lane: Lane,
  id: number,
  x0: number,
  x1: number,
  top: number,
  height: number,
  dimmed = false,
): void {
  const {context} = picture;
  const width = x1 - x0;
  const [fill, ink] = colourOf(picture, lane.run, id);
  context.fillStyle = fill;
  context.fillRect(x0, top, Math.max(width > 4 ? width - 1 : width, 0.5), height - 1);
  if (width < 16 || height < 11) return;
  const {stage, microbatch, pass} = lane.run.jobs.job(id);
  const several = lane.run.schedule.stages > lane.run.schedule.workers;
  const short = `${PASSES[pass]}${microbatch}`;
  const text = several && width > 52 ? `${short} s${lane.run.jobs.label(stage)}` : short;
  if (text.length * 6.6 + 3 > width) return;
  const seen = Math.max(x0, picture.left); // of a job that begins left of the view, the label is still seen
  if (x1 - seen <= text.length * 6.6 + 3) return;
  context.globalAlpha = 1;
  context.fillStyle = dimmed ? picture.colours.muted : ink;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "left";
  context.fillText(text, seen + 3, top + height / 2);
  if (dimmed) context.globalAlpha = DIMMED;
}

/** Where a job is; null when the timeline does not have it. */
export function placeOf(
  picture: Picture,
  lane: Lane,
  id: number,
  xOf: Scale = scaleOf(picture, lane.run),
): {x0: number; x1: number; top: number; height: number} | null {
  const entry = lane.timeline.entry[id];
  if (entry === undefined || entry < 0) return null;
  const row = lane.timeline.rowOf(entry);
  const top = lane.rowTop(row) - picture.scroll + picture.top;
  return {x0: xOf(lane.timeline.start[entry]), x1: xOf(lane.timeline.end[entry]), top, height: lane.heightOf(row)};
}

function drawOne(picture: Picture, lane: Lane, id: number, xOf: Scale): void {
  const place = placeOf(picture, lane, id, xOf);
  if (!place || place.x1 < picture.left || place.x0 > picture.right) return;
  drawJob(picture, lane, id, place.x0, Math.max(place.x1, place.x0 + 2), place.top, place.height);
}

function outline(picture: Picture, lane: Lane, id: number, xOf: Scale, colour: string): void {
  const place = placeOf(picture, lane, id, xOf);
  if (!place) return;
  picture.context.strokeStyle = colour;
  picture.context.lineWidth = 2;
  picture.context.strokeRect(place.x0 - 0.5, place.top - 0.5, Math.max(3, place.x1 - place.x0), place.height);
}

/** Lines from the end of each job to the start of one that waits for it. */
function drawLinks(picture: Picture, lane: Lane, links: [number, number][], xOf: Scale): void {
  const {context} = picture;
  context.strokeStyle = picture.colours.selected;
  context.lineWidth = 1.25;
  context.beginPath();
  for (const [from, to] of links) {
    const a = placeOf(picture, lane, from, xOf);
    const b = placeOf(picture, lane, to, xOf);
    if (!a || !b || a.top === b.top) continue;
    const bend = Math.min(24, Math.max(4, (b.x0 - a.x1) / 2));
    const ya = a.top + a.height / 2;
    const yb = b.top + b.height / 2;
    context.moveTo(a.x1, ya);
    context.bezierCurveTo(a.x1 + bend, ya, b.x0 - bend, yb, b.x0, yb);
  }
  context.stroke();
}

function drawPath(picture: Picture, lane: Lane, xOf: Scale): void {
  const {path, entry} = lane.timeline;
  const {context, colours} = picture;
  const count = path.kind.length;
  const first = Math.max(0, lastAtMost(path.start, picture.from / lane.run.tick, 0, count) - 1);
  context.strokeStyle = colours.path;
  context.lineWidth = 2;
  context.lineJoin = "round";
  context.beginPath();
  let lastX = -Infinity;
  let lastTop = NaN;
  for (let i = first; i < count; ++i) {
    const x0 = xOf(path.start[i]);
    if (x0 > picture.right) break;
    if (path.kind[i] !== 0) continue;
    const x1 = xOf(path.end[i]);
    const row = lane.timeline.rowOf(entry[path.job[i]]);
    const top = lane.rowTop(row) - picture.scroll + picture.top;
    if (x1 - lastX < 0.5 && top === lastTop) continue;
    const y = top + 1.5;
    if (Number.isNaN(lastTop)) context.moveTo(x0, y);
    else context.lineTo(x0, y);
    context.lineTo(x1, y);
    const foot = top + lane.heightOf(row) - 2.5;
    if (x1 - x0 > 6 && foot > y) {
      context.moveTo(x0, y);
      context.lineTo(x0, foot);
      context.lineTo(x1 - 1, foot);
      context.lineTo(x1 - 1, y);
    }
    context.moveTo(x1, y);
    lastX = x1;
    lastTop = top;
  }
  context.stroke();
}
