// The kernel's source: coloured, with what each line does.
"use strict";

const PYTHON = new RegExp([
  /(?<comment>#.*)/,
  /(?<string>[rbuf]*("""[\s\S]*?"""|'''[\s\S]*?'''|"(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])*'))/,
  /(?<keyword>\b(and|as|assert|break|class|continue|def|del|elif|else|False|for|from|global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|True|try|while|with|yield)\b)/,
  /(?<literal>\b(0[xX][\da-fA-F]+|\d[\d_]*(\.\d*)?([eE][+-]?\d+)?)\b)/,
  /(?<gpu>\bcuda(\.\w+)+|@[\w.]+)/,
  /(?<name>\w+)/,
].map((pattern) => pattern.source).join("|"), "g");

/** Lines of source as lists of [kind, text]; kind "" is plain. */
function coloured(lines) {
  const done = [[]], text = lines.join("\n");
  const add = (kind, piece) => piece.split("\n").forEach((part, i) => {
    if (i) done.push([]);
    if (part) done[done.length - 1].push([kind, part]);
  });
  let at = 0;
  for (const match of text.matchAll(PYTHON)) {
    add("", text.slice(at, match.index));
    const [kind] = Object.entries(match.groups).find(([, found]) => found !== undefined);
    add(kind === "name" ? "" : kind, match[0]);
    at = match.index + match[0].length;
  }
  add("", text.slice(at));
  return done;
}

/** The source as runs of neighbouring lines, which are functions, without their indentation:
 *  [{file, lines: [[number, text]]}]. */
function functionsOf(source) {
  const found = [];
  for (const [file, lines] of source) {
    let before = null;
    for (const [number, text] of lines) {
      if (before === null || number !== before + 1) found.push({ file, lines: [] });
      found[found.length - 1].lines.push([number, text]);
      before = number;
    }
  }
  for (const one of found) {
    const widths = one.lines.filter(([, text]) => text.trim()).map(([, text]) => text.search(/\S/));
    const indent = Math.min(...widths, 99);
    one.lines = one.lines.map(([number, text]) => [number, text.slice(indent)]);
  }
  return found;
}

/** How far a count is above the fewest that would do: a word for the page's colours. */
function graded(total, fewest) {
  return total >= 2 * fewest ? "bad" : total > 1.25 * fewest ? "fair" : "good";
}

/** Draws the source of a launch; `pick(line, access)` is called with what is clicked. */
function drawSource(place, launch, pick) {
  const most = Math.max(1, ...[...launch.lines.values()].map((line) => line.requests));
  const all = [...launch.lines.values()].reduce((sum, line) => sum + line.requests, 0);
  const parts = [];
  let before = null;
  for (const { file, lines } of functionsOf(launch.source)) {
    if (file !== before) parts.push(make("p", { class: "file muted", text: file }));
    else parts.push(make("hr", { class: "gap" }));
    before = file;
    const colour = coloured(lines.map(([, text]) => text));
    const list = make("ol", { class: "lines" });
    lines.forEach(([number_, text], i) => {
      const line = launch.lines.get(`${file}:${number_}`);
      list.append(sourceLine(number_, colour[i] || [], line, { most, all, pick, text }));
    });
    parts.push(list);
  }
  // Lines whose source is not there, of functions that were made from text.
  const there = new Set(launch.source.flatMap(([file, lines]) =>
    lines.map(([line]) => `${file}:${line}`)));
  const missing = [...launch.lines.values()].filter((line) => !there.has(line.key));
  if (missing.length) {
    parts.push(make("p", { class: "file muted", text: "The source of these lines is not there." }));
    parts.push(make("ol", { class: "lines" }, missing.map((line) =>
      sourceLine(line.line, [["comment", `(no source) ${line.file}`]], line, { most, all, pick, text: "" }))));
  }
  place.replaceChildren(...parts);
}

function sourceLine(number_, pieces, line, { most, all, pick, text }) {
  const code = make("code", {}, pieces.map(([kind, part]) =>
    (kind ? make("span", { class: kind, text: part }) : part)));
  const heat = make("span", { class: "heat" });
  const row = make("div", { class: "line" }, [
    make("span", { class: "number", text: number_ }), heat, code,
  ]);
  const item = make("li", {}, [row]);
  if (!line) return item;
  item.dataset.line = line.key;
  if (line.requests) {
    const share = Math.round((100 * line.requests) / all);
    heat.style.setProperty("--share", line.requests / most);
    heat.title = `${share} % of the launch's requests`;
    row.setAttribute("role", "button");
    row.tabIndex = 0;
    row.setAttribute("aria-label", `Line ${number_}: ${text.trim()}`);
    row.addEventListener("click", () => pick(line.key, null));
    row.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      pick(line.key, null);
    });
  }
  const badges = line.accesses.map((access) => accessBadge(access, () => pick(line.key, access)));
  if (line.flops) badges.push(make("span", { class: "badge", text: `${number(line.flops)} FLOP` }));
  if (line.barriers) {
    const text_ = `${count(line.barriers, "thread")} at the barrier`;
    badges.push(make("span", { class: "badge", text: text_ }));
  }
  if (badges.length) item.append(make("div", { class: "badges" }, badges));
  for (const finding of line.findings) {
    item.append(make("p", { class: "finding", text: finding.text }));
  }
  return item;
}

function accessBadge(access, picked) {
  const far = access.space === "global", noun = far ? "sector" : "wavefront";
  const [total, fewest] = far
    ? [access.sectors, access.fewest_sectors] : [access.wavefronts, access.fewest_wavefronts];
  const each = Number((total / access.requests).toPrecision(3));
  const least = Number((fewest / access.requests).toPrecision(3));
  const grade = graded(total, fewest);
  const beside = total > fewest ? ` (fewest ${least})` : "";
  const badge = make("button", { type: "button", class: `badge access ${grade}` }, [
    make("i", { class: access.operation }),
    make("b", { text: access.array }),
    ` ${access.operation} · ${count(access.requests, "request")} · `,
    make("span", { class: "cost", text: `${count(each, noun)} each${beside}` }),
    access.contention > 1 ? ` · up to ${access.contention} lanes at one element` : "",
  ]);
  badge.title = `${number(total)} ${noun}${plural(noun)}, ${number(fewest)} would do; ` +
    `${bytes(access.width)} a lane`;
  badge.dataset.access = access.id;
  badge.addEventListener("click", picked);
  return badge;
}
