// SPDX-License-Identifier: Apache-2.0
// The selected job: its times in each timeline, what it waited for, and what waited for it.

import type {Run} from "./data";
import {button, h, table, type Cell} from "./dom";
import type {Times} from "./format";
import {isCopy} from "./jobs";
import {describe, factsOf, idleBefore, waitedFor} from "./job-text";
import type {JobOfRun} from "./lane";

export function details(job: JobOfRun, times: Times, go: (job: JobOfRun | null) => void): HTMLElement {
  const {run, id} = job;
  const all = run.timelines.map((timeline) => ({timeline, facts: factsOf(run, timeline, id)}));
  const row = (name: string, of: (facts: NonNullable<(typeof all)[0]["facts"]>) => string): string[] => [
    name,
    ...all.map(({facts}) => (facts ? of(facts) : "")),
  ];
  const rows = [
    row("worker", (facts) => String(facts.worker)),
    row("inputs ready", (facts) => times.text(facts.ready)),
    row("start", (facts) => times.text(facts.start)),
    row("end", (facts) => times.text(facts.end)),
    row("duration", (facts) => times.fine(facts.end - facts.start)),
  ];
  const copy = isCopy(run.jobs.pass(id));
  const partner = run.jobs.partner(id);
  if (partner !== undefined) rows.splice(1, 0, row("at once with", () => run.jobs.name(partner)));
  if (copy) rows.splice(1, 0, ["home", ...all.map(({facts}) => (facts ? run.jobs.homeOf(id) : ""))]);
  const fetches = all.some(({timeline, facts}) => facts && timeline.holderOf(facts.entry) !== facts.worker);
  if (fetches) {
    const holders = all.map(({timeline, facts}) => (facts ? String(timeline.holderOf(facts.entry)) : ""));
    rows.splice(1, 0, ["weights of worker", ...holders]);
  }
  if (all.some(({facts}) => facts?.submitted != null))
    rows.splice(
      1,
      0,
      row("task inserted", (facts) => (facts.submitted === null ? "" : times.text(facts.submitted))),
    );
  const sentences = all.map(({timeline, facts}) => {
    if (!facts) return h("p", {});
    const idle = idleBefore(run, facts, times);
    const text = `${timeline.title}: ${waitedFor(run, timeline, id, facts, times)}.${idle ? ` Idle before: ${idle}.` : ""}`;
    return h("p", {}, text);
  });
  const neighbours = (which: "previous" | "next"): Neighbours => {
    const found: Neighbours = new Map();
    for (const {timeline, facts} of all) {
      const neighbour = facts?.[which];
      if (neighbour !== undefined) found.set(neighbour, [...(found.get(neighbour) ?? []), timeline.title]);
    }
    return found;
  };
  const same = copy ? "same channel" : "same worker";
  const before = withNeighbours(run, run.jobs.before(id), "input", same, neighbours("previous"));
  const after = withNeighbours(run, run.jobs.after(id), "output", same, neighbours("next"));
  return h(
    "div",
    {class: "details", id: "job"},
    h(
      "div",
      {class: "bar"},
      h("h3", {}, `${run.jobs.name(id)}: ${describe(run, id)}`),
      button("Close", "Select no job (Escape)", () => go(null)),
    ),
    h(
      "div",
      {class: "columns"},
      h("div", {}, table(["", ...run.timelines.map((timeline) => timeline.title)], rows), ...sentences),
      h(
        "div",
        {},
        neighbourTable(run, "It waited for", "ended", before, times, go),
        neighbourTable(run, "Waited for it", "started", after, times, go),
      ),
    ),
  );
}

/** The jobs before or after on the worker (or on its channel of copies), and the titles of the timelines where they are that. */
type Neighbours = Map<number, string[]>;

/** Jobs and why they are listed: `kind`, or `same` as they are neighbours on the worker, or both. */
function withNeighbours(
  run: Run,
  jobs: number[],
  kind: string,
  same: string,
  neighbours: Neighbours,
): [string, number][] {
  const where = (id: number): string => {
    const titles = neighbours.get(id) ?? [];
    if (titles.length === 0) return "";
    return titles.length === run.timelines.length ? same : `${same} (${titles.join(", ")})`;
  };
  const all = jobs.map((id): [string, number] => [[kind, where(id)].filter((text) => text).join(", "), id]);
  for (const id of neighbours.keys()) if (!jobs.includes(id)) all.push([where(id), id]);
  return all;
}

function neighbourTable(
  run: Run,
  title: string,
  verb: "ended" | "started",
  jobs: [string, number][],
  times: Times,
  go: (job: JobOfRun) => void,
): HTMLElement {
  if (jobs.length === 0) return h("p", {class: "note"}, `${title}: no job.`);
  const rows = jobs.map(([why, id]): (string | Cell)[] => [
    {text: "", node: button(run.jobs.name(id), "Select this job", () => go({run, id}))},
    why,
    ...run.timelines.map((timeline) => {
      const facts = factsOf(run, timeline, id);
      return facts ? `${times.text(verb === "ended" ? facts.end : facts.start)} on ${facts.worker}` : "";
    }),
  ]);
  return table([title, "", ...run.timelines.map(({title: of}) => `${of}, ${verb}`)], rows, {words: [1]});
}
