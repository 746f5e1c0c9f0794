// SPDX-License-Identifier: Apache-2.0
// The page: reads its data, and puts the sections together.

import {causesOf, type Page, readLicences, readPage, type Run} from "./data";
import {details} from "./details";
import {button, h, section} from "./dom";
import type {ColourBy} from "./draw";
import {differenceSection, idleSection, pathSection, slownessSection} from "./explain";
import {figuresSection, headline, keyFigures, subtitle} from "./figures";
import {jobTimesOf, type Times, timesOf} from "./format";
import {copies, PASSES} from "./jobs";
import {type JobOfRun, Lane} from "./lane";
import {memorySection} from "./memory";
import {aboutSection, footer, trainingSection} from "./sections";
import {themeButton} from "./theme";
import {TimelineView} from "./timeline-view";
import {trafficSection} from "./traffic";
import {PASS_MEANING, wordsOf} from "./words";

function lanesOf(runs: Run[], times: Times): Lane[] {
  return runs.flatMap((run) =>
    run.timelines.map((timeline) => {
      const name = runs.length > 1 ? `${run.title}, ${timeline.title}` : timeline.title;
      return new Lane(run, timeline, name, times.text(timeline.figures.makespan));
    }),
  );
}

function check(text: string, checked: boolean, act: (on: boolean) => void): HTMLElement {
  const box = h("input", {type: "checkbox", checked});
  box.addEventListener("change", () => act(box.checked));
  return h("label", {}, box, text);
}

function legend(runs: Run[], by: ColourBy): HTMLElement {
  const used = new Set<number>();
  for (const {jobs, timelines} of runs) {
    const {id} = timelines[0];
    for (let i = 0; i < id.length && used.size < PASSES.length; ++i) used.add(jobs.pass(id[i]));
  }
  const element = h("div", {class: "legend"});
  const light = runs.some(({schedule}) => copies(schedule)) ? "F, R and O" : "F and R";
  if (by !== "pass") element.append(h("span", {}, `a hue for each ${by}: eight, again and again; ${light} are light, other passes are dark`));
  PASSES.forEach((pass, p) => {
    if (by === "pass" && used.has(p)) element.append(h("span", {class: `key pass-${pass.toLowerCase()}`}, h("i", {}), `${pass}: ${PASS_MEANING[pass]}`));
  });
  element.append(h("span", {class: "gap"}, "idle:"));
  for (const cause of causesOf(runs)) element.append(h("span", {class: `key idle-${cause}`}, h("i", {}), cause));
  return element;
}

/** "2,5,F" or "F(2,5)", spaces anywhere; a shard's stage may have its letter: "2b,5,F". */
function parseJob(text: string): {stage: string; microbatch: number; pass: number} | undefined {
  const plain = text.replace(/\s+/g, "").toUpperCase();
  const found = /^(\d+[A-Z]*),(\d+),(F|BW|B|W|R|O|L)$/.exec(plain) ?? /^(F|BW|B|W|R|O|L)\((\d+[A-Z]*),(\d+)\)$/.exec(plain);
  if (!found) return undefined;
  const [stage, microbatch, pass] = /^\d/.test(found[1])
    ? [found[1], found[2], found[3]]
    : [found[2], found[3], found[1]];
  return {
    stage: stage.toLowerCase(),
    microbatch: Number(microbatch),
    pass: (PASSES as readonly string[]).indexOf(pass),
  };
}

function finder(runs: Run[], view: TimelineView): HTMLElement {
  const input = h("input", {
    type: "search",
    placeholder: "job: 2,5,F",
    "aria-label": "Find a job: stage, micro-batch, pass",
    size: 10,
  });
  let last = "";
  const find = (): void => {
    last = input.value;
    const asked = parseJob(input.value);
    const idIn = ({jobs}: Run): number | undefined =>
      asked && jobs.find(jobs.labelled(asked.stage), asked.microbatch, asked.pass);
    const having = runs.filter((run) => idIn(run) !== undefined);
    const before = having.findIndex((run) => run === view.selected?.run && idIn(run) === view.selected.id);
    const run = having[(before + 1) % Math.max(1, having.length)]; // Enter again: in the next report
    const id = run && idIn(run);
    input.setCustomValidity(
      id === undefined && input.value !== "" ? "There is no such job. Write stage, micro-batch, pass: 2,5,F" : "",
    );
    input.reportValidity();
    if (run && id !== undefined) view.select({run, id});
  };
  input.addEventListener("input", () => input.setCustomValidity(""));
  input.addEventListener("change", () => {
    if (input.value !== last) find();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    find();
  });
  return input;
}

