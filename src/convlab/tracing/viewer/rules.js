// What memory does for one request: convlab/engines/memory_rules.py again, for drawing.
// A test runs both on the same requests.
"use strict";

const SECTOR_BYTES = 32, WORD_BYTES = 4, BANKS = 32, WARP = 32;

/** The sectors of global memory that a request touches, in order, each with the bytes wanted:
 *  {sector, wanted: Map(byte within the sector -> lanes)}. */
function sectorsOf(lanes, addresses, width) {
  const sectors = new Map();
  lanes.forEach((lane, i) => {
    for (let address = addresses[i]; address < addresses[i] + width; address++) {
      const number = Math.floor(address / SECTOR_BYTES);
      if (!sectors.has(number)) sectors.set(number, { sector: number, wanted: new Map() });
      const wanted = sectors.get(number).wanted, byte = address - number * SECTOR_BYTES;
      if (!wanted.has(byte)) wanted.set(byte, []);
      wanted.get(byte).push(lane);
    }
  });
  return [...sectors.values()].sort((a, b) => a.sector - b.sector);
}

/** How the banks of shared memory serve a request: a list of passes, each with the lanes that it
 *  could serve and what each bank gives: {from, to, given: [{bank, word, lanes, rivals}]}.
 *  `rivals` is how many words those lanes want of that bank. */
function passesOf(lanes, addresses, width, isLoad) {
  const together = lanesAtOnce(lanes, addresses, width, isLoad);
  const passes = [];
  for (let from = 0; from < WARP; from += together) {
    const banks = Array.from({ length: BANKS }, () => new Map()); // of each: word -> lanes
    lanes.forEach((lane, i) => {
      if (lane < from || lane >= from + together) return;
      const first = Math.floor(addresses[i] / WORD_BYTES);
      for (let word = first; word < first + Math.ceil(width / WORD_BYTES); word++) {
        const bank = banks[word % BANKS];
        if (!bank.has(word)) bank.set(word, []);
        bank.get(word).push(lane);
      }
    });
    const most = Math.max(...banks.map((words) => words.size));
    for (let turn = 0; turn < most; turn++) {
      const given = [];
      banks.forEach((words, bank) => {
        const word = [...words.keys()][turn];
        if (word !== undefined) {
          given.push({ bank, word, lanes: words.get(word), rivals: words.size });
        }
      });
      passes.push({ from, to: from + together - 1, given });
    }
  }
  return passes;
}

/** Lanes that are served together: fewer where each wants more than a word, except that loads are
 *  served twice as many at a time where neighbours, or next neighbours, want the same. */
function lanesAtOnce(lanes, addresses, width, isLoad) {
  if (width <= 4) return 32;
  const wanted = new Array(WARP).fill(null);
  lanes.forEach((lane, i) => { wanted[lane] = addresses[i]; });
  const alike = (step) => wanted.every((address, lane) => {
    const other = wanted[lane ^ step];
    return address === null || other === null || address === other;
  });
  const twice = isLoad && (alike(1) || alike(2)) ? 2 : 1;
  return twice * (width <= 8 ? 16 : 8);
}

/** How many different bytes the lanes want. */
function bytesWanted(addresses, width) {
  return new Set(addresses).size * width;
}

const fewestSectors = (bytes) => Math.ceil(bytes / SECTOR_BYTES);
const fewestPasses = (bytes) => Math.ceil(bytes / (WORD_BYTES * BANKS));
