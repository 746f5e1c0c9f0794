// SPDX-License-Identifier: Apache-2.0
// Bundles the page into one HTML file: node build.mjs OUTPUT
//
// The page lists the packages in the bundle, with the texts of their licences, as they lie in node_modules.
import {mkdirSync, readFileSync, readdirSync, writeFileSync} from "node:fs";
import {dirname, join} from "node:path";
import {fileURLToPath} from "node:url";
import * as esbuild from "esbuild";

const folder = dirname(fileURLToPath(import.meta.url));
const output = process.argv[2];
if (!output) {
  console.error("usage: node build.mjs OUTPUT");
  process.exit(2);
}

/** @param {string} entry A file of src/. @returns Its bundle, and the packages in it. */
async function bundle(entry) {
  const result = await esbuild.build({
    entryPoints: [join(folder, "src", entry)],
    absWorkingDir: folder,
    bundle: true,
    minify: true,
    write: false,
    metafile: true,
    format: "iife",
    target: ["chrome100", "firefox100", "safari15.4"],
    legalComments: "none",
    charset: "ascii",
    logLevel: "warning",
  });
  const packages = new Set();
  for (const file of Object.keys(result.metafile.inputs)) {
    const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(file);
    if (found) packages.add(found[1]);
  }
  return {text: result.outputFiles[0].text, packages};
}

/** @param {string} name A package in node_modules. */
function licence(name) {
  const place = join(folder, "node_modules", name);
  const about = JSON.parse(readFileSync(join(place, "package.json"), "utf8"));
  const file = readdirSync(place).find((entry) => /^licen[sc]e/i.test(entry));
  if (!file) throw new Error(`${name} has no licence file`);
  return {name, version: about.version, licence: about.license, text: readFileSync(join(place, file), "utf8")};
}

/** Text inside of a script element must not end it. @param {string} text */
const inScript = (text) => text.replace(/<(?=\/script|!--)/gi, "\\x3c");

const script = await bundle("main.ts");
const style = await bundle("style.css");
const licences = [...script.packages].sort().map(licence);
const parts = {
  STYLE: style.text.trim(),
  LICENCES: JSON.stringify(licences).replace(/</g, "\\u003c"),
  SCRIPT: inScript(script.text.trim()),
};
let page = readFileSync(join(folder, "src", "page.html"), "utf8");
for (const [name, text] of Object.entries(parts)) {
  const mark = `STARPIPE_PAGE_${name}`;
  if (page.split(mark).length !== 2) throw new Error(`page.html needs ${mark} once`);
  page = page.split(mark).join(text);
}
if (page.split("STARPIPE_PAGE_DATA").length !== 2) throw new Error("the page needs STARPIPE_PAGE_DATA once");
mkdirSync(dirname(output), {recursive: true});
writeFileSync(output, page);