function timelineSection(runs: Run[], view: TimelineView): HTMLElement {
  const colour = h("select", {"aria-label": "Colour of jobs"});
  for (const by of ["pass", "micro-batch", "stage"]) colour.append(h("option", {value: by}, `colour by ${by}`));
  let keys = legend(runs, view.options.colourBy);
  colour.addEventListener("change", () => {
    view.options.colourBy = colour.value as ColourBy;
    view.redraw();
    const other = legend(runs, view.options.colourBy);
    keys.replaceWith(other);
    keys = other;
  });
  const shown = h("output", {class: "shown"});
  const selected = h("div", {"aria-live": "polite"});
  const exact = jobTimesOf(runs);
  view.onZoom = (from, to) => (shown.textContent = `${exact.number(from)} to ${exact.text(to)}`);
  const go = (other: JobOfRun | null): void => {
    view.select(other);
    view.canvas.focus({preventScroll: true}); // the button that was pressed is gone
  };
  view.onSelect = (job) =>
    selected.replaceChildren(...(job ? [details(job, exact, go)] : []));
  const tall = check("tall rows", view.options.tallRows, (on) => {
    view.options.tallRows = on;
    view.resize();
  });
  view.onLayout = (low) => (tall.hidden = !low && !view.options.tallRows);
  const controls = h(
    "div",
    {class: "controls"},
    button("−", "Zoom out (−)", () => view.press("-")),
    button("+", "Zoom in (+)", () => view.press("+")),
    button("Whole step", "Show the whole step (0)", () => view.press("0")),
    shown,
    colour,
    check("critical path", view.options.showPath, (on) => {
      view.options.showPath = on;
      view.redraw();
    }),
    check("idle causes", view.options.showIdle, (on) => {
      view.options.showIdle = on;
      view.redraw();
    }),
    tall,
    finder(runs, view),
  );
  return section("Timelines", "timelines", controls, keys, view.element, selected, wordsOf(runs));
}

function heading(runs: Run[], times: Times): HTMLElement {
  const title = runs.length === 1 ? headline(runs[0]) : runs.map((run) => run.title).join(", ");
  document.title = `${title} – starpipe`;
  const file = runs.length === 1 && runs[0].title !== runs[0].schedule.name ? runs[0].title : "";
  const element = h("header", {}, h("div", {class: "bar"}, h("h1", {}, title, file ? h("span", {class: "file"}, file) : null), themeButton()));
  const columns = h("div", {class: "columns"});
  for (const run of runs)
    columns.append(
      h(
        "div",
        {},
        h("p", {class: "subtitle"}, runs.length > 1 ? `${run.title}: ${subtitle(run)}` : subtitle(run)),
        keyFigures(run, times),
      ),
    );
  element.append(columns);
  return element;
}

function build({runs, program}: Page): TimelineView {
  const page = document.getElementById("page");
  if (!page) throw new Error("the page has no place for its content");
  const times = timesOf(runs);
  const view = new TimelineView(lanesOf(runs, times), jobTimesOf(runs));
  const sections = [
    figuresSection(runs, times),
    differenceSection(runs, times),
    idleSection(runs, times),
    pathSection(runs, times),
    trafficSection(runs),
    slownessSection(runs, times),
    memorySection(runs, times),
    trainingSection(runs),
    aboutSection(runs),
  ].filter((part) => part !== null);
  // The sections of one run lie in two columns where there is room; those of several have a column a run.
  const body = h("div", {class: runs.length > 1 ? "" : "sections"}, ...sections);
  page.append(heading(runs, times), timelineSection(runs, view), body, footer(program, readLicences()));
  view.start();
  const closed: HTMLDetailsElement[] = [];
  addEventListener("beforeprint", () => {
    for (const element of page.querySelectorAll<HTMLDetailsElement>("section details:not([open])")) {
      element.open = true;
      closed.push(element);
    }
  });
  addEventListener("afterprint", () => {
    for (const element of closed.splice(0)) element.open = false;
  });
  return view;
}

declare global {
  interface Window {
    /** For tests and scripts in the browser's console. */
    starpipe?: {page: Page; view: TimelineView};
  }
}

try {
  const page = readPage();
  window.starpipe = {page, view: build(page)};
} catch (error) {
  document.body.append(
    h("p", {class: "problem"}, `This page cannot be shown: ${error instanceof Error ? error.message : String(error)}`),
  );
  throw error;
}
