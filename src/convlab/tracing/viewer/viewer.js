// The page: picks a launch, a line, a request, and draws it.
"use strict";

const $ = (id) => document.getElementById(id);
const TICK = 700; // milliseconds a request when playing

/** An element with attributes; `text` is its text. */
function make(tag, attributes = {}, children = []) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const trace = JSON.parse($("trace").textContent);
const state = { launch: null, line: null, access: null, sequence: [], at: 0, timer: null };
let footprints = [];

// What the page holds, made ready for drawing.

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

function pickLaunch(place) {
  stop();
  state.launch = prepared(trace.launches[place]);
  [...$("launches").children].forEach((button, i) =>
    button.setAttribute("aria-pressed", i === place));
  drawTotals();
  drawFindings();
  drawSource($("source"), state.launch, (line, access) => { stop(); pick(line, access); });
  drawFootprints();
  drawArrays();
  const access = mostWasteful(state.launch);
  pick(access ? keyOf(access) : null, access ?? null);
  const item = document.querySelector("#source li.current");
  if (item) $("source").scrollTop = item.offsetTop - 130;
}

/** The access that is furthest above its fewest, else the one with the most requests. */
function mostWasteful(launch) {
  const shown = new Set(launch.requests.map((request) => request.access));
  const waste = (one) => costOf([one]).total - costOf([one]).fewest;
  return [...shown].sort((a, b) => waste(b) - waste(a) || b.requests - a.requests)[0];
}

