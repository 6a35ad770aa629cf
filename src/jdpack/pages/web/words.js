/* The words of one language (`jdpack.common.language`), and numbers as it writes them.
 *
 * A text is a list of runs, {text, mark}: mark is "strong" or "code", "amount" for what must not be
 * broken, or "". Only `in_words.js` makes elements of them, so this file runs in any JavaScript.
 */
"use strict";

const jdpackLanguage = (() => {
  const MARKS = { "**": "strong", "`": "code" };

  /** `words` has the code of the language and its texts by section. */
  function of(words) {
    const { decimal, group, group_from, percent } = words.number;
    const rules = new Intl.PluralRules(words.code);

    /** A number from English digits: "1,234.5%" becomes "1.234,5 %" in German. */
    function local(text) {
      if (text.endsWith("%")) return percent.replace("{number}", local(text.slice(0, -1)));
      const [whole, ...rest] = text.split(".");
      const digits = whole.replace(/\D/g, "").length;
      const grouped = whole.replaceAll(",", digits >= group_from ? group : "");
      return [grouped, ...rest].join(decimal);
    }

    const whole = (count) => local(jdpackWords.grouped(String(count)));

    /** A text without marks, or one that has them (`runs`); `count` chooses the plural form. */
    function template(key, given) {
      const [section, name] = key.split(".");
      const found = words[section][name];
      if (typeof found === "string") return found;
      return found[rules.select(given.count)] ?? found.other;
    }

    function runs(key, given = {}) {
      const found = [];
      let mark = "";
      for (const part of template(key, given).split(/(\*\*|`|\{\w+\})/)) {
        if (Object.hasOwn(MARKS, part)) mark = mark ? "" : MARKS[part];
        else if (!/^\{\w+\}$/.test(part)) found.push({ text: part, mark });
        else {
          const value = given[part.slice(1, -1)];
          if (value === undefined) throw new Error(`${key} lacks ${part}`);
          if (Array.isArray(value)) found.push(...value);
          else if (typeof value === "object") found.push({ ...value, mark: mark || value.mark });
          else found.push({ text: typeof value === "number" ? whole(value) : value, mark });
        }
      }
      return found.filter(({ text }) => text !== "");
    }

    const plain = (all) => all.map(({ text }) => text).join("");
    const say = (key, given) => plain(runs(key, given));

    /** An amount with its unit, in the singular if the language has it for this amount. */
    function withUnit(text, amount, { unit, unit_one }) {
      const one = unit_one && rules.select(amount) === "one";
      return `${local(text)} ${one ? unit_one : unit}`.trim();
    }

    /** The same as a run that is not broken. */
    const unbroken = (text) => ({ text, mark: "amount" });

    /** Parts as in "a, b and c". */
    function joined(parts) {
      if (parts.length === 1) return parts[0];
      return say("text.and", { first: parts.slice(0, -1).join(", "), last: parts.at(-1) });
    }

    /** A number as a person types it: {number}, {meant: [small, large]} if it could be either, or {}.
     *
     * A point or a comma is the decimal sign. The language's own mark for thousands, before three
     * digits, could mean either.
     */
    function typed(text) {
      const bare = text.trim();
      if (!/^(\d+(\.\d*|,\d+)?|[.,]\d+)(e[+-]?\d+)?$/i.test(bare)) return {};
      const number = Number(bare.replace(",", "."));
      if (number === Infinity) return {};
      const [, sign] = bare.match(/^[1-9]\d{0,2}([.,])\d{3}$/) || [];
      if (sign !== undefined && sign === group)
        return { meant: [local(String(number)), bare.replace(sign, "")] };
      return { number };
    }

    return { local, whole, runs, plain, say, withUnit, unbroken, joined, typed };
  }

  return { of };
})();
