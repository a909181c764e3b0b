// The page: picks a launch, a line, a request, and shows it.
"use strict";

const $ = (id) => document.getElementById(id);
const TICK = 700; // milliseconds a request when playing

const trace = JSON.parse($("trace").textContent);
const state = { launch: null, line: null, access: null, sequence: [], at: 0, timer: null };
let footprints = [];

const say = (id, text) => { $(id).textContent = text; };

/** Puts markup into an element; `clicked` has a function for each of its children. */
function show(id, markup, clicked = []) {
  $(id).innerHTML = escaped(markup);
  clicked.forEach((does, i) =>
    $(id).children[i].addEventListener("click", () => { stop(); does(); }));
}

// What the page holds, made ready for drawing.

const keyOf = ({ file, line }) => `${file}:${line}`;

/** A launch with its requests by name of column, and with what each line does. */
function prepared(launch) {
  const lines = new Map();
  const lineOf = ({ file, line }) => {
    const key = keyOf({ file, line });
    const none = { key, file, line, requests: 0, flops: 0, barriers: 0 };
    return lines.get(key) ?? lines.set(key, { ...none, accesses: [], findings: [] }).get(key);
  };
  launch.accesses.forEach((access, id) => {
    access.id = id;
    lineOf(access).accesses.push(access);
    lineOf(access).requests += access.requests;
  });
  for (const work of launch.work) {
    lineOf(work).flops += work.flops;
    lineOf(work).barriers += work.barriers;
  }
  for (const finding of launch.findings) lineOf(finding).findings.push(finding);
  const arrays = new Map(launch.arrays.map((array) => [array.name, array]));
  const requests = launch.requests.map(([id, warp, mask, first, steps, sectors, wavefronts]) => {
    const access = launch.accesses[id], { operation, width } = access;
    const array = arrays.get(access.array);
    return { access, array, operation, width, warp, mask, first, steps, sectors, wavefronts };
  });
  return { ...launch, lines, requests };
}

/** A request with its lanes and the byte of the array that each wants. */
function unpacked(request) {
  const lanes = [...Array(WARP).keys()].filter((lane) => (request.mask >>> lane) & 1);
  let offset = request.first;
  const offsets = lanes.map((_, i) => {
    if (i) offset += Array.isArray(request.steps) ? request.steps[i - 1] : request.steps;
    return offset;
  });
  const addresses = offsets.map((place) => request.array.start + place);
  return { ...request, lanes, offsets, addresses };
}

// Picking.

const current = () => state.sequence[state.at];
const currentLine = () => (current() ? keyOf(current().access) : state.line);

function pickLaunch(place) {
  stop();
  const launch = state.launch = prepared(trace.launches[place]);
  [...$("launches").children].forEach((button, i) =>
    button.setAttribute("aria-pressed", i === place));
  $("findings").hidden = !launch.findings.length;
  show("findings", launch.findings.map(({ text }) => html`<p class="finding">${text}</p>`));
  show("totals", totalsOf(launch));
  show("source", sourceOf(launch));
  show("arrays", arraysOf(launch));
  drawFootprints();
  // Begin with the access that is furthest above its fewest, else the one with the most requests.
  const waste = ({ cost }) => cost.total - cost.fewest;
  const [access] = [...new Set(launch.requests.map((request) => request.access))]
    .sort((a, b) => waste(b) - waste(a) || b.requests - a.requests);
  pick(access ? keyOf(access) : null, access ?? null);
  const item = document.querySelector("#source li.current");
  if (item) $("source").scrollTop = item.offsetTop - 130;
}

/** Step through the requests of a line (null: of the whole block), or of one of its accesses. */
function pick(line, access, at = 0) {
  Object.assign(state, { line, access });
  state.sequence = state.launch.requests.filter(({ access: one }) =>
    (line === null || keyOf(one) === line) && (access === null || one === access));
  $("slider").max = Math.max(0, state.sequence.length - 1);
  state.at = at;
  drawScope();
  go(at);
}

function go(at) {
  state.at = Math.max(0, Math.min(at, state.sequence.length - 1));
  $("slider").value = state.at;
  drawRequest();
}

/** Picks the next line up or down that makes requests. */
function pickNeighbour(step) {
  const keys = [...document.querySelectorAll("#source li[data-line]")]
    .map((item) => item.dataset.line).filter((key) => state.launch.lines.get(key).requests);
  if (!keys.length) return;
  const here = keys.indexOf(currentLine());
  pick(keys[(here + step + keys.length) % keys.length], null);
}

