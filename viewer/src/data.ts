// SPDX-License-Identifier: Apache-2.0
// The data of the page as src/plan/drawing writes them, and as the page uses them.

import {column, offsetsOf, sums} from "./columns";
import {copies, Jobs, L, slotsOf} from "./jobs";

const VERSION = 2; // data_version in src/plan/drawing/page.cpp

export type Json = null | boolean | number | string | Json[] | {[key: string]: Json};
export type JsonObject = {[key: string]: Json};

export interface ScheduleData {
  name: string;
  workers: number;
  stages: number;
  microbatches: number;
  split_backward: boolean;
  discipline: string;
  recomputes: boolean;
  /** True: R also waits for the gradients that B waits for. */
  recomputes_late: boolean;
  edges?: [number, number][];
  /** By stage: its number, with a letter when it is a shard; only where there are shards. */
  labels?: string[];
  memory_limits?: number[];
  /**
   * Only where stashes are copied: the number of each stash's home (Home::code), by micro-batch and stage; of one
   * micro-batch where all are alike.
   */
  homes?: number[];
  /** Slices of each sequence; only where there are some. Micro-batches q K to q K + K - 1 are slices of the same sequences. */
  slices?: number;
  /** The ids of F and of the backward pass that its worker runs at once with it; only where there are such pairs. */
  pairs?: [number, number][];
}

interface Received {
  count: number[];
  bytes: number[];
}

export interface Figures {
  makespan: number;
  /** First start until the weight gradients are summed; only where workers sum them. */
  gradients_summed?: number;
  bubble_fraction: number;
  /** The time of all R, divided as for the bubble fraction. */
  recomputed_fraction: number;
  device_span: number;
  device_bubble_fraction: number;
  busy: number[];
  peak_stashes: number[];
  peak_stash_bytes: number[];
  received: {[kind: string]: Received};
}

interface TimelineData {
  title: string;
  figures: Figures;
  jobs: {
    rows: number[];
    id: string;
    start: string;
    length: string;
    ready: string;
    submitted?: string;
    weights?: string;
  };
  idle: {rows: number[]; start: string; length: string; cause: string; job: string};
  path: {start: number; length: string; kind: string; job: string; from: string};
  memory: {rows: number[]; time: string; stashes: string; bytes: string};
  traffic: [number, number, number, number][];
}

interface RunData {
  title: string;
  unit: string;
  tick: number;
  has_bytes: boolean;
  schedule: ScheduleData;
  timelines: TimelineData[];
  report: Json;
}

interface PageData {
  version: number;
  program: string;
  runs: RunData[];
}

/** Causes of idle time, by their number (IdleCause of src/plan/explain). */
export const CAUSES = ["fill", "drain", "producer", "transfer", "order", "runtime", "copy", "recomputation"] as const;

/** Those that there can be: without copies, or R, nothing waits for them. */
export function causesOf(runs: Run[]): (typeof CAUSES)[number][] {
  const has = {copy: copies, recomputation: (schedule: ScheduleData) => schedule.recomputes};
  return CAUSES.filter(
    (cause) => (cause !== "copy" && cause !== "recomputation") || runs.some(({schedule}) => has[cause](schedule)),
  );
}

/** Idle times; those of worker w are `offsets[w]` to `offsets[w + 1]`, in the order of time. Times in ticks. */
export interface Idle {
  offsets: Int32Array;
  start: Float64Array;
  end: Float64Array;
  cause: Uint8Array;
  /** The job that the worker waited for, or that the order held back; -1: none. */
  job: Float64Array;
}

export const PATH_KINDS = ["compute", "transfer", "runtime"] as const;

/** The critical path, in the order of time; each part begins where the one before ends. */
export interface Path {
  start: Float64Array;
  end: Float64Array;
  kind: Uint8Array;
  job: Float64Array;
  from: Float64Array;
}

/** What workers hold from `time` on, rows as in `Idle`. */
export interface Memory {
  offsets: Int32Array;
  time: Float64Array;
  stashes: Float64Array;
  bytes: Float64Array;
}

/** Stages' data that one worker sends another in a step. */
export interface Traffic {
  from: number;
  to: number;
  count: number;
  bytes: number;
}

