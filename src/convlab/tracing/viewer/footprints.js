// Which elements of each array the shown block touches, as pictures: the last two dimensions are
// rows and columns, and each slice along the others has a canvas.
"use strict";

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
