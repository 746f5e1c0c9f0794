// SPDX-License-Identifier: Apache-2.0
// Light and dark. Colours are those of the style sheet, so that drawings and tables have the same.

import {CAUSES} from "./data";
import {button} from "./dom";
import {PASSES} from "./jobs";

type Theme = "auto" | "light" | "dark";

export interface Colours {
  background: string;
  panel: string;
  text: string;
  muted: string;
  line: string;
  accent: string;
  /** By index of PASSES. */
  passes: string[];
  /** Text on them. */
  onPasses: string[];
  /** By index of CAUSES. */
  causes: string[];
  path: string;
  selected: string;
}

/** A colour of the style sheet. */
function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function colours(): Colours {
  return {
    background: colour("background"),
    panel: colour("panel"),
    text: colour("text"),
    muted: colour("muted"),
    line: colour("line"),
    accent: colour("accent"),
    passes: PASSES.map((pass) => colour(`pass-${pass.toLowerCase()}`)),
    onPasses: PASSES.map((pass) => colour(`on-pass-${pass.toLowerCase()}`)),
    causes: CAUSES.map((cause) => colour(`idle-${cause}`)),
    path: colour("path"),
    selected: colour("selected"),
  };
}

const listeners: (() => void)[] = [];

/** Calls `act` after each change of colours. */
export function onThemeChange(act: () => void): void {
  listeners.push(act);
}

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
let chosen: Theme = "auto";
let printing = false;

/** Sets the colours. Paper is light. */
function apply(): void {
  const dark = !printing && (chosen === "dark" || (chosen === "auto" && systemIsDark.matches));
  document.documentElement.dataset["theme"] = dark ? "dark" : "light";
  for (const act of listeners) act();
}

/** A button that goes through auto, light and dark. Colours follow it, the system, and printing. */
export function themeButton(): HTMLButtonElement {
  const order: Theme[] = ["auto", "light", "dark"];
  const element = button("", "Colours: as the system's, light, dark", () => {
    chosen = order[(order.indexOf(chosen) + 1) % order.length];
    show();
  });
  const show = (): void => {
    element.textContent = `Colours: ${chosen}`;
    apply();
  };
  show();
  systemIsDark.addEventListener("change", apply);
  addEventListener("beforeprint", () => {
    printing = true;
    apply();
  });
  addEventListener("afterprint", () => {
    printing = false;
    apply();
  });
  return element;
}
