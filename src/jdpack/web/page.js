/* "What do I get?": the form of the billboard page. All of it happens here, in the reader's own
 * browser: there is no request in this file, and the page's security policy would forbid one.
 */
"use strict";

(() => {
  const LISTED = 8; // so many goods have a field each; of more, one picks those that one needs
  const { SHARE, PRICE_UNITS } = jdpack;
  const market = JSON.parse(document.getElementById("market").textContent);
  const { resources } = market;
  const listed = resources.length <= LISTED;
  const $ = (id) => document.getElementById(id);
  let made = 0; // elements that were given an id

  // --- elements -----------------------------------------------------------------------------

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

  /** A field with its label, a hint, and a place for what is wrong with it. */
  function field(label, hint, control, unit) {
    const id = `f${++made}`;
    control.id = id;
    control.setAttribute("aria-describedby", `${hint ? `${id}-hint ` : ""}${id}-error`);
    return element(
      "div",
      { class: control.tagName === "INPUT" ? "field number" : "field" },
      element("label", { for: id }, label),
      hint ? element("p", { class: "hint", id: `${id}-hint` }, hint) : null,
      element("p", { class: "error", id: `${id}-error`, hidden: "" }),
      unit ? element("div", { class: "with-unit" }, control, element("span", { "aria-hidden": "true" }, unit)) : control,
    );
  }

  const numberInput = () => element("input", { type: "text", inputmode: "decimal", autocomplete: "off", spellcheck: "false" });

  function complain(control, sentence) {
    const error = $(`${control.id}-error`);
    error.textContent = sentence;
    error.hidden = !sentence;
    control.closest(".field, .drop").classList.toggle("bad-field", Boolean(sentence));
    if (sentence) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }

  // --- options ------------------------------------------------------------------------------

  const options = []; // of each: its fieldset, the field of its value, and those of its amounts

  function addOption() {
    const value = numberInput();
    const option = { value, amounts: [] };
    const several = market.options > 1;
    const amounts = element("div", { class: listed ? "amounts" : "picks" });
    const k = market.bundle_size;
    const limit = k < resources.length ? (k === 1 ? "One good only." : `Up to ${k} goods.`) : "";
    const legend = element("legend", {}, several ? `Option ${options.length + 1}` : "");
    option.legend = legend;
    option.box = element(
      "fieldset",
      { class: several ? "option" : "only" },
      several ? legend : element("legend", { class: "hidden" }, "Your record"),
      field("What it is worth to you", `From 0 to ${short(market.max_value)}, as you stated it.`, value),
      element(
        "fieldset",
        {},
        element("legend", {}, "How much you ask for"),
        element("p", { class: "hint" }, [limit, listed && resources.length > 1 ? "Leave empty what you do not need." : ""].filter(Boolean).join(" ")),
        amounts,
      ),
    );
    const inner = option.box.lastChild;
    if (listed) {
      resources.forEach((r, j) => {
        const control = numberInput();
        amounts.append(field(r.name, `Up to ${short(r.max_demand)}${r.unit ? ` ${r.unit}` : ""}`, control, r.unit));
        option.amounts.push({ control, pick: null, fixed: j });
      });
    } else {
      const more = element("button", { type: "button", class: "link" }, "Add another good");
      option.addPick = () => {
        const pick = element("select", {}, element("option", { value: "" }, "Choose a good"));
        resources.forEach((r, j) => {
          const unit = r.unit ? ` ${r.unit}` : "";
          pick.append(element("option", { value: j }, `${r.name} (up to ${short(r.max_demand)}${unit})`));
        });
        const control = numberInput();
        const row = element("div", { class: "pick" }, field("Good", "", pick), field("Amount", "", control));
        amounts.append(row);
        option.amounts.push({ control, pick, row });
        more.hidden = option.amounts.length >= market.bundle_size;
      };
      more.addEventListener("click", () => {
        option.addPick();
        option.amounts[option.amounts.length - 1].pick.focus();
      });
      inner.append(element("p", {}, more));
      option.addPick();
    }
    if (several && options.length > 0) {
      const remove = element("button", { type: "button", class: "link" }, "Remove this option");
      remove.addEventListener("click", () => {
        options.splice(options.indexOf(option), 1);
        option.box.remove();
        number();
        stale();
        $("add-option").focus();
      });
      option.box.append(element("p", {}, remove));
    }
    options.push(option);
    $("options").append(option.box);
    number();
    return option;
  }

  /** Name the options in order, and offer another if one may have more. */
  function number() {
    options.forEach((option, i) => {
      if (market.options > 1) option.legend.textContent = `Option ${i + 1}`;
    });
    $("more-options").hidden = market.options <= options.length;
  }

  function reset() {
    options.splice(0).forEach((option) => option.box.remove());
    $("form").reset();
    complain($("id"), "");
    complain($("file"), "");
    stale();
    addOption();
  }

  // --- reading the form ---------------------------------------------------------------------

  /** The number in a field; blank is 0 if that is allowed. Complains next to the field. */
  function read(control, what, blank) {
    const text = control.value;
    if (text.trim() === "") {
      complain(control, blank ? "" : `Enter ${what}.`);
      return blank ? 0 : null;
    }
    const found = jdpackRecord.number(text);
    let sentence = "";
    if (found === null) {
      if (/^\s*-/.test(text)) sentence = "This cannot be negative.";
      else if (/^\s*[\d.,\s']*\d\s*$/.test(text)) sentence = "Write the number with a point and without other marks, like 1250.5.";
      else sentence = "Write a number, like 12.5.";
    }
    complain(control, sentence);
    return found;
  }

  /** The record in the form, or null if something in it is wrong: then that is said there. */
  function record() {
    const id = $("id").value;
    if (id === "") complain($("id"), "Enter your id.");
    else complain($("id"), jdpack.wellFormed(id) ? "" : "This id has a character that cannot be written.");
    const read_options = options.map((option) => {
      const value = read(option.value, "what it is worth to you", false);
      const demand = resources.map(() => 0);
      const filled = option.amounts.filter(({ control, pick }) => control.value.trim() !== "" || (pick && pick.value !== ""));
      for (const { control, pick } of option.amounts) {
        complain(control, "");
        if (pick) complain(pick, "");
      }
      if (filled.length === 0) {
        const { control, pick } = option.amounts[0];
        complain(pick || control, pick ? "Choose a good." : "Enter how much you ask for, here or at another good.");
      }
      const named = new Set();
      let touched = 0;
      for (const { control, pick, fixed } of filled) {
        if (pick && pick.value === "") {
          complain(pick, "Choose a good for this amount.");
          continue;
        }
        const j = pick ? Number(pick.value) : fixed;
        if (named.has(j)) complain(pick, `You have chosen “${resources[j].name}” twice.`);
        named.add(j);
        const amount = read(control, "an amount", false);
        if (amount === null) continue;
        demand[j] = amount;
        if (amount > 0 && ++touched > market.bundle_size) {
          const k = market.bundle_size;
          complain(control, `You may ask for ${k === 1 ? "one good" : `${k} goods`} at most.`);
        }
      }
      return { value, demand };
    });
    const wrong = $("form").querySelectorAll("[aria-invalid=true]");
    const said = wrong.length > 1 ? `${wrong.length} fields need your attention.` : "One field needs your attention.";
    $("problems").textContent = wrong.length === 0 ? "" : said;
    if (wrong.length > 0) {
      wrong[0].focus();
      return null;
    }
    return { id, options: read_options };
  }

  // --- numbers in words; never by the reader's locale ---------------------------------------

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
  const worth = (units) => (units * market.value_step) / PRICE_UNITS; // price units in value
  const sentence = (...parts) => element("p", {}, ...parts);
  const strong = (text) => element("strong", {}, text);

  // --- the outcome --------------------------------------------------------------------------

  function stale() {
    $("outcome").textContent = "";
    $("why").replaceChildren();
    $("why").hidden = true;
    $("result").className = "";
    $("problems").textContent = "";
  }

  function show(mine) {
    const outcome = jdpack.allocate(market, mine.id, mine.options);
    const one = mine.options.length === 1;
    const got = outcome.given.flatMap((g, o) => (g > 0 ? [o] : []));
    $("why").replaceChildren(
      ...notes(mine),
      ...goods(mine, outcome, got),
      element("h3", {}, "Why"),
      one ? whyOne(mine, outcome) : whySeveral(mine, outcome),
      element("h3", {}, "How close it was"),
      ...howClose(mine, outcome),
      exact(mine, outcome),
    );
    $("why").hidden = false;
    $("result").className = got.length ? "full wins" : "full";
    $("outcome").textContent = headline(outcome, one, got);
    $("result").scrollIntoView({ block: "start" });
  }

  function headline(outcome, one, got) {
    if (got.length === 0) return "You get nothing this time.";
    const parts = got.map((o) => {
      const what = one ? "what you asked for" : `option ${o + 1}`;
      return outcome.given[o] === SHARE ? what : `${percent(outcome.given[o])} of ${what}`;
    });
    if (one && outcome.given[0] === SHARE) return "You get all that you asked for.";
    return `You get ${parts.join(" and ")}.`;
  }

  function notes(mine) {
    const found = [];
    if (mine.id !== mine.id.trim()) found.push("Your id begins or ends with a space, and that counts. Is it in the organiser’s list like that?");
    mine.options.forEach(({ value, demand }) => {
      if (value > market.max_value) found.push(`A value above ${short(market.max_value)} counts as ${short(market.max_value)}, the most that anybody may state.`);
      demand.forEach((amount, j) => {
        const { name, max_demand } = resources[j];
        if (amount > max_demand) found.push(`Of ${name} you may ask for ${short(max_demand)} at most: more counts as that.`);
      });
    });
    return [...new Set(found)].map((text) => element("p", { class: "note" }, text));
  }

  /** The amounts that are given. */
  function goods(mine, outcome, got) {
    const sums = resources.map(() => 0);
    for (const o of got) {
      mine.options[o].demand.forEach((amount, j) => {
        sums[j] += (Math.min(amount, resources[j].max_demand) * outcome.given[o]) / SHARE;
      });
    }
    const list = resources.flatMap((r, j) =>
      sums[j] > 0 ? [element("li", {}, strong(`${shortDown(sums[j])} ${r.unit}`.trim()), ` of ${r.name}`)] : [],
    );
    return list.length ? [element("ul", { class: "goods" }, ...list)] : [];
  }

  /** Costs of an option at the prices that are explained: the last, or those of one's turn. */
  function lastCost(outcome, o) {
    const costs = outcome.costs[o];
    return costs.length ? worth(costs[costs.length - 1]) : null;
  }

  const ownValue = (option) => Math.min(option.value, market.max_value);

  function atPrices(outcome) {
    if (!market.batches) return "At the final prices";
    if (outcome.rounds.length === 0) return "Your turn did not come";
    return `Your turn was round ${grouped(String(outcome.rounds[0] + 1))} of ${grouped(String(market.batches))}. At its prices`;
  }

  function whyOne(mine, outcome) {
    const steps = [];
    const cost = lastCost(outcome, 0);
    const value = ownValue(mine.options[0]);
    if (cost === null) {
      steps.push([sentence("The run ended before your turn came.")]);
    } else {
      const gap = Math.abs(value - cost);
      steps.push([
        sentence(
          `${atPrices(outcome)}, what you ask for costs `, strong(short(cost)), ". To you it is worth ", strong(short(value)),
          value >= cost ? `: you gain ${short(gap)}.` : `, which is ${short(gap)} less.`,
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
          `It was worth its price to you in `, strong(`${grouped(String(count))} of the ${times(all, "round")}`), " that count",
          share === 0 || share === SHARE ? "." : even ? `: a share of ${percent(share)}.` : `. Weighted as the rounds are, that is a share of ${percent(share)}.`,
        ),
      ]);
    }
    if (outcome.shares[0] > 0 && outcome.factors[0] < SHARE) {
      steps.push([sentence(`So that all fits, shares of these goods are scaled by ${factorText(outcome.factors[0])}. That leaves ${percent(outcome.odds[0])}.`)]);
    }
    if (!market.divisible && outcome.shares[0] > 0) steps.push(coinStep(outcome));
    return element("ol", { class: "steps" }, ...steps.map((step) => element("li", {}, ...step)));
  }

  /** Where the coin fell. */
  function coinStep(outcome) {
    const at = outcome.coin / 2 ** 53;
    const won = outcome.given.findIndex((g) => g > 0);
    const line = outcome.odds.length === 1 ? outcome.shares[0] * outcome.factors[0] / 2 ** 48 : null;
    const texts = [];
    if (line === null) {
      texts.push("Your coin, a number that follows from your id and the public seed, is ", strong(place(at, 0)[0]), ". ");
      texts.push(won >= 0 ? `It falls on option ${won + 1}.` : "It falls on none of your options.");
    } else if (line === 1) {
      texts.push("Nothing is left to chance.");
    } else {
      const [coin, limit] = place(at, line);
      texts.push(
        "The goods are not divided, so a coin decides. Yours, a number that follows from your id and the public seed, is ",
        strong(coin), `. You get the goods if it is below ${limit}, and it is${at < line ? "" : " not"}.`,
      );
    }
    return [sentence(...texts), line === 1 ? null : coinLine(outcome, at)];
  }

  function whySeveral(mine, outcome) {
    const heads = ["Worth", "Cost", "Rounds", market.divisible ? "Share" : "Chance", "You get"];
    const rows = mine.options.map((option, o) => {
      const cost = lastCost(outcome, o);
      const cells = [short(ownValue(option)), cost === null ? "–" : short(cost), String(outcome.times[o]), percent(outcome.odds[o]), percent(outcome.given[o])];
      return element("tr", { role: "row" },
        element("th", { scope: "row", role: "rowheader" }, `Option ${o + 1}`),
        ...cells.map((text, i) => element("td", { role: "cell", "data-label": heads[i] }, text)),
      );
    });
    const table = element("table", { class: "stacks", role: "table", "aria-label": "Your options" },
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...["Option", ...heads].map((text) => element("th", { scope: "col", role: "columnheader" }, text)))),
      element("tbody", { role: "rowgroup" }, ...rows),
    );
    const rounds = outcome.rounds.length;
    const steps = [
      [
        sentence(`${atPrices(outcome)}, each option has the cost below. In each round you take the option with which you gain most, if you gain with any: so often each was taken${market.batches ? "" : ` in the ${times(rounds, "round")} that count`}.`),
        table,
      ],
    ];
    if (outcome.odds.some((odds, o) => odds !== outcome.shares[o])) {
      steps.push([sentence(`So that all fits, the ${market.divisible ? "shares" : "chances"} are scaled down a little; this is counted in the table.`)]);
    }
    if (!market.divisible && outcome.shares.some((share) => share > 0)) steps.push(coinStep(outcome));
    return element("ol", { class: "steps" }, ...steps.map((step) => element("li", {}, ...step.filter(Boolean))));
  }

  // --- how close ----------------------------------------------------------------------------

  const ofCode = (code) => shortUp(code * market.value_step, market.max_value);

  function howClose(mine, outcome) {
    const lines = mine.options.map((_, o) => {
      const close = jdpack.closeness(market, outcome, o);
      return closeOne(close, mine.options.length === 1 ? "" : `Option ${o + 1}: `);
    });
    const close = lines.length === 1 ? [sentence(...lines[0])] : [element("ul", {}, ...lines.map((parts) => element("li", {}, ...parts)))];
    return [...close, element("p", { class: "fine" }, "All else equal, at the same public prices.")];
  }

  function closeOne(close, lead) {
    const parts = [lead];
    if (market.divisible) {
      if (close.given === close.most_given && close.given > 0) {
        if (close.kept > 0) parts.push("you would have got as much with any value from ", strong(ofCode(close.kept)), " on, and more with none.");
        else parts.push("you would have got as much with any value.");
      } else if (close.most_given === 0) {
        parts.push("no value up to the most that one may state would have brought you anything.");
      } else {
        parts.push("with a value of ", strong(ofCode(close.more)), " or more you would have got more", close.most > close.more ? `, and with ${ofCode(close.most)} or more the most that is possible, ${percent(close.most_given)}.` : `: ${percent(close.most_given)}.`);
      }
    } else if (close.given > 0) {
      parts.push(close.kept > 0 ? "you would have got it with any value from " : "you would have got it whatever your value.", ...(close.kept > 0 ? [strong(ofCode(close.kept)), " on."] : []));
    } else if (close.more !== null) {
      parts.push("with a value of ", strong(ofCode(close.more)), " you would have got it.");
    } else {
      parts.push("with this coin, no value up to the most that one may state would have brought it.");
    }
    if (!lead) {
      const first = parts.findIndex((part) => typeof part === "string" && part);
      parts[first] = parts[first][0].toUpperCase() + parts[first].slice(1);
    }
    return parts;
  }

  // --- drawings -----------------------------------------------------------------------------

  /** Cost and worth, as two bars. */
  function scale(cost, value) {
    const full = Math.max(cost, value) || 1;
    const length = (amount) => Math.max(1, Math.round((268 * amount) / full));
    const bar = (y, amount, kind, label) => [
      drawing("text", { x: 0, y: y + 13 }, label),
      drawing("path", { class: kind, d: `M52 ${y}h${length(amount)}v16h-${length(amount)}z` }),
    ];
    return drawing("svg", { class: "gauge", viewBox: "0 0 320 42", "aria-hidden": "true" }, ...bar(0, value, "worth", "Worth"), ...bar(24, cost, "cost", "Cost"));
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
        parts.push(drawing("path", { class: "no", d: `M${x(begin)} 18h${x(share)}v14h-${x(share)}z` }));
        parts.push(drawing("path", { class: "yes", d: `M${x(begin)} 18h${x(kept)}v14h-${x(kept)}z` }));
        parts.push(drawing("path", { class: "edge", d: `M${x(begin + share)} 18v14` }));
        if (outcome.shares.length > 1 && share > SHARE / 5) parts.push(drawing("text", { x: x(begin + share / 2), y: 48, "text-anchor": "middle" }, `option ${o + 1}`));
      }
      begin += share;
    });
    const pin = wide * at;
    parts.push(drawing("path", { class: "pin", d: `M${pin.toFixed(2)} 18l-6-12h12z` }));
    parts.push(drawing("text", { class: "faint", x: 0, y: 48 }, "0"), drawing("text", { class: "faint", x: wide, y: 48, "text-anchor": "end" }, "1"));
    return drawing("svg", { class: "gauge", viewBox: `-8 0 ${wide + 16} 52`, "aria-hidden": "true" }, ...parts);
  }

  /** The whole numbers behind it all, to compare with other programs. */
  function exact(mine, outcome) {
    const lines = mine.options.map((_, o) => {
      const { value, codes, touched } = outcome.options[o];
      return [
        `option ${o + 1}`,
        `value code ${value}`,
        `demand codes ${touched.map((j) => `${resources[j].name} ${codes[j]}`).join(", ") || "none"}`,
        `weight won ${outcome.won[o]} of ${market.weight}`,
        `share ${outcome.shares[o]}, factor ${outcome.factors[o]}, scaled ${outcome.odds[o]}, given ${outcome.given[o]} (of ${SHARE})`,
      ].join("\n  ");
    });
    const text = [...lines, `coin ${outcome.coin} (of 2^53)`].join("\n");
    return element("details", {}, element("summary", {}, "The exact numbers"), element("pre", { tabindex: "0", "aria-label": "The exact numbers" }, text));
  }

  // --- files --------------------------------------------------------------------------------

  async function take(file) {
    if (!file) return;
    stale();
    if (file.size > jdpackRecord.MAX_BYTES) {
      complain($("file"), "The file is larger than 64 kB: it must hold your own record only.");
      return;
    }
    try {
      const bytes = await file.arrayBuffer();
      const mine = jdpackRecord.parse(market, new TextDecoder("utf-8", { fatal: true }).decode(bytes));
      fill(mine);
    } catch (error) {
      const known = error instanceof jdpackRecord.RecordError;
      complain($("file"), known ? error.message : "The file cannot be read as text in UTF-8.");
      return;
    }
    complain($("file"), "");
    submit();
  }

  /** Put a record into the form, so that one sees what is counted. */
  function fill(mine) {
    if (mine.id !== null) $("id").value = mine.id;
    options.splice(0).forEach((option) => option.box.remove());
    for (const { value, demand } of mine.options) {
      const option = addOption();
      option.value.value = String(value);
      if (listed) {
        demand.forEach((amount, j) => {
          option.amounts[j].control.value = String(amount);
        });
        continue;
      }
      const asked = demand.flatMap((amount, j) => (amount > 0 ? [j] : []));
      if (asked.length === 0) asked.push(0);
      asked.forEach((j, i) => {
        if (i > 0) option.addPick();
        option.amounts[i].pick.value = String(j);
        option.amounts[i].control.value = String(demand[j]);
      });
    }
  }

  // --- wiring -------------------------------------------------------------------------------

  function submit() {
    stale();
    const mine = record();
    if (mine !== null) show(mine);
  }

  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("form").addEventListener("input", stale);
  $("clear").addEventListener("click", () => {
    reset();
    $("id").focus();
  });
  $("add-option").addEventListener("click", () => addOption().value.focus());
  $("file").addEventListener("change", () => take($("file").files[0]));
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault(); // a file that misses the mark must not replace the page
      const over = $("drop").contains(event.target);
      $("drop").classList.toggle("over", kind === "dragover" && over);
      if (kind === "drop" && over) take(event.dataTransfer.files[0]);
    });
  }
  $("no-script").hidden = true;
  $("with-script").hidden = false;
  addOption();
  $("form").dataset.ready = "yes";
})();
