// SPDX-License-Identifier: Apache-2.0
// What a timeline says of a job: times, what the job waited for, and what waited for it.

import {CAUSES, lastAtMost, type Run, type Timeline} from "./data";
import type {Times} from "./format";
import {BW, isCopy, L, O, PASSES, W} from "./jobs";

export interface JobFacts {
  entry: number;
  worker: number;
  /** In units. */
  start: number;
  end: number;
  ready: number;
  submitted: number | null;
  /** The job before and after it on its worker; of a copy, the O or L before and after it. */
  previous: number | undefined;
  next: number | undefined;
  /** Idle times of the worker just before the job. */
  idle: {cause: string; time: number; job: number}[];
}

/** Undefined when the timeline lacks the job. */
export function factsOf(run: Run, timeline: Timeline, id: number): JobFacts | undefined {
  const entry = timeline.entry[id];
  if (entry === undefined || entry < 0) return undefined;
  const row = timeline.rowOf(entry);
  const worker = timeline.workerOfRow(row);
  const begin = timeline.offsets[row];
  const stop = timeline.offsets[row + 1];
  const {idle} = timeline;
  const free = entry > begin ? timeline.end[entry - 1] : -Infinity;
  const before: JobFacts["idle"] = [];
  const last = lastAtMost(idle.start, timeline.start[entry] - 0.5, idle.offsets[worker], idle.offsets[worker + 1]);
  for (let i = last; row === worker && i >= idle.offsets[worker] && idle.start[i] >= free - 0.5; --i) {
    before.unshift({cause: CAUSES[idle.cause[i]], time: (idle.end[i] - idle.start[i]) * run.tick, job: idle.job[i]});
  }
  return {
    entry,
    worker,
    start: timeline.start[entry] * run.tick,
    end: timeline.end[entry] * run.tick,
    ready: timeline.ready[entry] * run.tick,
    submitted: timeline.submitted ? timeline.submitted[entry] * run.tick : null,
    previous: entry > begin ? timeline.id[entry - 1] : undefined,
    next: entry + 1 < stop ? timeline.id[entry + 1] : undefined,
    idle: before,
  };
}

export function describe(run: Run, id: number): string {
  const {stage, microbatch, pass} = run.jobs.job(id);
  const home = isCopy(pass) ? `, ${pass === O ? "to" : "from"} ${run.jobs.homeOf(id)}` : "";
  const {slices} = run.schedule;
  const slice = slices === undefined ? "" : `, slice ${microbatch % slices} of ${slices}`;
  const partner = run.jobs.partner(id);
  const pair = partner === undefined ? "" : `, at once with ${run.jobs.name(partner)}`;
  return `pass ${PASSES[pass]} of stage ${run.jobs.label(stage)}, micro-batch ${microbatch}${slice}${home}${pair}`;
}

/** The entry that was the last to free memory of the worker until `time`: W, BW or O. */
function lastFreed(run: Run, timeline: Timeline, worker: number, time: number): number | undefined {
  let last: number | undefined;
  for (const row of [worker, timeline.rowOfCopies(worker, O)]) {
    const begin = timeline.offsets[row];
    const frees = (entry: number): boolean => [W, BW, O].includes(run.jobs.pass(timeline.id[entry]));
    let entry = lastAtMost(timeline.end, time, begin, timeline.offsets[row + 1]);
    while (entry >= begin && !frees(entry)) --entry;
    if (entry >= begin && (last === undefined || timeline.end[entry] > timeline.end[last])) last = entry;
  }
  return last;
}

/** The same as `waitedFor` of a copy: it waits for what it copies, for the copy before it, and L for memory. */
function copyWaitedFor(run: Run, timeline: Timeline, id: number, facts: JobFacts, tail: string): string {
  const endOf = (job: number): number => timeline.end[timeline.entry[job]];
  const [source] = run.jobs.before(id);
  const {previous} = facts;
  const known = previous === undefined ? endOf(source) : Math.max(endOf(source), endOf(previous));
  if (run.jobs.pass(id) === L) {
    const freed = lastFreed(run, timeline, facts.worker, timeline.ready[facts.entry] + 0.5);
    if (freed !== undefined && timeline.end[freed] > known + 0.5)
      return `waited for memory that ${run.jobs.name(timeline.id[freed])} freed${tail}`;
  }
  if (previous !== undefined && endOf(previous) > endOf(source))
    return `waited for ${run.jobs.name(previous)}, which was copied before it${tail}`;
  return `waited for ${run.jobs.name(source)}${tail}`;
}

/** What the job waited for last: a sentence. */
export function waitedFor(run: Run, timeline: Timeline, id: number, facts: JobFacts, times: Times): string {
  const free = facts.previous === undefined ? -Infinity : timeline.end[timeline.entry[facts.previous]] * run.tick;
  let last: number | undefined;
  for (const before of run.jobs.before(id)) {
    if (last === undefined || timeline.end[timeline.entry[before]] > timeline.end[timeline.entry[last]]) last = before;
  }
  const late = facts.start - Math.max(facts.ready, free, 0);
  const tail = late > run.tick / 2 ? `, then ${times.fine(late)} in the runtime` : "";
  if (isCopy(run.jobs.pass(id))) return copyWaitedFor(run, timeline, id, facts, tail);
  const idle = facts.idle.filter(({cause}) => cause !== "runtime").at(-1);
  if (idle?.cause === "copy" && idle.job >= 0 && run.jobs.pass(idle.job) === O)
    return `waited for memory that ${run.jobs.name(idle.job)} freed${tail}`;
  if (facts.ready > free && last !== undefined) {
    const entry = timeline.entry[last];
    const end = timeline.end[entry] * run.tick;
    const sender = timeline.workerOf(entry);
    const arrival = facts.ready - end;
    const transfer =
      sender === facts.worker || arrival < run.tick / 2 ? "" : `, whose result took ${times.fine(arrival)} to arrive`;
    return `waited for ${run.jobs.name(last)} on worker ${sender}${transfer}${tail}`;
  }
  if (facts.ready > free && facts.ready > 0) return `waited for its inputs${tail}`;
  if (facts.previous === undefined) return `is the first job of its worker${tail}`;
  return `waited for its worker, which ran ${run.jobs.name(facts.previous)}${tail}`;
}

/** The jobs that wait for the result, and the next on the worker: "F(2,5) on worker 2, BW(1,3) next on its worker". */
export function waitedForIt(run: Run, timeline: Timeline, id: number, facts: JobFacts): string {
  const readers = run.jobs.after(id).filter((after) => timeline.entry[after] >= 0);
  const next = facts.next !== undefined && !readers.includes(facts.next) ? [facts.next] : [];
  const where = isCopy(run.jobs.pass(id)) ? "copied next" : "next on its worker";
  return [
    ...readers.map((after) => `${run.jobs.name(after)} on worker ${timeline.workerOf(timeline.entry[after])}`),
    ...next.map((after) => `${run.jobs.name(after)} ${where}`),
  ].join(", ");
}

/** "0.40 ms producer (F(1,3)), 0.02 ms runtime"; empty when the worker was not idle before. */
export function idleBefore(run: Run, facts: JobFacts, times: Times): string {
  return facts.idle
    .map(({cause, time, job}) => `${times.fine(time)} ${cause}${job >= 0 ? ` (${run.jobs.name(job)})` : ""}`)
    .join(", ");
}
