// What memory does for one request, for drawing: the rules of convlab/simulation/rules/memory_traffic.py.
// A test runs both on the same requests.
"use strict";

const SECTOR_BYTES = 32, WORD_BYTES = 4, BANKS = 32, WARP = 32;

/** The list that a map has for a key, put there if it is new. */
const listAt = (map, key) => map.get(key) ?? map.set(key, []).get(key);

/** The sectors of global memory that a request touches, in order, each with the bytes wanted:
 *  {sector, wanted: Map(byte within the sector -> lanes)}. */
function sectorsOf(lanes, addresses, width) {
  const lanesAt = new Map(); // address -> lanes
  lanes.forEach((lane, i) => {
    for (let byte = 0; byte < width; byte++) listAt(lanesAt, addresses[i] + byte).push(lane);
  });
  const sectors = new Map();
  for (const [address, some] of [...lanesAt].sort(([a], [b]) => a - b)) {
    const sector = Math.floor(address / SECTOR_BYTES);
    listAt(sectors, sector).push([address - sector * SECTOR_BYTES, some]);
  }
  return [...sectors].map(([sector, bytes]) => ({ sector, wanted: new Map(bytes) }));
}

/** How the banks of shared memory serve a request: a list of wavefronts, each with the lanes that
 *  it could serve and what each bank gives: {from, to, given: [{bank, word, lanes, rivals}]}.
 *  `rivals` is how many words those lanes want of that bank. */
function wavefrontsOf(lanes, addresses, width, isLoad) {
  const together = lanesAtOnce(lanes, addresses, width, isLoad);
  const wavefronts = [];
  for (let from = 0; from < WARP; from += together) {
    const banks = Array.from({ length: BANKS }, () => new Map()); // of each: word -> lanes
    lanes.forEach((lane, i) => {
      if (lane < from || lane >= from + together) return;
      const first = Math.floor(addresses[i] / WORD_BYTES);
      for (let word = first; word < first + Math.ceil(width / WORD_BYTES); word++) {
        listAt(banks[word % BANKS], word).push(lane);
      }
    });
    const most = Math.max(...banks.map((words) => words.size));
    for (let turn = 0; turn < most; turn++) {
      const given = [];
      banks.forEach((words, bank) => {
        const [word, served] = [...words][turn] ?? [];
        if (served) given.push({ bank, word, lanes: served, rivals: words.size });
      });
      wavefronts.push({ from, to: from + together - 1, given });
    }
  }
  return wavefronts;
}

/** Lanes that are served together: fewer where each wants more than a word, except that loads are
 *  served twice as many at a time where neighbours, or next neighbours, want the same. */
function lanesAtOnce(lanes, addresses, width, isLoad) {
  if (width <= 4) return 32;
  const wanted = new Map(lanes.map((lane, i) => [lane, addresses[i]]));
  const alike = (step) => lanes.every((lane) =>
    [undefined, wanted.get(lane)].includes(wanted.get(lane ^ step)));
  const twice = isLoad && (alike(1) || alike(2)) ? 2 : 1;
  return twice * (width <= 8 ? 16 : 8);
}

/** How many different bytes the lanes want, and the fewest sectors or wavefronts with as many. */
const bytesWanted = (addresses, width) => new Set(addresses).size * width;
const fewestSectors = (bytes) => Math.ceil(bytes / SECTOR_BYTES);
const fewestWavefronts = (bytes) => Math.ceil(bytes / (WORD_BYTES * BANKS));

const sum = (records, name) => records.reduce((total, one) => total + one[name], 0);

// Elements of an array: where they lie and what they are called.

/** Whether a byte lies between the array's lowest and highest. */
function isWithin({ shape, strides, itemsize }, offset) {
  const last = shape.reduce((sum, size, axis) => sum + (size - 1) * Math.abs(strides[axis]), 0);
  return offset >= 0 && offset < last + itemsize;
}

