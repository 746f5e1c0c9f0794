// SPDX-License-Identifier: Apache-2.0
// A timeline's place on the page.

import {CAUSES, type Run, type Timeline} from "./data";
import {PASSES} from "./jobs";
import {Shares} from "./shares";

export const HEADER = 24;
export const GAP = 10;

/** A job of a run, in all timelines of the run. */
export interface JobOfRun {
  run: Run;
  id: number;
}

/** One timeline: a header, and a row for each worker. */
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
    return HEADER + this.timeline.workers * this.rowHeight + GAP;
  }
  rowTop(worker: number): number {
    return this.top + HEADER + worker * this.rowHeight;
  }
  /** The worker whose row is at `y`; -1 when there is none. */
  rowAt(y: number): number {
    const worker = Math.floor((y - this.top - HEADER) / this.rowHeight);
    return worker >= 0 && worker < this.timeline.workers ? worker : -1;
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

/**
 * Lanes below each other, with rows as high as `room` pixels allow: lower than labels only where all rows then fit.
 * `tall`: rows with labels anyway. Returns the height of all.
 */
export function arrange(lanes: Lane[], room: number, tall: boolean): number {
  const rows = lanes.reduce((sum, lane) => sum + lane.timeline.workers, 0);
  const fitting = Math.floor((room - lanes.length * (HEADER + GAP)) / rows);
  const rowHeight = tall ? Math.max(TALL_ROW, Math.min(28, fitting)) : Math.min(28, fitting < LEAST_ROW ? 10 : fitting);
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
