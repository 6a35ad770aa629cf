/* What a record gets, and why, as elements of the page. */
"use strict";

const jdpackOutcome = (() => {
  const { SHARE, PRICE_UNITS } = jdpack;
  const { grouped, short, shortDown, typedUp, shareText, factorText, places, times } = jdpackWords;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  function drawing(tag, attributes = {}, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  /** An amount with its unit, in the singular if it is exactly one. */
  const withUnit = (text, amount, { unit, unit_one }) =>
    `${text} ${amount === 1 && unit_one ? unit_one : unit}`.trim();

  const sentence = (...parts) => element("p", {}, ...parts);
  const NO_TURN = "The run ended before your turn came.";
  const strong = (text) => element("strong", {}, text);

  /** Returns `explain(mine)`, which gives the headline, its explanation, and whether anything is won. */
  function of(market) {
    const { resources } = market;
    const names = [...resources, ...market.derived].map(({ name }) => name);
    const worth = (units) => (units * market.value_step) / PRICE_UNITS; // price units in value
    const word = market.value_name || market.columns.value; // what a value is

    function explain(mine) {
      if (mine.requests) return explainAll(mine);
      return explainOne(mine, jdpack.allocate(market, mine.id, mine.options, mine.group));
    }

    /** All requests of a person: what they get in sum, and each of them. */
    function explainAll(mine) {
      const outcomes = jdpack.allocateAll(market, mine.id, mine.requests, mine.group);
      const each = mine.requests.map(({ options }) => ({ ...mine, options }));
      const got = outcomes.map(({ given }) => given.flatMap((g, o) => (g > 0 ? [o] : [])));
      const sums = resources.map(() => 0);
      outcomes.forEach((outcome, r) =>
        amounts(each[r], outcome, got[r]).forEach((amount, j) => (sums[j] += amount)),
      );
      const count = got.filter((own) => own.length > 0).length;
      const parts = outcomes.map((outcome, r) => {
        const { headline, parts } = outcome.left_out
          ? { headline: "It gets nothing: it is left out.", parts: [sentence(leftOut(outcome))] }
          : explainOne(each[r], outcome);
        return element(
          "details",
          { class: "request" },
          element("summary", {}, strong(outcome.name), ` ${headline}`),
          ...parts,
        );
      });
      return {
        headline: `${grouped(String(count))} of your ${times(got.length, "request")} ${count === 1 ? "gets" : "get"} something.`,
        given: given(mine),
        code: jdpack.checkCode(market, mine.id, outcomes),
        parts: [...listed(sums), element("h3", {}, "Each request"), ...parts],
        wins: count > 0,
      };
    }

    function leftOut({ left_out }) {
      return `In all, ${market.person.texts[left_out]}. With the requests before it, this one would go beyond that, so it gets nothing.`;
    }

    function explainOne(mine, outcome) {
      const one = mine.options.length === 1;
      const got = outcome.given.flatMap((g, o) => (g > 0 ? [o] : []));
      const parts = [
        ...notes(mine),
        ...goods(mine, outcome, got),
        element("h3", {}, "Why"),
        one ? whyOne(mine, outcome) : whySeveral(mine, outcome),
        element("h3", {}, "How close it was"),
        ...howClose(mine, outcome),
        exact(mine, outcome),
      ];
      return {
        headline: headline(outcome, one, got),
        given: given(mine),
        code: jdpack.checkCode(market, mine.id, [outcome]),
        parts,
        wins: got.length > 0,
      };
    }

    /** The record that the answer is for, in words; the answer is right only if the record is. */
    function given(mine) {
      const own = [`id ${mine.id}`];
      if (mine.group !== null) own.push(`${market.columns.group} ${mine.group}`);
      const requests = mine.requests || [mine];
      const one = !mine.requests && mine.options.length === 1;
      for (const { name, options } of requests) {
        options.forEach(({ value, demand }, o) => {
          const which = name === undefined ? [] : [`request “${name}”`];
          if (options.length > 1) which.push(`option ${o + 1}`);
          const asked = demand.flatMap((amount, j) =>
            amount > 0 ? [`${withUnit(amount, amount, resources[j])} of ${resources[j].name}`] : [],
          );
          const parts = [`${word} ${value}`, ...asked].join(", ");
          own.push(which.length ? `${which.join(", ")}: ${parts}` : parts);
        });
      }
      return own.join(one ? ", " : "; ");
    }

    function headline(outcome, one, got) {
      if (got.length === 0) return "You get nothing this time.";
      const parts = got.map((o) => {
        const what = one ? "what you asked for" : `option ${o + 1}`;
        return outcome.given[o] === SHARE ? what : `${shareText(outcome.given[o])} of ${what}`;
      });
      if (one && outcome.given[0] === SHARE) return "You get everything you asked for.";
      return `You get ${parts.join(" and ")}.`;
    }

    function notes(mine) {
      const found = [];
      if (mine.id !== mine.id.trim())
        found.push(
          "Your id begins or ends with a space, and that counts. Does the organiser’s list have it like that?",
        );
      else if (/[\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u.test(mine.id))
        found.push(
          "Your id has an invisible character, and that counts. Does the organiser’s list have it like that?",
        );
      if (mine.group && !market.groups.includes(mine.group))
        found.push(`“${mine.group}” is none of the groups here, so you count in none.`);
      mine.options.forEach(({ value, demand }) => {
        if (value > market.max_value)
          found.push(
            `A value above ${short(market.max_value)} counts as ${short(market.max_value)}, the highest value allowed.`,
          );
        demand.forEach((amount, j) => {
          const { name, max_demand } = resources[j];
          if (amount > max_demand)
            found.push(
              `You may ask for at most ${short(max_demand)} of ${name}; more counts as that.`,
            );
        });
        jdpack.beyond(market, demand).forEach(({ text }) =>
          found.push(
            `You may ask for at most ${text}. In the order of the goods, what goes beyond that does not count.`,
          ),
        );
      });
      return [...new Set(found)].map((text) => element("p", { class: "note" }, text));
    }

    /** The amounts that the reader gets. */
    const goods = (mine, outcome, got) => listed(amounts(mine, outcome, got));

    function amounts(mine, outcome, got) {
      const sums = resources.map(() => 0);
      for (const o of got) {
        jdpack.counted(market, mine.options[o].demand).forEach((amount, j) => {
          sums[j] += (amount * outcome.given[o]) / SHARE;
        });
      }
      return sums;
    }

    function listed(sums) {
      const list = resources.flatMap((r, j) =>
        sums[j] > 0
          ? [element("li", {}, strong(withUnit(shortDown(sums[j]), sums[j], r)), ` of ${r.name}`)]
          : [],
      );
      return list.length ? [element("ul", { class: "goods" }, ...list)] : [];
    }

    /** What an option costs at the final prices, or at those of the reader's turn. */
    function costOf(outcome, o) {
      return outcome.paid[o] === null ? null : worth(outcome.paid[o]);
    }

    /** The smallest value that is enough for an option, in few digits: not above the reader's own if
     * that is enough, and above it if not. */
    function needed(outcome, o, value) {
      const cost = outcome.paid[o];
      if (cost === null) return "–";
      const least = Math.ceil(cost / PRICE_UNITS) * market.value_step;
      return typedUp(least, outcome.surplus[o] >= 0 ? value : Infinity);
    }

    const ownValue = (option) => Math.min(option.value, market.max_value);

    function atPrices(outcome) {
      if (!market.batches) return "At the final prices";
      return `Your turn was round ${grouped(String(outcome.rounds[0] + 1))} of ${grouped(String(market.batches))}. At its prices`;
    }

    function whyOne(mine, outcome) {
      const steps = [];
      const cost = costOf(outcome, 0);
      const value = ownValue(mine.options[0]);
      if (cost === null) {
        steps.push([sentence(NO_TURN)]);
      } else {
        steps.push([
          sentence(
            `${atPrices(outcome)}: ${word} needed `,
            strong(needed(outcome, 0, value)),
            ", yours ",
            strong(String(value)),
            outcome.surplus[0] >= 0 ? ". That is enough." : ". That is not enough.",
          ),
          scale(cost, value),
        ]);
      }
      const [count, all] = [outcome.times[0], outcome.rounds.length];
      if (!market.batches) {
        const share = outcome.shares[0];
        const even = new Set(outcome.weights).size <= 1;
        steps.push([
          sentence(
            `It was enough in `,
            strong(`${grouped(String(count))} of the ${times(all, "round")}`),
            " that count",
            share === 0 || share === SHARE
              ? "."
              : even
                ? `: a share of ${shareText(share)}.`
                : `. By the weights of the rounds, that is a share of ${shareText(share)}.`,
          ),
        ]);
      }
      if (outcome.shares[0] > 0 && outcome.factors[0] < SHARE) {
        steps.push([
          sentence(
            `So that everything fits, shares of these goods are scaled by ${factorText(outcome.factors[0])}. That leaves ${shareText(outcome.odds[0])}.`,
          ),
        ]);
      }
      if (!market.divisible && outcome.shares[0] > 0) steps.push(coinStep(outcome));
      return element("ol", { class: "steps" }, ...steps.map((step) => element("li", {}, ...step)));
    }

    /** Where the coin fell. */
    function coinStep(outcome) {
      if (outcome.places.some(([from, below]) => below - from === 2 ** 53))
        return [sentence("Nothing is left to chance.")];
      const at = outcome.coin / 2 ** 53;
      const from = outcome.name === undefined ? "your id" : "your id, the name of the request";
      const texts = [
        `The goods are indivisible, so a coin decides. Yours, a number that follows from ${from} and the public seed, is `,
      ];
      if (outcome.places.length > 1) {
        const won = outcome.given.findIndex((g) => g > 0);
        texts.push(
          strong(places(at, 0)[0]),
          won >= 0 ? `. It falls on option ${won + 1}.` : ". It falls on none of your options.",
        );
      } else {
        const line = outcome.places[0][1] / 2 ** 53;
        const [coin, limit] = places(at, line);
        texts.push(
          strong(coin),
          `. You get the goods if it is below ${limit}, and it is${at < line ? "" : " not"}.`,
        );
      }
      return [sentence(...texts), coinLine(outcome, at)];
    }

    function whySeveral(mine, outcome) {
      const heads = ["Yours", "Needed", "Rounds", market.divisible ? "Share" : "Chance", "You get"];
      const rows = mine.options.map((option, o) => {
        const cells = [
          String(ownValue(option)),
          needed(outcome, o, ownValue(option)),
          String(outcome.times[o]),
          shareText(outcome.odds[o]),
          shareText(outcome.given[o]),
        ];
        return element(
          "tr",
          { role: "row" },
          element("th", { scope: "row", role: "rowheader" }, `Option ${o + 1}`),
          ...cells.map((text, i) => element("td", { role: "cell", "data-label": heads[i] }, text)),
        );
      });
      const table = element(
        "table",
        { class: "stacks", role: "table", "aria-label": "Your options" },
        element(
          "thead",
          { role: "rowgroup" },
          element(
            "tr",
            { role: "row" },
            ...["Option", ...heads].map((text) =>
              element("th", { scope: "col", role: "columnheader" }, text),
            ),
          ),
        ),
        element("tbody", { role: "rowgroup" }, ...rows),
      );
      const rounds = outcome.rounds.length;
      if (rounds === 0) return sentence(NO_TURN);
      const steps = [
        [
          sentence(
            `${atPrices(outcome)}: the ${word} that each option needs. In each round you take the one with most to spare, if any has enough`,
            market.batches
              ? "."
              : `; the table counts the rounds (out of the ${grouped(String(rounds))} that count).`,
          ),
          table,
        ],
      ];
      if (outcome.odds.some((odds, o) => odds !== outcome.shares[o])) {
        steps.push([
          sentence(
            `So that everything fits, the ${market.divisible ? "shares" : "chances"} are scaled down; the table shows them after that.`,
          ),
        ]);
      }
      if (!market.divisible && outcome.shares.some((share) => share > 0))
        steps.push(coinStep(outcome));
      return element(
        "ol",
        { class: "steps" },
        ...steps.map((step) => element("li", {}, ...step.filter(Boolean))),
      );
    }

    // --- how close ----------------------------------------------------------------------------

    const valueName = market.value_name;
    const exactly = (code) =>
      valueName ? [strong(ofCode(code)), ` ${valueName}`] : ["a value of ", strong(ofCode(code))];
    const atLeast = (code) =>
      valueName
        ? [strong(ofCode(code)), ` ${valueName} or more`]
        : ["any value of at least ", strong(ofCode(code))];
    const ofCode = (code) => typedUp(code * market.value_step, market.max_value);

    function howClose(mine, outcome) {
      const lines = mine.options.map((_, o) => {
        const close = jdpack.closeness(market, outcome, o);
        return closeOne(close, mine.options.length === 1 ? "" : `Option ${o + 1}: `);
      });
      const close =
        lines.length === 1
          ? [sentence(...lines[0])]
          : [element("ul", {}, ...lines.map((parts) => element("li", {}, ...parts)))];
      return [
        ...close,
        element("p", { class: "fine" }, "All else equal, at the same public prices."),
      ];
    }

    function closeOne(close, lead) {
      const parts = [lead];
      if (market.divisible) {
        if (close.given === close.most_given && close.given > 0) {
          if (close.kept > 0)
            parts.push(...atLeast(close.kept), " would have got as much, and no value more.");
          else parts.push("any value would have got as much.");
        } else if (close.most_given === 0) {
          parts.push("no allowed value would have got you anything.");
        } else {
          parts.push(
            "with ",
            ...exactly(close.more),
            " or more you would have got more",
            close.most > close.more
              ? `, and with ${ofCode(close.most)} or more the maximum, ${shareText(close.most_given)}.`
              : `: ${shareText(close.most_given)}.`,
          );
        }
      } else if (close.given > 0) {
        if (close.kept > 0) parts.push("you would have got it with ", ...atLeast(close.kept), ".");
        else parts.push("you would have got it whatever your value.");
      } else if (close.more !== null) {
        parts.push("with ", ...exactly(close.more), " you would have got it.");
      } else {
        const never = "no allowed value would have got it.";
        parts.push(lead ? never : `with this coin, ${never}`);
      }
      if (!lead) {
        const first = parts.findIndex((part) => typeof part === "string" && part);
        parts[first] = parts[first][0].toUpperCase() + parts[first].slice(1);
      }
      return parts;
    }

    // --- drawings -----------------------------------------------------------------------------

    /** Cost and worth as two bars. */
    function scale(cost, value) {
      const full = Math.max(cost, value) || 1;
      const length = (amount) => Math.max(1, Math.round((268 * amount) / full));
      const bar = (y, amount, kind, label) => [
        drawing("text", { x: 0, y: y + 13 }, label),
        drawing("path", { class: kind, d: `M52 ${y}h${length(amount)}v16h-${length(amount)}z` }),
      ];
      return drawing(
        "svg",
        { class: "gauge", viewBox: "0 0 320 42", "aria-hidden": "true" },
        ...bar(0, value, "worth", "Yours"),
        ...bar(24, cost, "cost", "Needed"),
      );
    }

    /** The line from 0 to 1 with the options on it, and the coin as a pin. */
    function coinLine(outcome, at) {
      const wide = 304;
      const x = (share) => ((wide * share) / SHARE).toFixed(2);
      const parts = [drawing("path", { class: "rest", d: `M0 18h${wide}v14H0z` })];
      let begin = 0;
      outcome.shares.forEach((share, o) => {
        const kept = (share * outcome.factors[o]) / SHARE;
        if (share > 0) {
          parts.push(
            drawing("path", { class: "no", d: `M${x(begin)} 18h${x(share)}v14h-${x(share)}z` }),
          );
          parts.push(
            drawing("path", { class: "yes", d: `M${x(begin)} 18h${x(kept)}v14h-${x(kept)}z` }),
          );
          parts.push(drawing("path", { class: "edge", d: `M${x(begin + share)} 18v14` }));
          if (outcome.shares.length > 1 && share > SHARE / 5)
            parts.push(
              drawing(
                "text",
                { x: x(begin + share / 2), y: 48, "text-anchor": "middle" },
                `option ${o + 1}`,
              ),
            );
        }
        begin += share;
      });
      const pin = wide * at;
      parts.push(drawing("path", { class: "pin", d: `M${pin.toFixed(2)} 18l-6-12h12z` }));
      parts.push(
        drawing("text", { class: "faint", x: 0, y: 48 }, "0"),
        drawing("text", { class: "faint", x: wide, y: 48, "text-anchor": "end" }, "1"),
      );
      return drawing(
        "svg",
        { class: "gauge", viewBox: `-8 0 ${wide + 16} 52`, "aria-hidden": "true" },
        ...parts,
      );
    }

    /** The whole numbers behind the outcome, to compare with other programs. */
    function exact(mine, outcome) {
      const whole = (x) =>
        x === null || Number.isSafeInteger(x) ? `${x ?? "none"}` : "beyond every value";
      const lines = mine.options.map((_, o) => {
        const { value, codes, touched } = outcome.options[o];
        const close = jdpack.closeness(market, outcome, o);
        return [
          `option ${o + 1}`,
          `value code ${value}`,
          `demand codes ${touched.map((j) => `${names[j]} ${codes[j]}`).join(", ") || "none"}`,
          `weight won ${outcome.won[o]} of ${market.weight}`,
          `cost ${whole(outcome.paid[o])}, surplus ${whole(outcome.surplus[o])} (2^20 are a value code)`,
          `share ${outcome.shares[o]}, factor ${outcome.factors[o]}, scaled ${outcome.odds[o]}, given ${outcome.given[o]} (of ${SHARE})`,
          ...(market.divisible
            ? []
            : [`given if the coin is from ${outcome.places[o][0]} and below ${outcome.places[o][1]}`]),
          `as much from value code ${close.kept}, more from ${close.more ?? "none"}, most from ${close.most}`,
        ].join("\n  ");
      });
      const text = [...lines, `coin ${outcome.coin} (of 2^53)`].join("\n");
      return element(
        "details",
        {},
        element("summary", {}, "The exact numbers"),
        element("pre", { tabindex: "0", "aria-label": "The exact numbers" }, text),
      );
    }

    return explain;
  }

  return { of, element, withUnit };
})();