/** Step through the requests of a line (null: of the whole block), or of one of its accesses. */
function pick(line, access, at = 0) {
  Object.assign(state, { line, access, at });
  state.sequence = state.launch.requests.filter(({ access: one }) =>
    (line === null || keyOf(one) === line) && (access === null || one === access));
  const slider = $("slider");
  slider.max = Math.max(0, state.sequence.length - 1);
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

const current = () => state.sequence[state.at];
const keyOf = ({ file, line }) => `${file}:${line}`;
const currentLine = () => (current() ? keyOf(current().access) : state.line);

function play() {
  if (state.timer) { stop(); return; }
  if (state.at >= state.sequence.length - 1) go(0);
  state.timer = setInterval(() => {
    go(state.at + 1);
    if (state.at >= state.sequence.length - 1) stop();
  }, TICK);
  $("play").textContent = "Pause";
  $("play").setAttribute("aria-pressed", "true");
}

function stop() {
  clearInterval(state.timer);
  state.timer = null;
  $("play").textContent = "Play";
  $("play").setAttribute("aria-pressed", "false");
}

// Drawing.

function drawTotals() {
  const { launch } = state;
  const tile = (value, label, note = "", grade = "") =>
    make("div", { class: `tile ${grade}` }, [
      make("b", { text: value }), make("span", { text: label }),
      make("small", { class: "muted", text: note }),
    ]);
  const [, blocks, ofThreads] = launch.size.match(/(.*) (block.*)/); // 8 x 4 blocks of 64 threads
  const tiles = [tile(blocks, ofThreads, launch.kernel)];
  for (const space of Object.keys(UNITS)) {
    const accesses = launch.accesses.filter((one) => one.space === space);
    if (!accesses.length) continue;
    const { requests, total, fewest, unit } = costOf(accesses);
    tiles.push(tile(
      (total / requests).toFixed(2), `${unit} a ${space} request`,
      `fewest ${(fewest / requests).toFixed(2)}; ${count(requests, "request")}`,
      graded(total, fewest),
    ));
  }
  const moved = `${bytes(launch.bytes_moved)} moved`;
  if (launch.flops) {
    const each = Number(launch.bytes_per_flop.toPrecision(3));
    tiles.push(tile(number(each), "bytes an operation", `${moved}, ${number(launch.flops)} FLOP`));
  } else {
    tiles.push(tile(number(launch.bytes_moved), "bytes moved", "no arithmetic"));
  }
  $("totals").replaceChildren(...tiles);
}

function drawFindings() {
  const { findings } = state.launch;
  $("findings").hidden = !findings.length;
  $("findings").replaceChildren(...findings.map((finding) =>
    make("p", { class: "finding", text: finding.text })));
}

function drawScope() {
  const { line, access, launch } = state;
  const options = [["the whole block", line === null, () => pick(null, null, wholeBlockAt())]];
  const key = currentLine();
  if (key) {
    const { line: number_, accesses } = launch.lines.get(key);
    options.push([`line ${number_}`, line !== null && access === null, () => pick(key, null)]);
    if (access && accesses.length > 1) {
      options.push([`its ${access.operation} of ${access.array}`, true, () => pick(key, access)]);
    } else if (access) {
      options[1][1] = true;
    }
  }
  $("scope").replaceChildren(...options.map(([text, pressed, picked]) => {
    const button = make("button", { type: "button", "aria-pressed": pressed, text });
    button.addEventListener("click", () => { stop(); picked(); });
    return button;
  }));
}

const wholeBlockAt = () => Math.max(0, state.launch.requests.indexOf(current()));

function drawRequest() {
  const place = state.launch.block_shown.slice(0, 3).join(", ");
  const packed = current(), total = state.sequence.length;
  $("previous").disabled = state.at <= 0;
  $("next").disabled = state.at >= total - 1;
  $("play").disabled = $("slider").disabled = total < 2;
  $("picture").hidden = $("as-table").hidden = !packed;
  $("hover").textContent = "";
  markSource(packed);
  footprints.forEach((one) => one.mark(packed && unpacked(packed)));
  if (!packed) {
    $("count").textContent = $("what").textContent = "";
    $("sentence").textContent = `Block (${place}) makes no request here.`;
    return;
  }
  const request = unpacked(packed), { access, array } = request;
  const left = state.launch.requests_left_out;
  const kept = left ? ` (${number(left)} more of this block were not kept)` : "";
  const counted = `${number(state.at + 1)} of ${number(total)}`;
  $("count").textContent = counted;
  $("slider").setAttribute("aria-valuetext", `request ${counted}`);
  $("what").textContent = `Line ${access.line}, warp ${request.warp} of block (${place}): ` +
    `${NOUNS[access.operation]} of ${array.name}, ${count(request.width, "byte")} a lane${kept}`;
  drawLanes(request);
  const drawn = array.space === "global" ? drawSectors(request) : drawBanks(request);
  $("sentence").textContent = sentenceOf(request, drawn);
  if ($("as-table").open) drawTable(request);
}

function markSource(request) {
  const key = currentLine();
  for (const item of document.querySelectorAll("#source li[data-line]")) {
    item.classList.toggle("current", item.dataset.line === key);
  }
  for (const badge of document.querySelectorAll("#source .access")) {
    const on = request && Number(badge.dataset.access) === request.access.id;
    badge.setAttribute("aria-pressed", Boolean(on));
  }
  const item = document.querySelector("#source li.current"), box = $("source");
  if (!item) return;
  const top = item.offsetTop, bottom = top + item.offsetHeight; // the box is their offsetParent
  if (top < box.scrollTop || bottom > box.scrollTop + box.clientHeight) {
    box.scrollTop = top - box.clientHeight / 3;
  }
}

/** A lane's colour, and the one that can be read on it: from blue over green to yellow. */
function laneStyle(lane) {
  const stops = [[52, 62, 128], [42, 110, 160], [56, 147, 145], [140, 190, 104], [243, 213, 104]];
  const last = stops.length - 1, at = (lane / (WARP - 1)) * last;
  const i = Math.min(Math.floor(at), last - 1), [from, to] = [stops[i], stops[i + 1]];
  const mixed = from.map((value, c) => Math.round(value + (at - i) * (to[c] - value)));
  return `--lane: rgb(${mixed.join(" ")}); --ink: ${lane < 13 ? "#fff" : "#111"}`;
}

/** A cell of the picture that stands for some lanes. */
function cell(lanes, hover, classes = "") {
  const one = lanes.length === 1;
  return make("span", {
    class: `cell ${one ? "" : "many"} ${classes}`, style: one ? laneStyle(lanes[0]) : "",
    "data-lanes": lanes.join(" "), "data-hover": hover,
    text: one ? lanes[0] : lanes.length === WARP ? "all" : `×${lanes.length}`,
  });
}

const laneWords = (lanes) => `${lanes.length === 1 ? "lane" : "lanes"} ${ranges(lanes)}`;

function drawLanes({ lanes, offsets, array, width }) {
  const idle = WARP - lanes.length;
  $("lanes-note").textContent = idle
    ? `${lanes.length} take part, ${idle} ${idle === 1 ? "does" : "do"} not` : "all 32 take part";
  $("lanes").replaceChildren(...[...Array(WARP).keys()].map((lane) => {
    const i = lanes.indexOf(lane);
    return i < 0
      ? make("span", { class: "cell idle", "data-hover": `lane ${lane} does not take part` })
      : cell([lane], `lane ${lane} wants ${wish(array, offsets[i], width)}`);
  }));
}

/** What a lane wants: its element, or its first and last. */
function wish(array, offset, width) {
  const last = offset + width - array.itemsize;
  const through = last > offset ? ` to ${elementAt(array, last)}` : "";
  return elementAt(array, offset) + through;
}

function drawSectors({ lanes, addresses, width, array, sectors: recorded, offsets }) {
  const sectors = sectorsOf(lanes, addresses, width);
  const unit = Math.min(WORD_BYTES, width); // bytes a cell
  const least = fewestSectors(bytesWanted(offsets, width));
  $("memory-title").textContent = "Global memory";
  $("memory-note").textContent =
    `${count(recorded, "sector")} (fewest ${least}); numbers are lanes` +
    (sectors[sectors.length - 1].sector - sectors[0].sector >= sectors.length
      ? ", ⋯ skips bytes" : "");
  let before = null;
  const drawn = sectors.map(({ sector, wanted }) => {
    const start = sector * SECTOR_BYTES;
    const cells = [];
    for (let byte = 0; byte < SECTOR_BYTES; byte += unit) {
      const element = elementsAt(array, start + byte - array.start, unit);
      const who = wanted.get(byte);
      cells.push(who
        ? cell(who, `${element} for ${laneWords(who)}`)
        : make("span", { class: "cell unasked", "data-hover": `${element}: moved, not wanted` }));
    }
    const skipped = before === null ? 0 : (sector - before - 1) * SECTOR_BYTES;
    before = sector;
    const index = indexAt(array, start - array.start);
    const none = start < array.start ? "before the array" : "no element begins it";
    const label = make("small", {}, [index ? `[${index.join(", ")}]` : none]);
    if (skipped) {
      label.prepend(make("em", { text: "⋯ " }));
      label.title = `${number(skipped)} bytes are not touched before this sector`;
    }
    return make("div", { class: skipped ? "sector jump" : "sector" }, [
      label, make("div", { class: "bytes", style: `--cells: ${SECTOR_BYTES / unit}` }, cells),
    ]);
  });
  $("memory").className = "sectors";
  $("memory").replaceChildren(...drawn);
  return sectors;
}

function drawBanks({ lanes, addresses, width, array, operation, wavefronts: recorded, offsets }) {
  const wavefronts = wavefrontsOf(lanes, addresses, width, operation === "load");
  const least = fewestWavefronts(bytesWanted(offsets, width));
  $("memory-title").textContent = "Shared memory";
  $("memory-note").textContent =
    `banks across, ${count(recorded, "wavefront")} down (fewest ${least}); numbers are lanes`;
  const rivals = new Array(BANKS).fill(1);
  for (const { given } of wavefronts) {
    for (const one of given) rivals[one.bank] = Math.max(rivals[one.bank], one.rivals);
  }
  const parts = [make("span", { class: "wavefront", style: "grid-row: 1", text: "bank" })];
  rivals.forEach((words, bank) => parts.push(make("span", {
    class: words > 1 ? "bank conflict" : "bank", text: bank, style: `grid-area: 1 / ${bank + 2}`,
    "data-hover": words > 1
      ? `bank ${bank}: lanes want ${words} different words of it, a wavefront for each`
      : `bank ${bank}`,
  })));
  wavefronts.forEach(({ given }, turn) => {
    const row = turn + 2;
    const style = `grid-row: ${row}`, name = `wavefront ${turn + 1}`;
    parts.push(make("span", { class: "wavefront", style, text: name }));
    parts.push(make("span", { class: "track", style }));
    for (const { bank, word, lanes: served, rivals: words } of given) {
      const element = elementsAt(array, word * WORD_BYTES - array.start, WORD_BYTES);
      const one = cell(
        served, `${name}: bank ${bank} gives ${element} to ${laneWords(served)}`,
        words > 1 ? "conflict" : "",
      );
      one.style.gridArea = `${row} / ${bank + 2}`;
      parts.push(one);
    }
  });
  $("memory").className = "banks";
  $("memory").replaceChildren(...parts);
  return wavefronts;
}

/** The request as a table, for those who read it rather than see it. */
function drawTable({ lanes, offsets, addresses, array, width }) {
  const far = array.space === "global";
  const rows = lanes.map((lane, i) => [
    lane, wish(array, offsets[i], width), offsets[i],
    far ? Math.floor(addresses[i] / SECTOR_BYTES) : Math.floor(addresses[i] / WORD_BYTES) % BANKS,
  ]);
  const head = ["lane", "wants", "byte of the array", far ? "sector" : "bank"];
  $("as-table").querySelector("div").replaceChildren(table(head, rows));
}

function table(head, rows) {
  const cells = (tag, row) => make("tr", {}, row.map((value) =>
    (value instanceof Node ? value : make(tag, { text: value }))));
  return make("table", {}, [
    make("thead", {}, [cells("th", head)]),
    make("tbody", {}, rows.map((row) => cells("td", row))),
  ]);
}

function drawFootprints() {
  const { launch } = state;
  $("footprint-title").textContent = `What block (${launch.block_shown.join(", ")}) touches`;
  const width = $("footprints").clientWidth - 2;
  footprints = launch.arrays
    .map((array) => [array, launch.footprints.filter((one) => one.array === array.name)])
    .filter(([, touched]) => touched.length)
    .map(([array, touched]) => new Footprint(array, touched, Math.min(width, 590)));
  $("footprints").replaceChildren(...footprints.map((one) => one.figure));
  footprints.forEach((one) => one.draw());
  if (!footprints.length) $("footprints").textContent = "Nothing.";
}

function drawArrays() {
  const { launch } = state;
  const rows = launch.arrays.map((array) => {
    const accesses = launch.accesses.filter((one) => one.array === array.name);
    const { requests, total, fewest } = costOf(accesses), far = array.space === "global";
    const against = make("td", {
      class: graded(total, fewest), text: `${number(total)} (${number(fewest)})`,
    });
    return [
      array.name, array.space, array.shape.join(" × "), number(requests),
      number(sum(accesses, "bytes_asked")), far ? number(total * SECTOR_BYTES) : "",
      ...(far ? [against, ""] : ["", against]),
    ];
  });
  $("arrays").replaceChildren(table([
    "array", "memory", "shape", "requests", "bytes asked", "bytes moved", "sectors", "wavefronts",
  ], rows));
}

// Controls.

/** Highlights the cells of the lanes pointed at, and names the element. */
function light(target) {
  const found = target && target.closest("[data-hover]");
  const lanes = new Set(found && found.dataset.lanes ? found.dataset.lanes.split(" ") : []);
  $("picture").classList.toggle("lit", lanes.size > 0);
  for (const one of $("picture").querySelectorAll("[data-lanes]")) {
    one.classList.toggle("on", one.dataset.lanes.split(" ").some((lane) => lanes.has(lane)));
  }
  $("hover").textContent = found ? found.dataset.hover : "";
}

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
  $("theme").setAttribute("aria-pressed", dark);
  footprints.forEach((one) => one.draw());
  if (current()) footprints.forEach((one) => one.mark(unpacked(current())));
}

