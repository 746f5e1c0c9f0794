// SPDX-License-Identifier: Apache-2.0
// The words of the page, for readers who have not seen the documentation.

import type {Run} from "./data";
import {h, table} from "./dom";
import {copies, PASSES} from "./jobs";

/** What a pass does, by its letter. */
export const PASS_MEANING: {[pass in (typeof PASSES)[number]]: string} = {
  F: "forward",
  B: "backward, for the input",
  W: "backward, for the weights",
  BW: "backward",
  R: "forward again",
  O: "stash to its home (upper strip)",
  L: "stash back (lower strip)",
};

const WORDS: [string, string][] = [
  ["stage", "a part of the network: consecutive layers that one worker computes"],
  ["micro-batch", "a part of the batch; each one passes through all stages"],
  ["worker", "a device of the schedule, such as a core or a GPU: one row of a timeline"],
  ["rank", "a process of the run, with one or several workers"],
  ["F", "forward pass of a stage on a micro-batch"],
  ["B, W", "the two halves of a backward pass: B computes the gradient of the stage’s input, W the gradient of its weights"],
  ["BW", "a whole backward pass: B and W in one job"],
  ["job", "one pass of one stage on one micro-batch: F(2,5) is the forward pass of stage 2 on micro-batch 5"],
  ["schedule", "which worker runs which job, and in which order"],
  ["ordered", "each worker runs its jobs exactly in the schedule’s order, and waits for the next one"],
  ["greedy", "each worker runs the first job of the schedule’s order whose inputs are there"],
  ["bounded", "greedy, but a worker never holds more stashes than its memory limit"],
  ["policy", "the part of StarPU that chooses the next job of each worker; the policy starpipe follows the schedule"],
  ["predicted", "computed from the durations of the jobs and the speeds of the links, without a run"],
  ["makespan", "time from the start of the first job to the end of the last job of a step"],
  ["bubble fraction", "share of the workers’ time in which they are idle, of the makespan or of the device span"],
  ["device span", "the longest time from the first start to the last end on one worker; at most the makespan"],
  ["stash", "what a forward pass keeps in memory for its backward pass"],
  ["transfer", "data that a worker gets from another one: an activation, a gradient or weights"],
  ["critical path", "a chain of jobs, transfers and delays from the start to the end of the step; shortening it shortens the step"],
];

/** Only where stashes are copied. */
const COPY_WORDS: [string, string][] = [
  ["home", "where a stash waits for its backward pass: with its worker, in the main memory of the host, on a disk"],
  ["O, L", "copies of a stash: O (offload) takes it from its worker to its home, L (reload) brings it back. They take no time of the worker"],
  ["channel", "what a worker copies with, beside its jobs: one for O, one for L. Each copies one stash at a time"],
];

/** Only where there are slices, or pairs. */
const SLICE_WORDS: [string, string][] = [
  ["slice", "neighbouring tokens of each sequence of a micro-batch; to the schedule a micro-batch of its own. Its F waits for the slice before, its backward pass for the slice after"],
];
const PAIR_WORDS: [string, string][] = [
  ["pair", "F and a backward pass that a worker runs at once, with a line over them: they start when both can, and their results leave when both have ended"],
];

export function wordsOf(runs: Run[]): HTMLElement {
  const disciplines = new Set(runs.map((run) => run.schedule.discipline));
  const others = ["ordered", "greedy", "bounded"].filter((word) => !disciplines.has(word));
  const of = [
    ...WORDS,
    ...(runs.some(({schedule}) => copies(schedule)) ? COPY_WORDS : []),
    ...(runs.some(({schedule}) => schedule.slices !== undefined) ? SLICE_WORDS : []),
    ...(runs.some(({schedule}) => schedule.pairs !== undefined) ? PAIR_WORDS : []),
  ];
  const shown = of.filter(([word]) => !others.includes(word));
  return h("details", {id: "words"}, h("summary", {}, "What the words mean"), table(["", ""], shown, {words: [1], kind: "settings"}));
}