function digits(text: string): Uint8Array {
  const values = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) values[i] = text.charCodeAt(i) - 48;
  return values;
}

/**
 * A predicted or measured step. Its jobs are entries, row by row. The row of each worker has its jobs in the order in
 * which they ran. Where stashes are copied, two rows for each worker follow: its O, and its L.
 */
export class Timeline {
  readonly title: string;
  readonly figures: Figures;
  readonly workers: number;
  /** Entries of row r: `offsets[r]` to `offsets[r + 1]`. Rows 0 to `workers` - 1 are those of workers. */
  readonly offsets: Int32Array;
  readonly id: Int32Array;
  readonly start: Float64Array;
  readonly end: Float64Array;
  /** When the inputs of the job were there. */
  readonly ready: Float64Array;
  /** When the job's task was inserted; null in a prediction. */
  readonly submitted: Float64Array | null;
  /** The entry of each job id, or -1. */
  readonly entry: Int32Array;
  readonly idle: Idle;
  readonly path: Path;
  readonly memory: Memory;
  readonly traffic: Traffic[];
  readonly first: number;
  readonly last: number;
  private readonly holderOffset: Float64Array | null;

  constructor(data: TimelineData, ids: number, workers: number) {
    this.workers = workers;
    this.title = data.title;
    this.figures = data.figures;
    const {jobs, idle, path, memory} = data;
    this.offsets = offsetsOf(jobs.rows);
    const count = this.offsets[this.rows];
    this.id = Int32Array.from(sums(jobs.id, this.offsets));
    this.start = column(jobs.start, count);
    this.end = column(jobs.length, count);
    this.chain(this.offsets, this.start, this.end);
    this.ready = column(jobs.ready, count);
    for (let i = 0; i < count; ++i) this.ready[i] = this.start[i] - this.ready[i];
    this.submitted = jobs.submitted === undefined ? null : column(jobs.submitted, count);
    if (this.submitted) for (let i = 0; i < count; ++i) this.submitted[i] = this.ready[i] - this.submitted[i];
    this.holderOffset = jobs.weights === undefined ? null : column(jobs.weights, count);
    this.entry = new Int32Array(ids).fill(-1);
    for (let i = 0; i < count; ++i) this.entry[this.id[i]] = i;

    const idleOffsets = offsetsOf(idle.rows);
    const parts = idleOffsets[idleOffsets.length - 1];
    this.idle = {
      offsets: idleOffsets,
      start: column(idle.start, parts),
      end: column(idle.length, parts),
      cause: digits(idle.cause),
      job: sums(idle.job, idleOffsets),
    };
    this.chain(idleOffsets, this.idle.start, this.idle.end);

    const steps = path.kind.length;
    const whole = Int32Array.of(0, steps);
    this.path = {
      start: new Float64Array(steps),
      end: column(path.length, steps),
      kind: digits(path.kind),
      job: sums(path.job, whole),
      from: column(path.from, steps),
    };
    if (steps > 0) this.path.start[0] = path.start;
    this.chain(whole, this.path.start, this.path.end);

    const memoryOffsets = offsetsOf(memory.rows);
    this.memory = {
      offsets: memoryOffsets,
      time: sums(memory.time, memoryOffsets),
      stashes: sums(memory.stashes, memoryOffsets),
      bytes: sums(memory.bytes, memoryOffsets),
    };
    this.traffic = data.traffic.map(([from, to, sent, bytes]) => ({from, to, count: sent, bytes}));
    let first = Infinity;
    let last = 0;
    for (let w = 0; w < this.workers; ++w) {
      if (this.offsets[w] === this.offsets[w + 1]) continue;
      first = Math.min(first, this.start[this.offsets[w]]);
      last = Math.max(last, this.end[this.offsets[w + 1] - 1]);
    }
    this.first = Number.isFinite(first) ? first : 0;
    this.last = last;
  }

  get rows(): number {
    return this.offsets.length - 1;
  }
  /** The jobs of workers, without copies. */
  get count(): number {
    return this.offsets[this.workers];
  }

  rowOf(entry: number): number {
    return lastAtMost(this.offsets, entry, 0, this.rows);
  }
  /** The worker whose row this is. */
  workerOfRow(row: number): number {
    return row < this.workers ? row : (row - this.workers) >> 1;
  }
  /** The row of a worker's O or L. */
  rowOfCopies(worker: number, pass: number): number {
    return this.workers + 2 * worker + (pass === L ? 1 : 0);
  }

