// SPDX-License-Identifier: Apache-2.0
// The lines of the tip: what is below the pointer.

import {CAUSES, lastAtMost} from "./data";
import type {Times} from "./format";
import {describe, factsOf, idleBefore, waitedFor, waitedForIt} from "./job-text";
import type {JobOfRun, Lane} from "./lane";

/** Of a job. Empty when the timeline does not have it. */
export function jobLines({timeline, title}: Lane, {run, id}: JobOfRun, times: Times): string[] {
  const facts = factsOf(run, timeline, id);
  if (!facts) return [];
  const idle = idleBefore(run, facts, times);
  const after = waitedForIt(run, timeline, id, facts);
  return [
    `${run.jobs.name(id)}: ${describe(run, id)}`,
    `${title}: worker ${facts.worker}, ${times.number(facts.start)} to ${times.text(facts.end)}`,
    `took ${times.fine(facts.end - facts.start)}; inputs ready at ${times.text(facts.ready)}`,
    `It ${waitedFor(run, timeline, id, facts, times)}.`,
    ...(idle ? [`Idle before: ${idle}`] : []),
    ...(after ? [`Waited for it: ${after}`] : []),
  ];
}

/** Why a worker is idle: sentences whose subject is the worker. */
export const MEANING: {[cause in (typeof CAUSES)[number]]: string} = {
  fill: "its first job waits for other workers",
  drain: "it has run its last job",
  producer: "its next job waits for a job on another worker",
  transfer: "the result that its next job reads is under way",
  order: "another job is ready, and the order holds it back",
  runtime: "its next job is ready and has not started",
  copy: "its next job waits for a stash that L brings back, or for memory that O frees",
  recomputation: "its next job waits for a job on another worker, and there, or further on, R delays B",
};

/** Of a worker at `time`, in units. Empty when it is not idle then, and for rows of copies. */
export function idleLines({timeline, run, title}: Lane, worker: number, time: number, times: Times): string[] {
  const {idle} = timeline;
  if (worker >= timeline.workers) return [];
  const i = lastAtMost(idle.start, time / run.tick, idle.offsets[worker], idle.offsets[worker + 1]);
  if (i < idle.offsets[worker] || idle.end[i] < time / run.tick) return [];
  const cause = CAUSES[idle.cause[i]];
  const job = idle.job[i];
  const start = idle.start[i] * run.tick;
  const end = idle.end[i] * run.tick;
  return [
    `Worker ${worker} is idle: ${cause}`,
    `${title}: ${times.number(start)} to ${times.text(end)}, ${times.fine(end - start)}`,
    `${MEANING[cause]}${job >= 0 ? `: ${run.jobs.name(job)}` : ""}`,
  ];
}
