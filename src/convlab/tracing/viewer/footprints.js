// Which elements of each array the shown block touches, as pictures: the last two dimensions are
// rows and columns, and each slice along the others has a canvas.
"use strict";

const BITS = { load: 1, store: 2, atomic: 3 };
const STATES = ["not touched", "read", "written", "read and written"];
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
    let top = this.rows, bottom = 0;
    for (const { operation, runs } of touched) {
      for (const [first, length] of runs) {
        for (let element = first; element < first + length; element++) {
          this.states.set(element, this.states.get(element) | BITS[operation]);
          const { row } = this.placeOf(element);
          top = Math.min(top, row);
          bottom = Math.max(bottom, row + 1);
        }
      }
    }
    const crop = this.rows > MOST_ROWS; // to the rows that are touched, and two around them
    this.top = crop ? Math.max(0, top - 2) : 0;
    this.bottom = Math.min(crop ? bottom + 2 : this.rows, this.rows, this.top + MOST_ROWS);
    this.layOut(width);
    this.figure = this.element(touched);
  }

  /** All slices where that is not too many, else those that are touched, as large as fits. */
  layOut(width) {
    const { columns } = this, rows = this.bottom - this.top;
    const all = Math.ceil(this.size / (this.rows * columns));
    const found = new Set([...this.states.keys()].map((element) => this.placeOf(element).slice));
    const shown = all <= MOST_SLICES ? [...Array(all).keys()] : [...found].sort((a, b) => a - b);
    const slices = shown.slice(0, MOST_SLICES);
    const across = (scale) => Math.floor((width + GAP) / (columns * scale + GAP));
    const fits = (scale) => across(scale) > 0 &&
      Math.ceil(slices.length / across(scale)) * (rows * scale + GAP) - GAP <= TALLEST;
    this.scale = [9, 8, 7, 6, 5, 4, 3, 2].find(fits) || 1;
    const inRow = Math.max(1, Math.min(slices.length, across(this.scale)));
    this.width = inRow * (columns * this.scale + GAP) - GAP;
    this.notShown = all - slices.length;
    this.canvases = new Map(slices.map((slice) => {
      const canvas = make("canvas", { width: columns * this.scale, height: rows * this.scale });
      canvas.addEventListener("pointermove", (event) => this.point(slice, event));
      return [slice, canvas];
    }));
  }

  element(touched) {
    const { array } = this;
    const told = [["load", "read"], ["store", "written"], ["atomic", "updated"]]
      .map(([operation, word]) => [touched.filter((one) => one.operation === operation), word])
      .filter(([some]) => some.length).map(([some, word]) =>
        `${number(some.flatMap((one) => one.runs).reduce((n, run) => n + run[1], 0))} ${word}`);
    const about =
      `${array.space}, ${array.shape.join(" × ")}; ${told.join(", ")} of ${number(this.size)}`;
    this.note = [
      array.shape.length > 2 &&
        `${count(this.canvases.size, "slice")} of ${this.rows} × ${this.columns}`,
      this.notShown && `${number(this.notShown)} more not drawn`,
    ].filter(Boolean).join(", ");
    this.hover = make("span", { class: "muted", text: this.note });
    const slices = make("div", {
      class: "slices", style: `width: ${this.width}px`, role: "img",
      "aria-label": `${array.name}, ${about}`,
    }, [...this.canvases.values()]);
    slices.addEventListener("pointerleave", () => { this.hover.textContent = this.note; });
    return make("figure", { class: "footprint" }, [
      make("figcaption", {}, [
        make("b", { text: array.name }), ` ${about}`, make("br"), this.hover,
      ]),
      make("div", { class: "scrolls" }, [slices]),
    ]);
  }

  /** Draws what the block touches, and keeps that for `mark`. */
  draw() {
    const colour = colours(), { columns, scale, size } = this;
    const missing = this.rows * columns - size; // what the last row of a 1-D array lacks
    for (const canvas of this.canvases.values()) {
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.fillStyle = colour.untouched;
      context.fillRect(0, 0, canvas.width, canvas.height);
      if (this.array.shape.length < 2) {
        const row = (this.rows - 1 - this.top) * scale;
        context.clearRect((columns - missing) * scale, row, missing * scale, scale);
      }
    }
    const names = [null, colour.read, colour.written, colour.both];
    for (const [element, state] of this.states) this.paint(element, names[state]);
    this.drawn = new Map([...this.canvases].map(([slice, { width, height }]) =>
      [slice, this.context(slice).getImageData(0, 0, width, height)]));
    this.marked = new Set();
  }

  /** Marks the elements of a request; none without one. */
  mark(request) {
    for (const slice of this.marked) this.context(slice).putImageData(this.drawn.get(slice), 0, 0);
    this.marked.clear();
    if (!request || request.array !== this.array) return;
    const colour = colours().now, { itemsize, shape } = this.array;
    for (const offset of request.offsets) {
      for (let byte = offset; byte < offset + request.width; byte += itemsize) {
        const element = numberOf(shape, indexAt(this.array, byte));
        if (element === null) continue;
        this.paint(element, colour, this.scale < 4 ? 1 : 0);
        const { slice } = this.placeOf(element);
        if (this.canvases.has(slice)) this.marked.add(slice);
      }
    }
  }

  paint(element, colour, grow = 0) {
    const { slice, row, column } = this.placeOf(element), { scale } = this;
    if (!this.canvases.has(slice) || row < this.top || row >= this.bottom) return;
    const context = this.context(slice);
    const size = scale - (scale < 4 ? 0 : 1) + 2 * grow; // with a line between large elements
    context.fillStyle = colour;
    context.fillRect(column * scale - grow, (row - this.top) * scale - grow, size, size);
  }

  point(slice, { offsetX, offsetY }) {
    const row = Math.floor(offsetY / this.scale) + this.top;
    const column = Math.floor(offsetX / this.scale);
    const element = (slice * this.rows + row) * this.columns + column;
    const index = indexOf(this.array.shape, element);
    this.hover.textContent = index
      ? `${this.array.name}[${index.join(", ")}]: ${STATES[this.states.get(element) || 0]}`
      : this.note;
  }

  placeOf(element) {
    const row = Math.floor(element / this.columns);
    return {
      slice: Math.floor(row / this.rows), row: row % this.rows, column: element % this.columns,
    };
  }

  context(slice) {
    return this.canvases.get(slice).getContext("2d");
  }
}

/** How many elements of a 1-D array make a row: short arrays get short rows. */
function rowLength(size) {
  return [8, 16, 32, 64, 128].find((length) => size <= length * length) || 256;
}

/** The page's colours, which change with its theme. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["read", "written", "both", "now", "untouched"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
}
