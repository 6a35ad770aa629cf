/* Numbers as English text, by our own rules, never by the reader's locale; the same as
 * `jdpack.pages.number_text` and `jdpack.agent.in_words`. `words.js` puts them into a language. */
"use strict";

const jdpackWords = (() => {
  const { SHARE } = jdpack;

  function grouped(text) {
    const [whole, ...rest] = text.split(".");
    return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...rest].join(".");
  }

  /** A number of few digits. */
  function written(x) {
    if (x > 0 && (x < 1e-4 || x >= 1e15))
      return x.toExponential().replace(/e([+-])(\d)$/, "e$10$2");
    return grouped(String(x));
  }

  const exponent = (x) => Number(x.toExponential().split("e")[1]);

  /** x to this many digits, and one step of the last digit. */
  function near(x, digits) {
    return [Number(x.toPrecision(digits)), 10 ** (exponent(x) - digits + 1)];
  }

  const digitsOf = (x) => (x >= 1e-3 && x < 1e4 ? 4 : 3);

  /** Four digits, or all before the point; three if the number is very small or very large. */
  function short(x) {
    if (x >= 1e4 && x < 1e15) return written(Number(x.toFixed(0)));
    return written(near(x, digitsOf(x))[0]);
  }

  /** The same, but no larger than x. */
  function shortDown(x) {
    if (x >= 1e4 && x < 1e15) return written(Math.floor(x));
    const [found, step] = near(x, digitsOf(x));
    return written(found <= x ? found : near(found - step, digitsOf(x))[0]);
  }

  /** A number with few digits, not below x and not above a cap; people can type it. */
  function typedUp(x, cap) {
    for (let digits = 4; digits < 17; digits++) {
      const [found, step] = near(x, digits);
      const next = found >= x ? found : near(found + step, digits)[0];
      if (next >= x && next <= cap) return String(next);
    }
    return String(x);
  }

  /** A share in percent, rounded down; 0% and 100% only if exact. Null if it is less than 0.01%. */
  function shareText(share) {
    if (share === 0) return "0%";
    if (share === SHARE) return "100%";
    const hundredths = Math.floor((share * 10000) / SHARE);
    return hundredths === 0 ? null : `${(hundredths / 100).toFixed(2)}%`;
  }

  /** A factor, or null if it is just under 1. */
  function factorText(factor) {
    const text = (factor / SHARE).toFixed(4);
    return factor < SHARE && text === "1.0000" ? null : text;
  }

  /** A coin and a line on [0, 1), with enough digits to tell them apart. */
  function places(x, line) {
    for (let digits = 4; digits < 16; digits++) {
      const [a, b] = [x, line].map((y) => Math.floor(y * 10 ** digits) / 10 ** digits);
      if (a !== b || x === line) return [a.toFixed(digits), b.toFixed(digits)];
    }
    return [String(x), String(line)];
  }

  return { grouped, short, shortDown, typedUp, shareText, factorText, places };
})();
