// Draws what it is given: the kernel's source, the picture of a request, footprints of arrays.
"use strict";

// HTML as text: what html`...` makes stays as it is, all else in it is escaped.

class Markup {
  constructor(text) { this.text = text; }
}

function escaped(value) {
  if (value instanceof Markup) return value.text;
  if (Array.isArray(value)) return value.map(escaped).join("");
  return String(value).replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

const html = (pieces, ...values) =>
  new Markup(pieces.reduce((text, piece, i) => text + escaped(values[i - 1]) + piece));

function table(head, rows) {
  const cells = (row) => row.map((value) =>
    (value instanceof Markup ? value : html`<td>${value}</td>`));
  return html`<table>
    <thead><tr>${head.map((name) => html`<th>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${cells(row)}</tr>`)}</tbody></table>`;
}

// The source, with what each line does.

function sourceOf(launch) {
  const busy = [...launch.lines.values()];
  const most = Math.max(1, ...busy.map((line) => line.requests)), all = sum(busy, "requests");
  const there = new Set();
  const drawn = (file, numbered) => html`<ol class="lines">${numbered.map(([line, code]) => {
    there.add(keyOf({ file, line }));
    return sourceLine(line, code, launch.lines.get(keyOf({ file, line })), most, all);
  })}</ol>`;
  const parts = launch.source.map(({ file, first, lines }, i) => [
    file === launch.source[i - 1]?.file
      ? html`<hr class="gap">` : html`<p class="file muted">${file}</p>`,
    // Pygments' own markup, with what the kernel says escaped.
    drawn(file, lines.map((code, place) => [first + place, new Markup(code)])),
  ]);
  // Lines whose source is not there, of functions that were made from text.
  const missing = busy.filter(({ key }) => !there.has(key));
  if (!missing.length) return parts;
  const without = ({ file, line }) =>
    drawn(file, [[line, html`<span class="c">(no source) ${file}</span>`]]);
  const said = html`<p class="file muted">The source of these lines is not there.</p>`;
  return [...parts, said, missing.map(without)];
}

function sourceLine(place, code, line, most, all) {
  const share = line?.requests && Math.round((100 * line.requests) / all);
  const [role, heat] = line?.requests ? [
    new Markup('role="button" tabindex="0"'),
    html`style="--share: ${line.requests / most}" title="${share} % of the launch's requests"`,
  ] : ["", ""];
  const row = html`<div class="line" ${role}>
    <span class="number">${place}</span><span class="heat" ${heat}></span><code>${code}</code>
  </div>`;
  if (!line) return html`<li>${row}</li>`;
  const done = [
    line.flops && `${number(line.flops)} FLOP`,
    line.barriers && `${count(line.barriers, "thread")} at the barrier`,
  ].filter(Boolean).map((text) => html`<span class="badge">${text}</span>`);
  return html`<li data-line="${line.key}">${row}
    <div class="badges">${line.accesses.map(accessBadge)}${done}</div>
    ${line.findings.map(({ text }) => html`<p class="finding">${text}</p>`)}</li>`;
}

function accessBadge({ id, array, operation, width, contention, cost }) {
  const { requests, total, fewest, unit, grade } = cost, noun = unit.slice(0, -1);
  const [each, least] = [total, fewest].map((some) => Number((some / requests).toPrecision(3)));
  const beside = total > fewest ? ` (fewest ${least})` : "";
  const contended = contention > 1 ? ` · up to ${contention} lanes at one element` : "";
  const sums = `${count(total, noun)}, ${number(fewest)} would do; ${bytes(width)} a lane`;
  return html`<button type="button" data-access="${id}" title="${sums}"
    class="badge access ${grade}"><i class="${operation}"></i><b>${array}</b>
    ${operation} · ${count(requests, "request")} ·
    <span class="cost">${count(each, noun)} each${beside}</span>${contended}</button>`;
}

// One request: its lanes, and the sectors or the banks that serve them.

/** A lane's colour, and the one that can be read on it: from blue over green to yellow. */
function laneStyle(lane) {
  const stops = [[52, 62, 128], [42, 110, 160], [56, 147, 145], [140, 190, 104], [243, 213, 104]];
  const last = stops.length - 1, at = (lane / (WARP - 1)) * last;
  const i = Math.min(Math.floor(at), last - 1), [from, to] = [stops[i], stops[i + 1]];
  const mixed = from.map((value, c) => Math.round(value + (at - i) * (to[c] - value)));
  return `--lane: rgb(${mixed.join(" ")}); --ink: ${lane < 13 ? "#fff" : "#111"};`;
}

/** A cell of the picture that stands for some lanes. */
function cell(lanes, hover, classes = "", style = "") {
  const one = lanes.length === 1;
  const text = one ? lanes[0] : lanes.length === WARP ? "all" : `×${lanes.length}`;
  return html`<span class="cell ${one ? "" : "many"} ${classes}"
    style="${one ? laneStyle(lanes[0]) : ""}${style}"
    data-lanes="${lanes.join(" ")}" data-hover="${hover}">${text}</span>`;
}

const laneWords = (lanes) => `${lanes.length === 1 ? "lane" : "lanes"} ${ranges(lanes)}`;

function drawLanes({ lanes, offsets, array, width }) {
  return [...Array(WARP).keys()].map((lane) => {
    const i = lanes.indexOf(lane);
    return i < 0
      ? html`<span class="cell idle" data-hover="lane ${lane} does not take part"></span>`
      : cell([lane], `lane ${lane} wants ${wish(array, offsets[i], width)}`);
  });
}

/** The picture of a request for global memory: `drawn` are its sectors. */
function drawSectors({ lanes, addresses, width, array, sectors: recorded, offsets }) {
  const drawn = sectorsOf(lanes, addresses, width);
  const unit = Math.min(WORD_BYTES, width); // bytes a cell
  const least = fewestSectors(bytesWanted(offsets, width));
  const skips = drawn.at(-1).sector - drawn[0].sector >= drawn.length;
  const pictures = drawn.map(({ sector, wanted }, i) => {
    const start = sector * SECTOR_BYTES - array.start;
    const cells = [];
    for (let byte = 0; byte < SECTOR_BYTES; byte += unit) {
      const element = elementsAt(array, start + byte, unit), who = wanted.get(byte);
      cells.push(who
        ? cell(who, `${element} for ${laneWords(who)}`)
        : html`<span class="cell unasked" data-hover="${element}: moved, not wanted"></span>`);
    }
    const skipped = i ? (sector - drawn[i - 1].sector - 1) * SECTOR_BYTES : 0;
    const index = indexAt(array, start);
    const label = index ? bracketed(index)
      : start < 0 ? "before the array" : "no element begins it";
    const title = skipped ? `${number(skipped)} bytes are not touched before this sector` : "";
    return html`<div class="sector">
      <small title="${title}">${skipped ? html`<em>⋯ </em>` : ""}${label}</small>
      <div class="bytes" style="--cells: ${SECTOR_BYTES / unit}">${cells}</div></div>`;
  });
  const note = `${count(recorded, "sector")} (fewest ${least}); numbers are lanes`;
  return {
    drawn, title: "Global memory", note: note + (skips ? ", ⋯ skips bytes" : ""),
    picture: html`<div class="sectors">${pictures}</div>`,
  };
}

/** The picture of a request for shared memory: `drawn` are its wavefronts. */
function drawBanks({ lanes, addresses, width, array, operation, wavefronts: recorded, offsets }) {
  const drawn = wavefrontsOf(lanes, addresses, width, operation === "load");
  const least = fewestWavefronts(bytesWanted(offsets, width));
  const rivals = new Array(BANKS).fill(1);
  for (const one of drawn.flatMap(({ given }) => given)) {
    rivals[one.bank] = Math.max(rivals[one.bank], one.rivals);
  }
  const banks = rivals.map((words, bank) => {
    const wanted = `: lanes want ${words} different words of it, a wavefront for each`;
    return html`<span class="bank ${words > 1 ? "conflict" : ""}"
      style="grid-area: 1 / ${bank + 2}"
      data-hover="bank ${bank}${words > 1 ? wanted : ""}">${bank}</span>`;
  });
  const rows = drawn.map(({ given }, turn) => {
    const row = turn + 2, name = `wavefront ${turn + 1}`;
    const cells = given.map(({ bank, word, lanes: served, rivals: words }) => {
      const element = elementsAt(array, word * WORD_BYTES - array.start, WORD_BYTES);
      const hover = `${name}: bank ${bank} gives ${element} to ${laneWords(served)}`;
      return cell(served, hover, words > 1 ? "conflict" : "", `grid-area: ${row} / ${bank + 2}`);
    });
    return html`<span class="wavefront" style="grid-row: ${row}">${name}</span>
      <span class="track" style="grid-row: ${row}"></span>${cells}`;
  });
  return {
    drawn, title: "Shared memory",
    note: `banks across, ${count(recorded, "wavefront")} down (fewest ${least}); ` +
      "numbers are lanes",
    picture: html`<div class="banks">
      <span class="wavefront" style="grid-row: 1">bank</span>${banks}${rows}</div>`,
  };
}

/** The request as a table, for those who read it rather than see it. */
function drawTable({ lanes, offsets, addresses, array, width }) {
  const far = array.space === "global";
  const place = (address) =>
    (far ? Math.floor(address / SECTOR_BYTES) : Math.floor(address / WORD_BYTES) % BANKS);
  return table(
    ["lane", "wants", "byte of the array", far ? "sector" : "bank"],
    lanes.map((lane, i) => [
      lane, wish(array, offsets[i], width), offsets[i], place(addresses[i]),
    ]),
  );
}

// Which elements of each array the shown block touches, as pictures: the last two dimensions are
// rows and columns, and each slice along the others has a canvas.

const BITS = { load: 1, store: 2, atomic: 3 };
const STATES = ["not touched", "read", "written", "read and written"];
const COLOURS = ["untouched", "read", "written", "both"]; // of the states, in the style sheet
const WORDS = { load: "read", store: "written", atomic: "updated" };
const GAP = 6, MOST_SLICES = 160, MOST_ROWS = 320, TALLEST = 300;

class Footprint {
  /** `touched` are the footprints of this array: {operation, runs}. */
  constructor(array, touched, width) {
    const { shape } = array;
    this.array = array;
    this.size = shape.reduce((a, b) => a * b, 1);
    this.columns = shape.length > 1 ? shape.at(-1) : rowLength(this.size);
    this.rows = shape.length > 1 ? shape.at(-2) : Math.ceil(this.size / this.columns);
    this.states = new Map(); // element -> bits
    for (const { operation, runs } of touched) {
      for (const [first, length] of runs) {
        for (let element = first; element < first + length; element++) {
          this.states.set(element, this.states.get(element) | BITS[operation]);
        }
      }
    }
    this.layOut(width);
    this.figure = this.element(touched);
  }

  /** All slices where that is not too many, else those that are touched, as large as fits. */
  layOut(width) {
    const { columns } = this, places = [...this.states.keys()].map((one) => this.placeOf(one));
    const touched = places.map(({ row }) => row).sort((a, b) => a - b);
    const crop = this.rows > MOST_ROWS; // to the rows that are touched, and two around them
    this.top = crop ? Math.max(0, touched[0] - 2) : 0;
    const bottom = crop ? touched.at(-1) + 3 : this.rows;
    this.height = Math.min(bottom, this.rows, this.top + MOST_ROWS) - this.top;
    const all = Math.ceil(this.size / (this.rows * columns));
    const found = [...new Set(places.map(({ slice }) => slice))].sort((a, b) => a - b);
    const slices = all <= MOST_SLICES ? [...Array(all).keys()] : found.slice(0, MOST_SLICES);
    const across = (scale) => Math.floor((width + GAP) / (columns * scale + GAP));
    const fits = (scale) => across(scale) > 0 &&
      Math.ceil(slices.length / across(scale)) * (this.height * scale + GAP) - GAP <= TALLEST;
    const scale = this.scale = [9, 8, 7, 6, 5, 4, 3, 2].find(fits) || 1;
    const inRow = Math.max(1, Math.min(slices.length, across(scale)));
    this.width = inRow * (columns * scale + GAP) - GAP;
    this.notShown = all - slices.length;
    this.canvases = new Map(slices.map((slice) => {
      const canvas = document.createElement("canvas");
      Object.assign(canvas, { width: columns * scale, height: this.height * scale });
      canvas.addEventListener("pointermove", (event) => this.point(slice, event));
      return [slice, canvas.getContext("2d", { willReadFrequently: true })];
    }));
  }

  element(touched) {
    const { name, space, shape } = this.array, several = shape.length > 2;
    const told = Object.entries(WORDS).map(([operation, word]) => [
      touched.filter((one) => one.operation === operation).flatMap((one) => one.runs), word,
    ]).filter(([runs]) => runs.length).map(([runs, word]) => `${number(sum(runs, 1))} ${word}`);
    const about = `${space}, ${shape.join(" × ")}; ${told.join(", ")} of ${number(this.size)}`;
    this.note = [
      several && `${count(this.canvases.size, "slice")} of ${this.rows} × ${this.columns}`,
      this.notShown && `${number(this.notShown)} more not drawn`,
    ].filter(Boolean).join(", ");
    const figure = document.createElement("figure");
    figure.className = "footprint";
    figure.innerHTML = escaped(html`
      <figcaption><b>${name}</b> ${about}<br><span class="muted">${this.note}</span></figcaption>
      <div class="scrolls"><div class="slices" role="img" style="width: ${this.width}px"
        aria-label="${name}, ${about}"></div></div>`);
    this.hover = figure.querySelector("span");
    const slices = figure.querySelector(".slices");
    slices.append(...[...this.canvases.values()].map((context) => context.canvas));
    slices.addEventListener("pointerleave", () => { this.hover.textContent = this.note; });
    return figure;
  }

  /** Draws what the block touches, and keeps that for `mark`. */
  draw() {
    const { columns, scale, size } = this, colours = COLOURS.map(colour);
    const missing = this.rows * columns - size; // what the last row of a 1-D array lacks
    for (const context of this.canvases.values()) {
      const { width, height } = context.canvas;
      context.fillStyle = colours[0];
      context.fillRect(0, 0, width, height);
      const row = (this.rows - 1 - this.top) * scale;
      context.clearRect((columns - missing) * scale, row, missing * scale, scale);
    }
    for (const [element, state] of this.states) this.paint(element, colours[state]);
    this.drawn = new Map([...this.canvases].map(([slice, context]) =>
      [slice, context.getImageData(0, 0, context.canvas.width, context.canvas.height)]));
    this.marked = new Set();
  }

  /** Marks the elements of a request; none without one. */
  mark(request) {
    for (const slice of this.marked) {
      this.canvases.get(slice)?.putImageData(this.drawn.get(slice), 0, 0);
    }
    this.marked.clear();
    if (request?.array !== this.array) return;
    const now = colour("now"), { itemsize, shape } = this.array;
    for (const offset of request.offsets) {
      for (let byte = offset; byte < offset + request.width; byte += itemsize) {
        const element = numberOf(shape, indexAt(this.array, byte));
        if (element === null) continue;
        this.paint(element, now, this.scale < 4 ? 1 : 0);
        this.marked.add(this.placeOf(element).slice);
      }
    }
  }

  paint(element, style, grow = 0) {
    const { slice, row, column } = this.placeOf(element), { scale } = this;
    const context = this.canvases.get(slice);
    if (!context || row < this.top || row >= this.top + this.height) return;
    const size = scale - (scale < 4 ? 0 : 1) + 2 * grow; // with a line between large elements
    context.fillStyle = style;
    context.fillRect(column * scale - grow, (row - this.top) * scale - grow, size, size);
  }

  point(slice, { offsetX, offsetY }) {
    const row = Math.floor(offsetY / this.scale) + this.top;
    const column = Math.floor(offsetX / this.scale);
    const element = (slice * this.rows + row) * this.columns + column;
    const index = indexOf(this.array.shape, element);
    this.hover.textContent = index
      ? `${this.array.name}${bracketed(index)}: ${STATES[this.states.get(element) || 0]}`
      : this.note;
  }

  placeOf(element) {
    const row = Math.floor(element / this.columns);
    return {
      slice: Math.floor(row / this.rows), row: row % this.rows, column: element % this.columns,
    };
  }
}

/** How many elements of a 1-D array make a row: short arrays get short rows. */
function rowLength(size) {
  return [8, 16, 32, 64, 128].find((length) => size <= length * length) || 256;
}

/** One of the page's colours, which change with its theme. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
}
