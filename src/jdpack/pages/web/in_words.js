/* What a record gets, and why: first as texts, the same as `jdpack.agent.in_words`, then as elements of
 * the page. */
"use strict";

const jdpackOutcome = (() => {
  const { SHARE, PRICE_UNITS } = jdpack;
  const { short, shortDown, typedUp, shareText, factorText, places } = jdpackWords;

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

  const LONG = 30; // letters of an amount that may be broken after all

  /** Runs of text (`words.js`) as nodes. */
  function nodes(runs) {
    return runs.map(({ text, mark }) => {
      if (mark === "") return text;
      const [tag] = mark === "amount" ? ["span"] : mark.split(" ");
      const whole = mark.endsWith("amount") && text.length <= LONG;
      return element(tag, whole ? { class: "amount" } : {}, text);
    });
  }

  /** Returns `explain(mine)`, which gives the headline, its explanation, and whether anything is won;
   * and `said(mine)`, which gives the same as plain texts. */
  function of(market) {
    const { resources } = market;
    const language = jdpackLanguage.of(market.words);
    const { local, whole, runs, plain, say, withUnit, unbroken, joined } = language;
    const names = [...resources, ...market.derived].map(({ label }) => label);
    const worth = (units) => (units * market.value_step) / PRICE_UNITS; // price units in value
    const word = market.value_word; // what a value is

    const share = (x) => {
      const text = shareText(x);
      return text === null ? say("text.less_than", { number: local("0.01%") }) : local(text);
    };
    const factor = (x) => {
      const text = factorText(x);
      return text === null ? say("text.just_under_1") : local(text);
    };
    const amountOf = (text, amount, r) =>
      runs("text.amount_of", { amount: unbroken(withUnit(text, amount, r)), good: r.label });

    // --- texts --------------------------------------------------------------------------------

    /** The record that the answer is for, in words; the answer is right only if the record is. */
    function given(mine) {
      const own = [`${say("text.id")} ${mine.id}`];
      if (mine.group !== null) {
        const g = market.groups.indexOf(mine.group);
        own.push(`${market.labels.group} ${g < 0 ? mine.group : market.group_labels[g]}`);
      }
      const requests = mine.requests || [mine];
      const one = !mine.requests && mine.options.length === 1;
      for (const { name, options } of requests) {
        options.forEach(({ value, demand }, o) => {
          const which = name === undefined ? [] : [say("outcome.request", { name })];
          if (options.length > 1) which.push(say("outcome.option", { number: o + 1 }));
          const asked = demand.flatMap((amount, j) =>
            amount > 0 ? [plain(amountOf(String(amount), amount, resources[j]))] : [],
          );
          const stated = say("outcome.stated", { word, value: local(String(value)) });
          const begin = which.length ? `${which.join(", ")}${say("text.colon")}` : "";
          own.push(`${begin}${[stated, ...asked].join(", ")}`);
        });
      }
      return own.join(one ? ", " : "; ");
    }

    function notes(mine) {
      const found = [];
      const note = (key, given) => found.push(say(`outcome.note_${key}`, given));
      if (mine.id !== mine.id.trim()) note("space");
      else if (/[\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u.test(mine.id)) note("invisible");
      if (mine.group && !market.groups.includes(mine.group)) note("group", { group: mine.group });
      mine.options.forEach(({ value, demand }) => {
        if (value > market.max_value) note("value", { most: local(short(market.max_value)) });
        demand.forEach((amount, j) => {
          const r = resources[j];
          if (amount <= r.max_demand) return;
          note("demand", { most: withUnit(short(r.max_demand), r.max_demand, r), good: r.label });
        });
        jdpack.beyond(market, demand).forEach(({ text }) => note("total", { total: text }));
      });
      return [...new Set(found)];
    }

    function headline(outcome, got) {
      if (got.length === 0) return say("outcome.nothing");
      if (outcome.given.length === 1) {
        if (outcome.given[0] === SHARE) return say("outcome.everything");
        return say("outcome.part", { share: share(outcome.given[0]) });
      }
      const parts = got.map((o) =>
        outcome.given[o] === SHARE
          ? say("outcome.option", { number: o + 1 })
          : say("outcome.share_of_option", { share: share(outcome.given[o]), number: o + 1 }),
      );
      return say("outcome.some", { parts: joined(parts) });
    }

    /** The amounts that the reader gets, as runs, one list per good. */
    const listed = (sums) =>
      resources.flatMap((r, j) =>
        sums[j] > 0
          ? [
              runs("text.amount_of", {
                amount: { text: withUnit(shortDown(sums[j]), sums[j], r), mark: "strong amount" },
                good: r.label,
              }),
            ]
          : [],
      );

    function amounts(mine, outcome, got) {
      const sums = resources.map(() => 0);
      for (const o of got) {
        jdpack.counted(market, mine.options[o].demand).forEach((amount, j) => {
          sums[j] += (amount * outcome.given[o]) / SHARE;
        });
      }
      return sums;
    }

    /** The smallest value that is enough for an option, in few digits: not above the reader's own if
     * that is enough, and above it if not. */
    function needed(outcome, o, value) {
      const cost = outcome.paid[o];
      if (cost === null) return "–";
      const least = Math.ceil(cost / PRICE_UNITS) * market.value_step;
      return local(typedUp(least, outcome.surplus[o] >= 0 ? value : Infinity));
    }

    const ownValue = (option) => Math.min(option.value, market.max_value);

    function atPrices(outcome) {
      if (!market.batches) return say("outcome.at_final");
      return say("outcome.at_turn", { turn: outcome.rounds[0] + 1, turns: market.batches });
    }

    /** The steps that lead to the outcome, each as runs and the name of its drawing, if it has one. */
    function why(mine, outcome) {
      if (outcome.rounds.length === 0 && market.batches) return [{ said: runs("outcome.no_turn") }];
      return mine.options.length === 1 ? whyOne(mine, outcome) : whySeveral(mine, outcome);
    }

    function whyOne(mine, outcome) {
      const value = ownValue(mine.options[0]);
      const steps = [
        {
          said: runs(outcome.surplus[0] >= 0 ? "outcome.enough" : "outcome.not_enough", {
            prices: atPrices(outcome),
            word,
            needed: needed(outcome, 0, value),
            own: local(String(value)),
          }),
          draws: "scale",
        },
      ];
      const own = outcome.shares[0];
      if (!market.batches) {
        const even = new Set(outcome.weights).size <= 1;
        const partly = own > 0 && own < SHARE;
        steps.push({
          said: runs(`outcome.times${partly ? (even ? "_share" : "_weighted") : ""}`, {
            times: outcome.times[0],
            rounds: say("text.rounds", { count: outcome.rounds.length }),
            share: share(own),
          }),
        });
      }
      if (own > 0 && outcome.factors[0] < SHARE) {
        const given = { factor: factor(outcome.factors[0]), share: share(outcome.scaled[0]) };
        steps.push({ said: runs("outcome.scaled", given) });
      }
      if (!market.divisible && own > 0) steps.push(coinStep(outcome));
      return steps;
    }

    function whySeveral(mine, outcome) {
      const steps = [
        {
          said: runs(market.batches ? "outcome.several_turn" : "outcome.several", {
            prices: atPrices(outcome),
            word,
            rounds: outcome.rounds.length,
          }),
          draws: "table",
        },
      ];
      if (outcome.scaled.some((scaled, o) => scaled !== outcome.shares[o])) {
        const what = market.divisible ? "shares" : "chances";
        steps.push({ said: runs(`outcome.scaled_${what}`) });
      }
      if (!market.divisible && outcome.shares.some((own) => own > 0)) steps.push(coinStep(outcome));
      return steps;
    }

    /** Where the coin fell. */
    function coinStep(outcome) {
      if (outcome.places.some(([from, below]) => below - from === 2 ** 53))
        return { said: runs("outcome.certain") };
      const at = outcome.coin / 2 ** 53;
      const one = outcome.places.length === 1;
      const line = one ? outcome.places[0][1] / 2 ** 53 : 0;
      const [coin, limit] = places(at, line);
      const won = outcome.given.findIndex((g) => g > 0);
      const end = one
        ? runs(at < line ? "outcome.coin_yes" : "outcome.coin_no", { line: local(limit) })
        : won < 0
          ? runs("outcome.coin_off")
          : runs("outcome.coin_on", { number: won + 1 });
      const begin = runs(outcome.name === undefined ? "outcome.coin" : "outcome.coin_request", {
        coin: local(coin),
      });
      return { said: [...begin, { text: " ", mark: "" }, ...end], draws: "coin" };
    }

    /** One row per option, below the heads; empty if there is only one option. */
    function table(mine, outcome) {
      if (mine.options.length === 1 || outcome.rounds.length === 0) return [];
      const heads = ["option", "yours", "needed", "rounds", market.divisible ? "share" : "chance"];
      heads.push(...(market.divisible ? ["get"] : ["coin", "get"]));
      const place = (x) => local((x / 2 ** 53).toFixed(4));
      const rows = mine.options.map((option, o) => [
        String(o + 1),
        local(String(ownValue(option))),
        needed(outcome, o, ownValue(option)),
        whole(outcome.times[o]),
        share(outcome.scaled[o]),
        ...(market.divisible
          ? []
          : [outcome.shares[o] > 0 ? outcome.places[o].map(place).join("–") : "–"]),
        share(outcome.given[o]),
      ]);
      return [heads.map((head) => say(`outcome.head_${head}`)), ...rows];
    }

    // --- how close ----------------------------------------------------------------------------

    const ofCode = (code) => local(typedUp(code * market.value_step, market.max_value));

    /** A text about a value, such as "8.3 points", or "a value of 8.3" if it has no name. */
    function about(key, code, more) {
      const value = { value: ofCode(code), word };
      const said = market.value_name ? runs("outcome.worth_named", value) : runs("outcome.worth", value);
      return runs(`outcome.${key}`, { worth: said, ...more });
    }

    /** What another value would have got, as runs, one list per option. */
    function howClose(mine, outcome) {
      const one = mine.options.length === 1;
      return mine.options.map((_, o) => {
        const close = jdpack.closeness(market, outcome, o);
        const said = market.divisible ? ofParts(close) : ofWholes(close, one);
        if (one) return said;
        const lead = `${say("outcome.head_option")} ${o + 1}${say("text.colon")}`;
        return [{ text: lead, mark: "" }, ...said];
      });
    }

    function ofWholes(close, one) {
      if (close.given > 0) return close.kept > 0 ? about("kept", close.kept) : runs("outcome.kept_any");
      if (close.more !== null) return about("missed", close.more);
      return runs(one ? "outcome.never_coin" : "outcome.never");
    }

    function ofParts(close) {
      if (close.most_given === 0) return runs("outcome.never_any");
      if (close.given === close.most_given)
        return close.kept > 0 ? about("as_much", close.kept) : runs("outcome.as_much_any");
      const most = { most: ofCode(close.most), share: share(close.most_given) };
      return about(close.most > close.more ? "more_most" : "more", close.more, most);
    }

    // --- all of it ----------------------------------------------------------------------------

    const gotOf = (outcome) => outcome.given.flatMap((g, o) => (g > 0 ? [o] : []));

    /** The outcome of each request, with its own part of the record. */
    function each(mine) {
      if (!mine.requests) {
        return [[mine, jdpack.allocate(market, mine.id, mine.options, mine.group)]];
      }
      const outcomes = jdpack.allocateAll(market, mine.id, mine.requests, mine.group);
      return outcomes.map((outcome, r) => [{ ...mine, ...mine.requests[r] }, outcome]);
    }

    function total(all) {
      const sums = resources.map(() => 0);
      for (const [own, outcome] of all)
        amounts(own, outcome, gotOf(outcome)).forEach((amount, j) => (sums[j] += amount));
      return sums;
    }

    function mainLine(mine, all) {
      if (!mine.requests) return headline(all[0][1], gotOf(all[0][1]));
      const count = all.filter(([, outcome]) => gotOf(outcome).length > 0).length;
      return say("outcome.granted", { count, requests: say("text.requests", { count: all.length }) });
    }

    const leftOut = ({ left_out }) =>
      say("outcome.left_out_why", { bound: market.person.texts[left_out] });

    /** Everything as plain texts, in the words of `jdpack.agent.in_words`. */
    function said(mine) {
      const all = each(mine);
      return {
        given: given(mine),
        headline: mainLine(mine, all),
        goods: listed(total(all)).map(plain),
        each: all.map(([own, outcome]) =>
          outcome.left_out
            ? { left_out: leftOut(outcome) }
            : {
                headline: headline(outcome, gotOf(outcome)),
                notes: notes(own),
                why: why(own, outcome).map(({ said }) => plain(said)),
                table: table(own, outcome),
                close: howClose(own, outcome).map(plain),
              },
        ),
      };
    }

    // --- elements -----------------------------------------------------------------------------

    function explain(mine) {
      const all = each(mine);
      const outcomes = all.map(([, outcome]) => outcome);
      const goods = listed(total(all)).map((said) => element("li", {}, ...nodes(said)));
      const list = goods.length ? [element("ul", { class: "goods" }, ...goods)] : [];
      const inner = mine.requests
        ? [element("h3", {}, say("outcome.each_request")), ...all.map(oneRequest)]
        : reasons(...all[0]);
      return {
        headline: mainLine(mine, all),
        given: given(mine),
        code: jdpack.checkCode(market, mine.id, outcomes),
        parts: [...noted(mine.requests ? all.map(([own]) => own) : [mine]), ...list, ...inner],
        wins: goods.length > 0,
      };
    }

    function noted(records) {
      const found = new Set(records.flatMap(notes));
      return [...found].map((text) => element("p", { class: "note" }, text));
    }

    function oneRequest([own, outcome]) {
      const head = outcome.left_out ? say("outcome.left_out") : headline(outcome, gotOf(outcome));
      const goods = listed(amounts(own, outcome, gotOf(outcome)));
      const list = goods.map((said) => element("li", {}, ...nodes(said)));
      return element(
        "details",
        { class: "request" },
        element("summary", {}, element("strong", {}, outcome.name), ` ${head}`),
        ...(outcome.left_out
          ? [element("p", {}, leftOut(outcome))]
          : [
              ...(list.length ? [element("ul", { class: "goods" }, ...list)] : []),
              ...reasons(own, outcome),
            ]),
      );
    }

    function reasons(own, outcome) {
      const steps = why(own, outcome).map(({ said, draws }) =>
        element("li", {}, element("p", {}, ...nodes(said)), drawn(draws, own, outcome)),
      );
      const lines = howClose(own, outcome).map(nodes);
      return [
        element("h3", {}, say("outcome.why")),
        element("ol", { class: "steps" }, ...steps),
        element("h3", {}, say("outcome.close")),
        lines.length === 1
          ? element("p", {}, ...lines[0])
          : element("ul", {}, ...lines.map((parts) => element("li", {}, ...parts))),
        element("p", { class: "fine" }, say("outcome.all_else")),
        exact(own, outcome),
      ];
    }

    function drawn(draws, own, outcome) {
      if (draws === "scale") return scale(worth(outcome.paid[0]), ownValue(own.options[0]));
      if (draws === "coin") return coinLine(outcome, outcome.coin / 2 ** 53);
      return draws === "table" ? tableOf(table(own, outcome)) : null;
    }

    function tableOf([heads, ...rows]) {
      const cell = (text, i) => element("td", { role: "cell", "data-label": heads[i + 1] }, text);
      const body = rows.map(([number, ...cells]) =>
        element(
          "tr",
          { role: "row" },
          element("th", { scope: "row", role: "rowheader" }, `${heads[0]} ${number}`),
          ...cells.map(cell),
        ),
      );
      const head = (text) => element("th", { scope: "col", role: "columnheader" }, text);
      return element(
        "table",
        { class: "stacks", role: "table", "aria-label": say("outcome.options") },
        element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...heads.map(head))),
        element("tbody", { role: "rowgroup" }, ...body),
      );
    }

    // --- drawings -----------------------------------------------------------------------------

    /** Cost and worth as two bars. */
    function scale(cost, value) {
      const full = Math.max(cost, value) || 1;
      const length = (amount) => Math.max(1, Math.round((230 * amount) / full));
      const bar = (y, amount, kind, label) => [
        drawing("text", { x: 0, y: y + 13 }, label),
        drawing("path", { class: kind, d: `M90 ${y}h${length(amount)}v16h-${length(amount)}z` }),
      ];
      return drawing(
        "svg",
        { class: "gauge", viewBox: "0 0 320 42", "aria-hidden": "true" },
        ...bar(0, value, "worth", say("outcome.head_yours")),
        ...bar(24, cost, "cost", say("outcome.head_needed")),
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
                say("outcome.option", { number: o + 1 }),
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
      const none = say("outcome.exact_none");
      const number = (x) =>
        x === null || Number.isSafeInteger(x) ? `${x ?? none}` : say("outcome.exact_beyond");
      const lines = mine.options.flatMap((_, o) => {
        const { value, codes, touched } = outcome.options[o];
        const close = jdpack.closeness(market, outcome, o);
        const [from, below] = outcome.places[o].map(String);
        const own = {
          number: String(o + 1),
          value: String(value),
          demand: touched.map((j) => `${names[j]} ${codes[j]}`).join(", ") || none,
          won: String(outcome.won[o]),
          weight: String(market.weight),
          cost: number(outcome.paid[o]),
          surplus: number(outcome.surplus[o]),
          share: String(outcome.shares[o]),
          factor: String(outcome.factors[o]),
          scaled: String(outcome.scaled[o]),
          given: String(outcome.given[o]),
          whole: String(SHARE),
        };
        const [kept, more, most] = [close.kept, close.more, close.most].map(number);
        return [
          say("outcome.exact_option", own),
          ...(market.divisible ? [] : [say("outcome.exact_places", { from, below })]),
          say("outcome.exact_close", { kept, more, most }),
        ];
      });
      const text = [...lines, say("outcome.exact_coin", { coin: String(outcome.coin) })].join("\n");
      const title = say("outcome.exact");
      return element(
        "details",
        {},
        element("summary", {}, title),
        element("pre", { tabindex: "0", "aria-label": title }, text),
      );
    }

    return { explain, said };
  }

  return { of, element, nodes };
})();