const KEYS = {
  ArrowLeft: () => { stop(); go(state.at - 1); },
  ArrowRight: () => { stop(); go(state.at + 1); },
  ArrowUp: () => { stop(); pickNeighbour(-1); },
  ArrowDown: () => { stop(); pickNeighbour(1); },
  p: play,
};

function start() {
  $("title").textContent = trace.title;
  const { problem, tile, idea, compiled } = trace.about;
  $("about").textContent = [
    idea, problem, tile && `tile ${tile}`, compiled && `compiled for ${compiled}`,
  ].filter(Boolean).join(" · ");
  trace.launches.forEach((launch, i) => {
    const button = make("button", { type: "button", text: `${i + 1}. ${launch.kernel}` });
    button.addEventListener("click", () => pickLaunch(i));
    $("launches").append(button);
  });
  $("launches").hidden = trace.launches.length < 2;
  $("how").open = window.innerWidth > 700;
  $("previous").addEventListener("click", KEYS.ArrowLeft);
  $("next").addEventListener("click", KEYS.ArrowRight);
  $("play").addEventListener("click", play);
  $("slider").addEventListener("input", () => { stop(); go(Number($("slider").value)); });
  $("as-table").addEventListener("toggle", () => {
    if (current()) drawTable(unpacked(current()));
  });
  $("picture").addEventListener("pointerover", (event) => light(event.target));
  $("picture").addEventListener("pointerleave", () => light(null));
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, .scrolls");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
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
