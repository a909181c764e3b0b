// Which elements of each array the shown block touches, as pictures: the last two dimensions are
// rows and columns, the others make slices.
"use strict";

const READ = 1, WRITTEN = 2;
const GAP = 6, MOST_SLICES = 160, MOST_ROWS = 320, TALLEST = 300;

class Footprint {
  /** `touched` are the footprints of this array: {operation, runs}. */
  constructor(array, touched, width) {
    this.array = array;
    this.touched = touched;
    this.layOut(width);
    this.figure = this.element();
  }

  layOut(width) {
    const shape = this.array.shape, size = shape.reduce((a, b) => a * b, 1);
    this.columns = shape.length > 1 ? shape[shape.length - 1] : rowLength(size);
    this.rows = shape.length > 1 ? shape[shape.length - 2] : Math.ceil(size / this.columns);
    this.size = size;
    const area = this.rows * this.columns, all = Math.ceil(size / area) || 0;
    const slices = new Set();
    let [top, bottom] = [this.rows, 0];
    for (const [first, length] of this.touched.flatMap((one) => one.runs)) {
      const last = first + length - 1;
      for (let s = Math.floor(first / area); s <= Math.floor(last / area); s++) slices.add(s);
      const through = Math.floor(first / area) !== Math.floor(last / area);
      top = Math.min(top, through ? 0 : Math.floor((first % area) / this.columns));
      bottom = Math.max(bottom, through ? this.rows : Math.floor((last % area) / this.columns) + 1);
    }
    // All slices where that is not too many, else those that are touched.
    const shown = all <= MOST_SLICES ? [...Array(all).keys()] : [...slices].sort((a, b) => a - b);
    this.slices = shown.slice(0, MOST_SLICES);
    this.notShown = all - this.slices.length;
    const crop = this.rows > MOST_ROWS && bottom - top < this.rows;
    this.top = crop ? Math.max(0, top - 2) : 0;
    this.bottom = Math.min(crop ? bottom + 2 : this.rows, this.top + MOST_ROWS);
    this.place = new Map(this.slices.map((slice, i) => [slice, i]));

    // As large as fits the width and is not too tall.
    const rows = this.bottom - this.top;
    for (this.scale = 9; ; this.scale--) {
      this.sliceWidth = this.columns * this.scale;
      this.sliceHeight = rows * this.scale;
      const fit = Math.floor((width + GAP) / (this.sliceWidth + GAP));
      this.across = Math.max(1, Math.min(this.slices.length, fit));
      this.height = Math.ceil(this.slices.length / this.across) * (this.sliceHeight + GAP) - GAP;
      if (this.scale === 1 || (fit >= 1 && this.height <= TALLEST)) break;
    }
    this.width = this.across * (this.sliceWidth + GAP) - GAP;
    this.height = Math.max(1, this.height);
  }

  element() {
    const { array } = this;
    const figure = make("figure", { class: "footprint" });
    const elements = (operations) => this.touched
      .filter((one) => operations.includes(one.operation))
      .reduce((sum, one) => sum + one.runs.reduce((n, run) => n + run[1], 0), 0);
    const told = [["load", "read"], ["store", "written"], ["atomic", "updated"]]
      .filter(([operation]) => elements([operation]))
      .map(([operation, word]) => `${number(elements([operation]))} ${word}`).join(", ");
    const about = `${array.space}, ${array.shape.join(" × ")}; ${told} of ${number(this.size)}`;
    const rest = array.shape.length > 2
      ? `${count(this.slices.length, "slice")} of ${this.rows} × ${this.columns}` : "";
    const hidden = this.notShown ? `${number(this.notShown)} more not drawn` : "";
    this.note = [rest, hidden].filter(Boolean).join(", ");
    this.hover = make("span", { class: "muted", text: this.note });
    figure.append(make("figcaption", {}, [
      make("b", { text: array.name }), ` ${about}`, make("br"), this.hover,
    ]));
    this.base = canvas(this.width, this.height);
    this.now = canvas(this.width, this.height);
    this.base.setAttribute("role", "img");
    this.base.setAttribute("aria-label", `${array.name}, ${about}`);
    this.now.setAttribute("aria-hidden", "true");
    this.now.addEventListener("pointermove", (event) => this.point(event));
    this.now.addEventListener("pointerleave", () => { this.hover.textContent = this.note; });
    const stack = make("div", { class: "stack" }, [this.base, this.now]);
    stack.style.width = `${this.width}px`;
    stack.style.height = `${this.height}px`;
    figure.append(make("div", { class: "scrolls" }, [stack]));
    return figure;
  }

