/* Numbers in words, by rules of our own: never by the reader's locale. As `jdpack.wording`. */
"use strict";

const jdpackWords = (() => {
  const { SHARE } = jdpack;

  function grouped(text) {
    const [whole, ...rest] = text.split(".");
    return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...rest].join(".");
  }

  /** Four digits, or all before the point. */
  function short(x) {
    if (x === 0) return "0";
    if (x < 1e-3 || x >= 1e15) return String(Number(x.toPrecision(3)));
    return grouped(x < 1e4 ? String(Number(x.toPrecision(4))) : x.toFixed(0));
  }

  /** The same, but no larger than x. */
  function shortDown(x) {
    const near = Number(x.toPrecision(4));
    if (near <= x || x >= 1e4) return x >= 1e4 ? grouped(Math.floor(x).toFixed(0)) : short(x);
    return short(near - 10 ** (Math.floor(Math.log10(x)) - 3));
  }

  /** A number of few digits that is no smaller than x, and may be typed as it stands. */
  function shortUp(x, cap) {
    for (let digits = 4; digits < 17; digits++) {
      const exponent = Math.floor(Math.log10(x)) - digits + 1;
      const near = Number(x.toPrecision(digits));
      const next = near >= x ? near : Number((near + 10 ** exponent).toPrecision(digits));
      if (next >= x && next <= cap) return String(next);
    }
    return String(x);
  }

  /** A share of 1/SHARE in percent, rounded down; all and nothing only if it is. */
  function percent(share) {
    if (share === 0) return "0%";
    if (share === SHARE) return "100%";
    const hundredths = Math.floor((share * 10000) / SHARE);
    return hundredths === 0 ? "less than 0.01%" : `${(hundredths / 100).toFixed(2)}%`;
  }

  function factorText(factor) {
    const text = (factor / SHARE).toFixed(4);
    return factor < SHARE && text === "1.0000" ? "just under 1" : text;
  }

  /** A place on [0, 1), with as many digits as it takes to tell it from a line. */
  function place(x, line) {
    for (let digits = 4; digits < 16; digits++) {
      const [a, b] = [x, line].map((y) => Math.floor(y * 10 ** digits) / 10 ** digits);
      if (a !== b || x === line) return [a.toFixed(digits), b.toFixed(digits)];
    }
    return [String(x), String(line)];
  }

  const times = (count, word) => `${grouped(String(count))} ${word}${count === 1 ? "" : "s"}`;

  return { grouped, short, shortDown, shortUp, percent, factorText, place, times };
})();