/** Picks the line or the access in the source that was clicked. */
function pickFrom(target) {
  const badge = target.closest(".access");
  if (!badge && !target.closest(".line[role=button]")) return;
  stop();
  const access = badge && state.launch.accesses[badge.dataset.access];
  pick(target.closest("li").dataset.line, access);
}

function play() {
  if (state.timer) { stop(); return; }
  if (state.at >= state.sequence.length - 1) go(0);
  state.timer = setInterval(() => {
    go(state.at + 1);
    if (state.at >= state.sequence.length - 1) stop();
  }, TICK);
  playing(true);
}

function stop() {
  clearInterval(state.timer);
  state.timer = null;
  playing(false);
}

function playing(now) {
  say("play", now ? "Pause" : "Play");
  $("play").setAttribute("aria-pressed", now);
}

// Showing.

function totalsOf(launch) {
  const tile = (value, label, note = "", grade = "") => html`<div class="tile ${grade}">
    <b>${value}</b><span>${label}</span><small class="muted">${note}</small></div>`;
  const [, blocks, ofThreads] = launch.size.match(/(.*) (block.*)/); // 8 x 4 blocks of 64 threads
  const tiles = [tile(blocks, ofThreads, launch.kernel)];
  for (const [space, { requests, total, fewest, unit, grade }] of Object.entries(launch.costs)) {
    const note = `fewest ${(fewest / requests).toFixed(2)}; ${count(requests, "request")}`;
    const label = `${unit} a ${space} request`;
    tiles.push(tile((total / requests).toFixed(2), label, note, grade));
  }
  const { bytes_moved: moved, bytes_per_flop: each, flops } = launch;
  if (!flops) return [...tiles, tile(number(moved), "bytes moved", "no arithmetic")];
  const note = `${bytes(moved)} moved, ${number(flops)} FLOP`;
  return [...tiles, tile(number(Number(each.toPrecision(3))), "bytes an operation", note)];
}

function arraysOf(launch) {
  const rows = launch.arrays.map(({ name, space, shape, bytes_asked: asked, cost }) => {
    const { requests, total, fewest, grade } = cost, far = space === "global";
    const against = html`<td class="${grade}">${number(total)} (${number(fewest)})</td>`;
    return [
      name, space, shape.join(" × "), number(requests), number(asked),
      ...(far ? [number(total * SECTOR_BYTES), against, ""] : ["", "", against]),
    ];
  });
  return table([
    "array", "memory", "shape", "requests", "bytes asked", "bytes moved", "sectors", "wavefronts",
  ], rows);
}

function drawFootprints() {
  const { launch } = state, width = Math.min($("footprints").clientWidth - 2, 590);
  say("footprint-title", `What block (${launch.block_shown.join(", ")}) touches`);
  footprints = launch.arrays
    .map((array) => [array, launch.footprints.filter((one) => one.array === array.name)])
    .filter(([, touched]) => touched.length)
    .map(([array, touched]) => new Footprint(array, touched, width));
  $("footprints").replaceChildren(...footprints.map((one) => one.figure));
  footprints.forEach((one) => one.draw());
  if (!footprints.length) say("footprints", "Nothing.");
}

/** The buttons that choose what to step through: the block, the line, one access of the line. */
function drawScope() {
  const { line, access, launch } = state, key = currentLine();
  const here = () => Math.max(0, launch.requests.indexOf(current()));
  const options = [["the whole block", line === null, () => pick(null, null, here())]];
  if (key) {
    const own = launch.lines.get(key), one = access && own.accesses.length > 1;
    options.push([`line ${own.line}`, line !== null && !one, () => pick(key, null)]);
    if (one) {
      options.push([`its ${access.operation} of ${access.array}`, true, () => pick(key, access)]);
    }
  }
  const buttons = options.map(([text, pressed]) =>
    html`<button type="button" aria-pressed="${pressed}">${text}</button>`);
  show("scope", buttons, options.map(([, , picked]) => picked));
}