/** The index of the element that lies at a byte; null outside the array and between two. */
function indexAt(array, offset) {
  const { shape, strides, itemsize } = array;
  if (!isWithin(array, offset)) return null;
  const index = new Array(shape.length), axes = [...shape.keys()];
  axes.sort((a, b) => Math.abs(strides[b]) - Math.abs(strides[a]));
  for (const axis of axes) {
    const step = Math.abs(strides[axis]), last = shape[axis] - 1;
    const place = step ? Math.min(Math.floor(offset / step), last) : 0;
    index[axis] = strides[axis] < 0 ? last - place : place;
    offset -= place * step;
  }
  return offset < itemsize ? index : null;
}

const bracketed = (index) => `[${index.join(", ")}]`;

/** Which elements lie in some bytes: `name[i, j]`, or `name[i, j]–[k, l]` for several. */
function elementsAt(array, offset, length = 1) {
  const found = [...Array(length).keys()].map((byte) => indexAt(array, offset + byte))
    .filter(Boolean).map(bracketed);
  const first = found[0], last = found.at(-1);
  if (first) return array.name + (first === last ? first : `${first}–${last}`);
  return isWithin(array, offset) ? `a gap in ${array.name}` : `outside of ${array.name}`;
}

/** What a lane wants: its element, or its first and last. */
function wish(array, offset, width) {
  const last = offset + width - array.itemsize;
  const through = last > offset ? ` to ${elementsAt(array, last)}` : "";
  return elementsAt(array, offset) + through;
}

/** The number of an element, counted in C order; null without an index. */
function numberOf(shape, index) {
  return index && index.reduce((sum, place, axis) => sum * shape[axis] + place, 0);
}

/** The index of an element in C order; null outside the array. */
function indexOf(shape, element) {
  const index = [];
  for (const extent of [...shape].reverse()) {
    index.unshift(element % extent);
    element = Math.floor(element / extent);
  }
  return element === 0 ? index : null;
}

// A request in words.

const NUMBER = new Intl.NumberFormat("en");
const VERBS = { load: "read", store: "write", atomic: "update" };
const NOUNS = { load: "load", store: "store", atomic: "atomic update" };

const number = (value) => NUMBER.format(value);
const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
const bytes = (value) => count(value, "byte");

/** 0-3, 8, 10 of a sorted list. */
function ranges(values) {
  const parts = [];
  for (const value of values) {
    const last = parts.at(-1);
    if (last && value === last[1] + 1) last[1] = value;
    else parts.push([value, value]);
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
}

/** What a request does, in one sentence; `drawn` are its sectors or its wavefronts. */
function sentenceOf({ lanes, offsets, addresses, width, operation, array }, drawn) {
  const far = array.space === "global", wanted = bytesWanted(offsets, width);
  const fewest = far ? fewestSectors(wanted) : fewestWavefronts(wanted);
  const enough = drawn.length === fewest ? "the fewest possible" : `${number(fewest)} would do`;
  const parts = [
    `${count(lanes.length, "lane")} ${VERBS[operation]} ${count(wanted, "different byte")} of ` +
      `${array.name}: ${count(drawn.length, far ? "sector" : "wavefront")}, ${enough}`,
  ];
  if (far) {
    const start = Math.min(...addresses) % SECTOR_BYTES;
    if (start && drawn.length > fewest) parts.push(`they begin ${bytes(start)} into a sector`);
    parts.push(`${bytes(drawn.length * SECTOR_BYTES)} move`);
  } else {
    const atOnce = drawn[0].to - drawn[0].from + 1;
    const rivals = Math.max(...drawn.flatMap(({ given }) => given.map((one) => one.rivals)));
    if (atOnce < WARP) parts.push(`${atOnce} lanes are served at a time`);
    if (rivals > 1) parts.push(`up to ${rivals} different words of one bank are wanted`);
  }
  if (operation === "atomic") {
    const at = new Map();
    for (const offset of offsets) listAt(at, offset).push(offset);
    const most = Math.max(...[...at.values()].map((some) => some.length));
    parts.push(`up to ${count(most, "lane")} at one element`);
  }
  return `${parts.join("; ")}.`;
}