  /** Draws what the block touches. */
  draw() {
    const context = fresh(this.base), colour = colours();
    const states = new Map(); // element -> READ | WRITTEN
    for (const { operation, runs } of this.touched) {
      const bit = operation === "load" ? READ : operation === "store" ? WRITTEN : READ | WRITTEN;
      for (const [first, length] of runs) {
        for (let e = first; e < first + length; e++) states.set(e, (states.get(e) || 0) | bit);
      }
    }
    this.states = states;
    context.fillStyle = colour.untouched;
    this.slices.forEach((slice, i) => {
      const [x, y] = this.corner(i);
      context.fillRect(x, y, this.sliceWidth, this.sliceHeight);
    });
    if (this.array.shape.length < 2) this.blank(context, colour.panel);
    const names = [null, colour.read, colour.written, colour.both];
    for (const [element, state] of states) this.cell(context, element, names[state]);
    this.lines(context, colour.panel);
  }

  /** What a last row of a 1-D array lacks. */
  blank(context, colour) {
    context.fillStyle = colour;
    for (let e = this.size; e < this.rows * this.columns; e++) this.cell(context, e, colour);
  }

  /** Marks the elements of a request; none without one. */
  mark(request) {
    const context = fresh(this.now);
    if (!request || request.array !== this.array) return;
    const colour = colours().now, { itemsize, shape } = this.array;
    for (const offset of request.offsets) {
      for (let byte = offset; byte < offset + request.width; byte += itemsize) {
        const element = numberOf(shape, indexAt(this.array, byte));
        if (element !== null) this.cell(context, element, colour, this.scale < 4 ? 1 : 0);
      }
    }
    this.lines(context, colours().panel);
  }

  cell(context, element, colour, grow = 0) {
    const area = this.rows * this.columns, slice = Math.floor(element / area);
    const row = Math.floor((element % area) / this.columns), column = element % this.columns;
    if (!this.place.has(slice) || row < this.top || row >= this.bottom) return;
    const [x, y] = this.corner(this.place.get(slice));
    context.fillStyle = colour;
    context.fillRect(
      x + column * this.scale - grow, y + (row - this.top) * this.scale - grow,
      this.scale + 2 * grow, this.scale + 2 * grow,
    );
  }

  corner(place) {
    return [
      (place % this.across) * (this.sliceWidth + GAP),
      Math.floor(place / this.across) * (this.sliceHeight + GAP),
    ];
  }

  /** Thin lines between elements, where these are large enough. */
  lines(context, colour) {
    if (this.scale < 4 || context.canvas !== this.base) return;
    context.fillStyle = colour;
    for (let i = 0; i < this.slices.length; i++) {
      const [x, y] = this.corner(i);
      for (let c = 1; c < this.columns; c++) {
        context.fillRect(x + c * this.scale - 0.5, y, 0.5, this.sliceHeight);
      }
      for (let r = 1; r < this.bottom - this.top; r++) {
        context.fillRect(x, y + r * this.scale - 0.5, this.sliceWidth, 0.5);
      }
    }
  }

  point(event) {
    const box = this.now.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const i = Math.floor(x / (this.sliceWidth + GAP)), j = Math.floor(y / (this.sliceHeight + GAP));
    const slice = this.slices[j * this.across + i];
    const column = Math.floor((x - i * (this.sliceWidth + GAP)) / this.scale);
    const row = Math.floor((y - j * (this.sliceHeight + GAP)) / this.scale) + this.top;
    const element = slice * this.rows * this.columns + row * this.columns + column;
    const index = column < this.columns && row < this.bottom && indexOf(this.array.shape, element);
    const word = ["not touched", "read", "written", "read and written"];
    this.hover.textContent = index
      ? `${this.array.name}[${index.join(", ")}]: ${word[this.states.get(element) || 0]}`
      : this.note;
  }
}

/** How many elements of a 1-D array make a row: short arrays get short rows. */
function rowLength(size) {
  for (const length of [8, 16, 32, 64, 128]) if (size <= length * length) return length;
  return 256;
}

function canvas(width, height) {
  const made = document.createElement("canvas"), dense = window.devicePixelRatio || 1;
  made.width = Math.ceil(width * dense);
  made.height = Math.ceil(height * dense);
  made.style.width = `${width}px`;
  made.style.height = `${height}px`;
  return made;
}

function fresh(made) {
  const context = made.getContext("2d"), dense = window.devicePixelRatio || 1;
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.clearRect(0, 0, made.width, made.height);
  return context;
}

/** The page's colours, which change with its theme. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["read", "written", "both", "now", "untouched", "panel"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
}
