// The kernel's source: coloured, with what each line does.
"use strict";

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
  const there = new Set();
  for (const { file, first, lines } of launch.source) {
    if (file !== before) parts.push(make("p", { class: "file muted", text: file }));
    else parts.push(make("hr", { class: "gap" }));
    before = file;
    parts.push(make("ol", { class: "lines" }, lines.map((html, i) => {
      const key = `${file}:${first + i}`;
      there.add(key);
      return sourceLine(first + i, html, launch.lines.get(key), { most, all, pick });
    })));
  }
  // Lines whose source is not there, of functions that were made from text.
  const missing = [...launch.lines.values()].filter((line) => !there.has(line.key));
  if (missing.length) {
    parts.push(make("p", { class: "file muted", text: "The source of these lines is not there." }));
    parts.push(make("ol", { class: "lines" }, missing.map((line) => {
      const { outerHTML } = make("span", { class: "c", text: `(no source) ${line.file}` });
      return sourceLine(line.line, outerHTML, line, { most, all, pick });
    })));
  }
  place.replaceChildren(...parts);
}

function sourceLine(number_, html, line, { most, all, pick }) {
  const code = make("code");
  code.innerHTML = html; // pygments' own, with what the kernel says escaped
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
    row.setAttribute("aria-label", `Line ${number_}: ${code.textContent.trim()}`);
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
  const { total, fewest, unit } = costOf([access]), noun = unit.slice(0, -1);
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