function drawRequest() {
  const place = state.launch.block_shown.join(", ");
  const request = current() && unpacked(current()), total = state.sequence.length;
  $("previous").disabled = state.at <= 0;
  $("next").disabled = state.at >= total - 1;
  $("play").disabled = $("slider").disabled = total < 2;
  $("picture").hidden = $("as-table").hidden = !request;
  say("hover", "");
  markSource(request);
  footprints.forEach((one) => one.mark(request));
  if (!request) {
    say("count", "");
    say("what", "");
    say("sentence", `Block (${place}) makes no request here.`);
    return;
  }
  const { access, array, lanes, warp, width } = request, left = state.launch.requests_left_out;
  const kept = left ? ` (${number(left)} more of this block were not kept)` : "";
  const counted = `${number(state.at + 1)} of ${number(total)}`, idle = WARP - lanes.length;
  say("count", counted);
  $("slider").setAttribute("aria-valuetext", `request ${counted}`);
  say("what", `Line ${access.line}, warp ${warp} of block (${place}): ` +
    `${NOUNS[access.operation]} of ${array.name}, ${bytes(width)} a lane${kept}`);
  say("lanes-note", idle
    ? `${lanes.length} take part, ${idle} ${idle === 1 ? "does" : "do"} not` : "all 32 take part");
  show("lanes", drawLanes(request));
  const { drawn, title, note, picture } =
    array.space === "global" ? drawSectors(request) : drawBanks(request);
  say("memory-title", title);
  say("memory-note", note);
  show("memory", picture);
  say("sentence", sentenceOf(request, drawn));
  showTable();
}

function showTable() {
  const shown = $("as-table").open && current();
  if (shown) $("as-table").querySelector("div").innerHTML = escaped(drawTable(unpacked(shown)));
}

function markSource(request) {
  const key = currentLine(), box = $("source");
  for (const item of box.querySelectorAll("li[data-line]")) {
    item.classList.toggle("current", item.dataset.line === key);
  }
  for (const badge of box.querySelectorAll(".access")) {
    badge.setAttribute("aria-pressed", Number(badge.dataset.access) === request?.access.id);
  }
  const item = box.querySelector("li.current");
  if (!item) return;
  const top = item.offsetTop, bottom = top + item.offsetHeight; // the box is their offsetParent
  if (top < box.scrollTop || bottom > box.scrollTop + box.clientHeight) {
    box.scrollTop = top - box.clientHeight / 3;
  }
}

/** Highlights the cells of the lanes pointed at, and names the element. */
function light(target) {
  const found = target?.closest("[data-hover]");
  const lanes = new Set(found?.dataset.lanes?.split(" "));
  $("picture").classList.toggle("lit", lanes.size > 0);
  for (const one of $("picture").querySelectorAll("[data-lanes]")) {
    one.classList.toggle("on", one.dataset.lanes.split(" ").some((lane) => lanes.has(lane)));
  }
  say("hover", found ? found.dataset.hover : "");
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  say("theme", dark ? "Light" : "Dark");
  $("theme").setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
  $("theme").setAttribute("aria-pressed", dark);
  for (const one of footprints) {
    one.draw();
    one.mark(current() && unpacked(current()));
  }
}

// Controls.

const KEYS = {
  ArrowLeft: () => { stop(); go(state.at - 1); },
  ArrowRight: () => { stop(); go(state.at + 1); },
  ArrowUp: () => { stop(); pickNeighbour(-1); },
  ArrowDown: () => { stop(); pickNeighbour(1); },
  p: play,
};

function press(event) {
  const { key, target } = event;
  if (target.closest("input, select, textarea, .scrolls")) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const onLine = target.matches(".line") && (key === "Enter" || key === " ");
  const does = onLine ? () => pickFrom(target) : KEYS[key];
  if (!does) return;
  event.preventDefault();
  does();
}

function start() {
  say("title", trace.title);
  const { problem, tile, idea, compiled } = trace.about;
  say("about", [
    idea, problem, tile && `tile ${tile}`, compiled && `compiled for ${compiled}`,
  ].filter(Boolean).join(" · "));
  const buttons = trace.launches.map(({ kernel }, i) =>
    html`<button type="button">${i + 1}. ${kernel}</button>`);
  show("launches", buttons, buttons.map((_, i) => () => pickLaunch(i)));
  $("launches").hidden = trace.launches.length < 2;
  $("how").open = window.innerWidth > 700;
  $("previous").addEventListener("click", KEYS.ArrowLeft);
  $("next").addEventListener("click", KEYS.ArrowRight);
  $("play").addEventListener("click", play);
  $("slider").addEventListener("input", () => { stop(); go(Number($("slider").value)); });
  $("source").addEventListener("click", (event) => pickFrom(event.target));
  $("as-table").addEventListener("toggle", showTable);
  $("picture").addEventListener("pointerover", (event) => light(event.target));
  $("picture").addEventListener("pointerleave", () => light(null));
  document.addEventListener("keydown", press);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => theme(dark.matches));
  $("theme").addEventListener("click", () =>
    theme(document.documentElement.dataset.theme !== "dark"));
  theme(dark.matches);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // a phone's bars come and go
    width = window.innerWidth;
    drawFootprints();
    drawRequest();
  });
  pickLaunch(trace.launches.length - 1); // of a stage the main kernel
}

start();
