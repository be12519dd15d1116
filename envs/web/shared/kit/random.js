// Random numbers named by a text: the same text always gives the same numbers, on every machine.
//
// The text is hashed with two FNV-1a runs over its UTF-16 units, which seed sfc32 (Chris Doty-Humphrey, PractRand), a 128-bit generator
// with 32-bit outputs. Twelve outputs are thrown away so that near texts part ways.

/** Draws named by a text: `draws("shop/train/7")`. Each call begins the same sequence anew. */
export function draws(text) {
  const next = sfc32(text);
  const number = () => next() / 4294967296;
  const below = (count) => Math.floor(number() * count);
  const some = (list, count) => {
    const rest = [...list];
    return Array.from({ length: Math.min(count, rest.length) }, () => rest.splice(below(rest.length), 1)[0]);
  };
  const weighted = (pairs) => {
    let at = number() * pairs.reduce((sum, [, weight]) => sum + weight, 0);
    return (pairs.find(([, weight]) => (at -= weight) < 0) ?? pairs.at(-1))[0];
  };
  return {
    /** 0 up to but without 1. */
    number,
    /** A whole number from 0, below `count`. */
    below,
    /** A whole number, both ends included. */
    between: (low, high) => low + below(high - low + 1),
    /** A number with `digits` decimals, both ends included. */
    decimal: (low, high, digits = 1) => {
      const scale = 10 ** digits;
      return (Math.round(low * scale) + below(Math.round((high - low) * scale) + 1)) / scale;
    },
    /** True with probability `p`. */
    chance: (p = 0.5) => number() < p,
    one: (list) => list[below(list.length)],
    some,
    shuffled: (list) => some(list, list.length),
    weighted,
    /** Another sequence, named by this one and a word. */
    fork: (name) => draws(`${text}/${name}`),
  };
}

function sfc32(text) {
  let a = fnv(text, 0x811c9dc5),
    b = fnv(text, 0x1b873593),
    c = 0x9e3779b9,
    counter = 1;
  const next = () => {
    const sum = (a + b + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (((c << 21) | (c >>> 11)) + sum) | 0;
    return sum >>> 0;
  };
  for (let i = 0; i < 12; i++) next();
  return next;
}

function fnv(text, basis) {
  let hash = basis;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash | 0;
}