  /** The worker that ran an entry, or whose stash it copied. */
  workerOf(entry: number): number {
    return this.workerOfRow(this.rowOf(entry));
  }

  /** The worker from which an entry had its weights. */
  holderOf(entry: number): number {
    return this.workerOf(entry) + (this.holderOffset ? this.holderOffset[entry] : 0);
  }

  /** Starts that count from the end before, and lengths, become starts and ends. */
  private chain(offsets: Int32Array, start: Float64Array, end: Float64Array): void {
    for (let row = 0; row + 1 < offsets.length; ++row) {
      let before = 0;
      for (let i = offsets[row]; i < offsets[row + 1]; ++i) {
        start[i] += before;
        end[i] += start[i];
        before = end[i];
      }
    }
  }
}

/** The largest i in [from, to) with values[i] <= value; from - 1 when there is none. `values` ascend. */
export function lastAtMost(values: ArrayLike<number>, value: number, from: number, to: number): number {
  let low = from;
  let high = to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** A report, or a schedule. Times in ticks, unless they are said to be in units. */
export class Run {
  readonly title: string;
  readonly unit: string;
  readonly tick: number;
  readonly hasBytes: boolean;
  readonly schedule: ScheduleData;
  readonly jobs: Jobs;
  readonly timelines: Timeline[];
  readonly report: JsonObject;

  constructor(data: RunData) {
    this.title = inLine(data.title);
    this.unit = data.unit;
    this.tick = data.tick;
    this.hasBytes = data.has_bytes;
    this.schedule = {...data.schedule, name: inLine(data.schedule.name)};
    const ids = data.schedule.microbatches * data.schedule.stages * slotsOf(data.schedule);
    this.timelines = data.timelines.map((timeline) => new Timeline(timeline, ids, data.schedule.workers));
    this.jobs = new Jobs(data.schedule, this.timelines[0].entry);
    this.report = asObject(data.report);
  }
}

export interface Page {
  program: string;
  runs: Run[];
}

export interface Licence {
  name: string;
  version: string;
  licence: string;
  text: string;
}

// Characters that change the direction of the text after them, which would be the page's own.
const DIRECTIONS = /[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/g;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const MOST_LETTERS = 300;

/** A name for a line of text: without the middle of a very long one, and apart from the line's direction. */
export function inLine(name: string): string {
  const plain = name.replace(DIRECTIONS, "\ufffd");
  const letters = Array.from(plain);
  const half = MOST_LETTERS / 2;
  const short = letters.length > MOST_LETTERS ? [...letters.slice(0, half), "…", ...letters.slice(-half)].join("") : plain;
  return RIGHT_TO_LEFT.test(short) ? `\u2068${short}\u2069` : short;
}

function embedded(id: string): Json {
  return JSON.parse(document.getElementById(id)?.textContent ?? "null", (_, value: unknown) =>
    typeof value === "string" ? value.replace(DIRECTIONS, "\ufffd") : value,
  ) as Json;
}

export function readPage(): Page {
  const data = embedded("data") as unknown as PageData;
  if (data.version !== VERSION) throw new Error(`the page reads data of version ${VERSION}, not ${data.version}`);
  return {program: data.program, runs: data.runs.map((run) => new Run(run))};
}

export function readLicences(): Licence[] {
  return embedded("licences") as unknown as Licence[];
}

// ---- parts of a report, which may lack any of them ----

export function asObject(value: Json | undefined): JsonObject {
  return value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
}

/** An array of numbers; a null, which JSON has for infinity and NaN, becomes NaN. Empty when it is none. */
export function asNumbers(value: Json | undefined): number[] {
  return Array.isArray(value) ? value.map((entry) => (typeof entry === "number" ? entry : NaN)) : [];
}

export function asObjects(value: Json | undefined): JsonObject[] {
  return Array.isArray(value) ? value.map(asObject) : [];
}

export function asNumber(value: Json | undefined): number | undefined {
  return typeof value === "number" ? value : undefined;
}

export function asText(value: Json | undefined): string {
  return typeof value === "string" ? value : "";
}
