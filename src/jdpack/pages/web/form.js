/* "What do I get?": the form of the billboard page. Everything happens in the reader's own browser:
 * this file makes no request, and the page's security policy would forbid one.
 */
"use strict";

(() => {
  const LISTED = 8; // up to this many goods have a field each; with more, people pick the goods they need
  const RADIOS = 12; // up to this many goods have a radio button each, if one place of one good is at stake
  const { element, nodes } = jdpackOutcome;
  const { short } = jdpackWords;
  const market = JSON.parse(document.getElementById("market").textContent);
  const { explain } = jdpackOutcome.of(market);
  const language = jdpackLanguage.of(market.words);
  const { local, say, runs, withUnit, unbroken } = language;
  const { resources } = market;
  const listed = resources.length <= LISTED;
  // Everybody asks for one place of one good, so nobody has to type an amount.
  const onePlace =
    !market.divisible && market.bundle_size === 1 && resources.every((r) => r.max_demand === 1);
  const $ = (id) => document.getElementById(id);
  let made = 0; // elements that were given an id

  // --- fields -------------------------------------------------------------------------------

  const errorOf = (id) => element("p", { class: "error", id: `${id}-error`, hidden: "" });

  /** A field with its label, a hint, and a place for an error. */
  function field(label, hint, control, unit) {
    const id = `f${++made}`;
    control.id = id;
    control.setAttribute("aria-describedby", `${hint ? `${id}-hint ` : ""}${id}-error`);
    return element(
      "div",
      { class: control.tagName === "INPUT" ? "field number" : "field" },
      element("label", { for: id }, label),
      hint ? element("p", { class: "hint", id: `${id}-hint` }, ...[hint].flat()) : null,
      errorOf(id),
      unit
        ? element(
            "div",
            { class: "with-unit" },
            control,
            element("span", { "aria-hidden": "true" }, unit),
          )
        : control,
    );
  }

  /** A label, with the organiser's own word for it if that differs. */
  const labelled = (label, column, plain) =>
    column === plain
      ? label
      : element("span", {}, `${label} `, element("span", { class: "quiet" }, `(${column})`));

  const numberInput = () =>
    element("input", {
      type: "text",
      inputmode: "decimal",
      autocomplete: "off",
      spellcheck: "false",
    });

  function complain(control, sentence) {
    const error = $(`${control.id}-error`);
    error.textContent = sentence;
    error.hidden = !sentence;
    control.closest(".field, .drop").classList.toggle("bad-field", Boolean(sentence));
    if (sentence) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }

  // --- the group ----------------------------------------------------------------------------

  const NO_GROUP = "none"; // the numbers of groups are the other choices
  const group = element(
    "select",
    {},
    element("option", { value: "" }, say("form.choose")),
    ...market.group_labels.map((name, g) => element("option", { value: g }, name)),
    element("option", { value: NO_GROUP }, say("form.none_of_these")),
  );
  if (market.groups.length > 0)
    $("group-field").append(
      field(labelled(say("form.your_group"), market.labels.group, say("text.group")), "", group),
    );

  /** The name of the chosen group, or null for none. */
  function chosenGroup() {
    if (market.groups.length === 0) return null;
    complain(group, group.value === "" ? say("form.choose_group") : "");
    return group.value === "" || group.value === NO_GROUP ? null : market.groups[Number(group.value)];
  }

  // --- options ------------------------------------------------------------------------------

  const options = []; // each has its fieldset, the field of its value, and those of its amounts

  /** One more option; `plain` gives it amounts to type even if one place is at stake. */
  function addOption(plain = false) {
    const value = numberInput();
    const request = element("input", { type: "text", autocomplete: "off", spellcheck: "false" });
    const option = { value, request, amounts: [], chosen: null };
    const several = market.options > 1 || market.person !== null;
    const choose = onePlace && resources.length > 1 && !plain;
    const legend = element("legend", {}, several ? entry(options.length) : "");
    option.legend = legend;
    const asked = element(
      "fieldset",
      {},
      element("legend", {}, say(choose ? "form.which" : "form.how_much")),
    );
    option.box = element(
      "fieldset",
      { class: several ? "option" : "only" },
      several ? legend : element("legend", { class: "hidden" }, say("form.your_record")),
      market.person &&
        field(
          labelled(say("form.request_name"), market.labels.request, "request"),
          say(market.options > 1 ? "form.request_hint_options" : "form.request_hint"),
          request,
        ),
      field(
        market.value_name
          ? say("form.your_value", { word: market.value_word })
          : labelled(say("form.worth"), market.value_word, say("text.value")),
        say("form.value_hint", { most: local(short(market.max_value)) }),
        value,
      ),
      asked,
    );
    if (choose) offerPlaces(option, asked);
    else offerAmounts(option, asked);
    if (options.length > 0) {
      const what = say(market.person ? "form.remove_entry" : "form.remove_option");
      const remove = element("button", { type: "button", class: "link" }, what);
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

  /** One place of one good: radio buttons, or a list if there are many. */
  function offerPlaces(option, box) {
    const own = ++made;
    const other = element("button", { type: "button", class: "link" }, say("form.other_amount"));
    other.addEventListener("click", () => {
      option.chosen = null;
      box.replaceChildren(element("legend", {}, say("form.how_much")));
      offerAmounts(option, box);
      stale();
      option.amounts[0].control.focus();
    });
    const end = () => box.append(element("p", {}, other));
    if (resources.length > RADIOS) {
      const pick = element("select", {}, element("option", { value: "" }, say("form.choose")));
      resources.forEach((r, j) => pick.append(element("option", { value: j }, r.label)));
      box.append(field(say("form.good"), "", pick));
      option.chosen = {
        control: pick,
        read: () => (pick.value === "" ? -1 : Number(pick.value)),
        set: (j) => (pick.value = String(j)),
      };
      end();
      return;
    }
    const radios = resources.map((r, j) => {
      const radio = element("input", { type: "radio", name: `p${own}`, value: j, id: `p${own}-${j}` });
      if (j === 0) radio.setAttribute("aria-describedby", `p${own}-0-error`);
      return radio;
    });
    const lines = resources.map((r, j) =>
      element("p", { class: "radio" }, radios[j], element("label", { for: radios[j].id }, r.label)),
    );
    box.append(
      element("div", { class: "field radios" }, errorOf(`p${own}-0`), ...lines),
    );
    option.chosen = {
      control: radios[0],
      read: () => radios.findIndex((radio) => radio.checked),
      set: (j) => (radios[j].checked = true),
    };
    end();
  }

  /** Amounts to type: a field for each good, or goods to pick if there are many. */
  function offerAmounts(option, box) {
    const k = market.bundle_size;
    const limit = k < resources.length ? say("form.goods_limit", { count: k }) : "";
    const totals = market.max_totals.slice(0, LISTED);
    const hints = [
      limit,
      ...totals.map(({ text }) => say("form.up_to_total", { total: text })),
      listed && resources.length > 1 ? say("form.leave_empty") : "",
    ].filter(Boolean);
    const amounts = element("div", { class: listed ? "amounts" : "picks" });
    box.append(element("p", { class: "hint" }, hints.join(" ")), amounts);
    if (listed) {
      resources.forEach((r, j) => {
        const control = numberInput();
        if (onePlace && resources.length === 1) control.value = "1";
        const most = unbroken(withUnit(short(r.max_demand), r.max_demand, r));
        const hint = nodes(runs("form.up_to", { amount: most }));
        amounts.append(field(r.label, hint, control, r.unit));
        option.amounts.push({ control, pick: null, fixed: j });
      });
      return;
    }
    const more = element("button", { type: "button", class: "link" }, say("form.add_good"));
    option.addPick = () => {
      const pick = element("select", {}, element("option", { value: "" }, say("form.choose_good")));
      resources.forEach((r, j) => {
        const amount = withUnit(short(r.max_demand), r.max_demand, r);
        const text = say("form.good_up_to", { good: r.label, amount });
        pick.append(element("option", { value: j }, text));
      });
      const control = numberInput();
      const amount = field(say("form.amount"), "", control, " ");
      const unit = amount.querySelector(".with-unit > span");
      const named = () => {
        unit.textContent = pick.value === "" ? "" : resources[Number(pick.value)].unit;
      };
      pick.addEventListener("change", named);
      named();
      amounts.append(element("div", { class: "pick" }, field(say("form.good"), "", pick), amount));
      option.amounts.push({ control, pick, named });
      more.hidden = option.amounts.length >= market.bundle_size;
    };
    more.addEventListener("click", () => {
      option.addPick();
      option.amounts[option.amounts.length - 1].pick.focus();
    });
    box.append(element("p", {}, more));
    option.addPick();
  }

  /** Number the options, and offer another if the market allows it. */
  function number() {
    options.forEach((option, i) => {
      if (market.options > 1 || market.person) option.legend.textContent = entry(i);
    });
    $("more-options").hidden = !market.person && market.options <= options.length;
  }

  /** What an entry of the form is called. */
  function entry(i) {
    const kind = !market.person ? "option" : market.options > 1 ? "entry" : "request";
    return say(`form.${kind}`, { number: i + 1 });
  }

  function reset() {
    options.splice(0).forEach((option) => option.box.remove());
    $("form").reset();
    complain($("id"), "");
    complain($("file"), "");
    complain($("code"), "");
    if (market.groups.length > 0) complain(group, "");
    stale();
    addOption();
  }

  // --- reading the form ---------------------------------------------------------------------

  /** The number in a field, or null. Complains next to the field; `missing` is for a blank one. */
  function read(control, missing) {
    const text = control.value;
    if (text.trim() === "") {
      complain(control, missing);
      return null;
    }
    const { number, meant } = language.typed(text);
    let sentence = "";
    if (meant) sentence = say("form.ambiguous", { small: meant[0], large: meant[1] });
    else if (number === undefined) {
      if (/^\s*[-−]/.test(text)) sentence = say("form.negative");
      else if (/^\s*[\d.,\s'’]*\d\s*$/.test(text))
        sentence = say("form.marks", { example: local("1250.5") });
      else if (/^\s*[\d.,]+e\+?\d+\s*$/i.test(text)) sentence = say("form.too_large");
      else sentence = say("form.only_number", { example: local("12.5") });
    }
    complain(control, sentence);
    return number ?? null;
  }

  /** What is wrong with an id, if anything. */
  function aboutId(id) {
    if (id === "") return say("form.enter_id");
    if (!jdpack.wellFormed(id)) return say("form.id_invalid");
    if (new TextEncoder().encode(id).length > jdpack.ID_BYTES)
      return say("form.id_long");
    return "";
  }

  /** The record in the form, or null if something is wrong; then the form shows what. */
  function record() {
    const id = $("id").value;
    complain($("id"), aboutId(id));
    complain($("code"), ""); // `show` compares it, once the record is complete
    const own_group = chosenGroup();
    const read_options = options.map((option) => {
      const missing = market.value_name
        ? say("form.enter_your_value", { word: market.value_word })
        : say("form.enter_worth");
      const value = read(option.value, missing);
      const demand = resources.map(() => 0);
      if (option.chosen) {
        const j = option.chosen.read();
        complain(option.chosen.control, j < 0 ? say("form.choose_one") : "");
        if (j >= 0) demand[j] = 1;
        return { value, demand };
      }
      const filled = option.amounts.filter(
        ({ control, pick }) => control.value.trim() !== "" || (pick && pick.value !== ""),
      );
      for (const { control, pick } of option.amounts) {
        complain(control, "");
        if (pick) complain(pick, "");
      }
      if (filled.length === 0) {
        const { control, pick } = option.amounts[0];
        complain(
          pick || control,
          say(pick ? "form.choose_a_good" : "form.enter_how_much"),
        );
      }
      const named = new Set();
      let touched = 0;
      for (const { control, pick, fixed } of filled) {
        if (pick && pick.value === "") {
          complain(pick, say("form.choose_good_for"));
          continue;
        }
        const j = pick ? Number(pick.value) : fixed;
        if (named.has(j)) complain(pick, say("form.chosen_twice", { good: resources[j].label }));
        named.add(j);
        const amount = read(control, say("form.enter_amount"));
        if (amount === null) continue;
        demand[j] = amount;
        if (amount > 0 && ++touched > market.bundle_size) {
          complain(control, say("form.at_most_goods", { count: market.bundle_size }));
        }
      }
      return { value, demand };
    });
    const own_requests = market.person ? requestsOf(read_options) : null;
    const wrong = $("form").querySelectorAll("[aria-invalid=true]");
    $("problems").textContent =
      wrong.length === 0 ? "" : say("form.fields", { count: wrong.length });
    if (wrong.length > 0) {
      wrong[0].focus();
      return null;
    }
    if (market.person) return { id, group: own_group, requests: own_requests };
    return { id, group: own_group, options: read_options };
  }

  /** The requests in the form; complains about names that are missing or repeated. */
  function requestsOf(read_options) {
    const found = [];
    options.forEach(({ request }, i) => {
      const name = request.value;
      const last = found[found.length - 1];
      let sentence = "";
      if (name === "") sentence = say("form.enter_request");
      else if (aboutId(name)) sentence = say("form.request_invalid");
      else if (last && last.name === name) {
        last.options.push(read_options[i]);
        if (last.options.length > market.options)
          sentence =
            market.options === 1
              ? say("form.request_twice")
              : say("form.request_options", { most: market.options });
      } else if (found.some((other) => other.name === name))
        sentence = say("form.request_apart");
      else found.push({ name, options: [read_options[i]] });
      complain(request, sentence);
    });
    return found;
  }

  // --- the outcome --------------------------------------------------------------------------

  function stale() {
    $("outcome").textContent = "";
    $("given").textContent = "";
    $("why").replaceChildren();
    $("why").hidden = true;
    $("result").className = "";
    $("problems").textContent = "";
  }

  function show(mine) {
    const { headline, given, code, parts, wins } = explain(mine);
    const typed = jdpack.asMeant($("code").value);
    const wrong = typed !== "" && typed !== code;
    complain($("code"), wrong ? say("form.code_wrong") : "");
    if (wrong) {
      $("problems").textContent = say("form.code_problem");
      $("code").focus();
      return;
    }
    const key = typed === "" ? "outcome.unchecked" : "outcome.checked";
    $("given").textContent = say(key, { record: given });
    $("why").replaceChildren(...parts);
    $("why").hidden = false;
    $("result").className = wins ? "full wins" : "full";
    $("outcome").textContent = headline;
    $("result").scrollIntoView({ block: "start" });
  }

  // --- files --------------------------------------------------------------------------------

  async function take(files) {
    stale();
    if (files.length !== 1) {
      complain($("file"), say(files.length ? "form.one_file" : "form.no_file"));
      return;
    }
    const refused = await problem(files[0]);
    complain($("file"), refused);
    if (refused === "") submit();
  }

  /** Fill the form from a file; returns a sentence if the file is wrong, otherwise "". */
  async function problem(file) {
    if (file.size > jdpackRecord.MAX_BYTES)
      return say("record.too_large");
    let bytes;
    try {
      bytes = await file.arrayBuffer();
    } catch {
      return say("record.not_opened");
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
      fill(jdpackRecord.parse(market, text));
      return "";
    } catch (error) {
      const known = error instanceof jdpackRecord.RecordError;
      return known ? say(error.key, error.given) : say("record.not_utf8");
    }
  }

  /** Put a record into the form, so that people see what counts. */
  function fill(mine) {
    if (mine.id !== null) $("id").value = mine.id;
    if (mine.id !== null && $("id").value !== mine.id) {
      $("id").value = ""; // a field drops line breaks, which would make it another id
      throw new jdpackRecord.RecordError("line_break");
    }
    const g = market.groups.indexOf(mine.group);
    group.value = g < 0 ? NO_GROUP : String(g);
    options.splice(0).forEach((option) => option.box.remove());
    const all = (mine.requests || [mine]).flatMap((own) =>
      own.options.map((option) => ({ ...option, name: own.name })),
    );
    for (const { value, demand, name } of all) {
      const asked = demand.flatMap((amount, j) => (amount > 0 ? [j] : []));
      const place = asked.length === 1 && demand[asked[0]] === 1;
      const option = addOption(!place);
      option.value.value = local(String(value));
      if (name !== undefined) option.request.value = name;
      if (option.chosen) {
        option.chosen.set(asked[0]);
        continue;
      }
      if (listed) {
        demand.forEach((amount, j) => {
          option.amounts[j].control.value = local(String(amount));
        });
        continue;
      }
      if (asked.length === 0) asked.push(0);
      asked.forEach((j, i) => {
        if (i > 0) option.addPick();
        option.amounts[i].pick.value = String(j);
        option.amounts[i].named();
        option.amounts[i].control.value = local(String(demand[j]));
      });
    }
  }

  /** A letter's link has the record after "#me=", and perhaps the check code after a dot: fill in the
   * form. Browsers do not send this part of an address to a server. */
  function fromLink() {
    const [, found] = document.URL.split("#me=");
    if (found === undefined) return;
    const [record, code] = found.split(".");
    try {
      const text = atob(record.replaceAll("-", "+").replaceAll("_", "/"));
      const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
      fill(jdpackRecord.parse(market, new TextDecoder("utf-8", { fatal: true }).decode(bytes)));
      $("code").value = code || "";
    } catch {
      reset();
      $("problems").textContent = say("form.link_damaged");
      return;
    }
    submit();
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
  $("add-option").addEventListener("click", () => {
    const { request, value } = addOption();
    (market.person ? request : value).focus();
  });
  $("file").addEventListener("click", () => {
    $("file").value = ""; // so that people can choose the same file again after they fix it
  });
  $("file").addEventListener("change", () => {
    if ($("file").files.length > 0) take([...$("file").files]);
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault(); // a file dropped elsewhere must not replace the page
      const over = $("drop").contains(event.target);
      $("drop").classList.toggle("over", kind === "dragover" && over);
      if (kind === "drop" && over) take([...event.dataTransfer.files]);
    });
  }
  if (market.person)
    $("add-option").textContent = say(market.options > 1 ? "form.add_entry" : "form.add_request");
  $("example").textContent = jdpackRecord.examples(market).join("\n\n");
  $("no-script").hidden = true;
  $("with-script").hidden = false;
  addOption();
  fromLink();
  addEventListener("hashchange", fromLink);
  $("form").dataset.ready = "yes";
})();
