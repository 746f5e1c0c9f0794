// SPDX-License-Identifier: Apache-2.0
// A timeline's place on the page.

import {CAUSES, type Run, type Timeline} from "./data";
import {copies, L, O, PASSES} from "./jobs";
import {Shares} from "./shares";

export const HEADER = 24;
export const GAP = 10;

/** A job of a run, in all timelines of the run. */
export interface JobOfRun {
  run: Run;
  id: number;
}

/** One timeline: a header, and a row for each worker. Where stashes are copied, O and L are strips below it. */
export class Lane {
  /** Pixels below the top of all lanes. */
  top = 0;
  rowHeight = 20;
  private jobShares: Shares | undefined;
  private idleShares: Shares | undefined;

  constructor(
    readonly run: Run,
    readonly timeline: Timeline,
    /** "measured", with the name of the report where there are several. */
    readonly title: string,
    readonly makespan: string,
  ) {}

  get height(): number {
    return this.heightWith(this.rowHeight);
  }
  /** What the height would be with rows of this height. */
  heightWith(rowHeight: number): number {
    return HEADER + this.timeline.workers * this.pitchWith(rowHeight) + GAP;
  }
  /** The height of a strip; 0 without copies. */
  private stripWith(rowHeight: number): number {
    return copies(this.run.schedule) ? Math.max(2, Math.min(7, Math.round(rowHeight / 4))) : 0;
  }
  private pitchWith(rowHeight: number): number {
    const strip = this.stripWith(rowHeight);
    return rowHeight + (strip > 0 ? 2 * strip + 2 : 0);
  }
  /** From the top of a worker's row to that of the next worker. */
  get pitch(): number {
    return this.pitchWith(this.rowHeight);
  }

  /** The height of a row of the timeline, with the pixel that is left free below it. */
  heightOf(row: number): number {
    return row < this.timeline.workers ? this.rowHeight : this.stripWith(this.rowHeight);
  }
  rowTop(row: number): number {
    const {workers} = this.timeline;
    const top = this.top + HEADER + this.timeline.workerOfRow(row) * this.pitch;
    return row < workers ? top : top + this.rowHeight + ((row - workers) % 2) * this.heightOf(row);
  }
  /** The row of the timeline at `y`; -1 when there is none. */
  rowAt(y: number): number {
    const {timeline, pitch, rowHeight} = this;
    const below = y - this.top - HEADER;
    const worker = Math.floor(below / pitch);
    if (worker < 0 || worker >= timeline.workers) return -1;
    const inStrips = below - worker * pitch - rowHeight;
    if (inStrips < 0) return worker;
    return timeline.rowOfCopies(worker, inStrips < this.stripWith(rowHeight) ? O : L);
  }

  get shares(): Shares {
    const {timeline, run} = this;
    return (this.jobShares ??= new Shares(timeline, PASSES.length, (i) => run.jobs.pass(timeline.id[i])));
  }
  get shareOfIdle(): Shares {
    const {idle} = this.timeline;
    return (this.idleShares ??= new Shares(idle, CAUSES.length, (i) => idle.cause[i]));
  }
}

const LEAST_ROW = 3;
const TALL_ROW = 20;
const MOST_ROW = 28;

/**
 * Lanes below each other, with rows as high as `room` pixels allow: lower than labels only where all rows then fit.
 * `tall`: rows with labels anyway. Returns the height of all.
 */
export function arrange(lanes: Lane[], room: number, tall: boolean): number {
  const heightWith = (row: number): number => lanes.reduce((sum, lane) => sum + lane.heightWith(row), 0);
  let fitting = MOST_ROW;
  while (fitting >= LEAST_ROW && heightWith(fitting) > room) --fitting;
  const rowHeight = tall ? Math.max(TALL_ROW, fitting) : fitting < LEAST_ROW ? 10 : fitting;
  let top = 0;
  for (const lane of lanes) {
    lane.rowHeight = rowHeight;
    lane.top = top;
    top += lane.height;
  }
  return top;
}

/** True if rows are lower than labels need. */
export function isLow(lanes: Lane[]): boolean {
  return lanes.some((lane) => lane.rowHeight < 14);
}
