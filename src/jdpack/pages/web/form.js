/* "What do I get?": the form of the billboard page. Everything happens in the reader's own browser:
 * this file makes no request, and the page's security policy would forbid one.
 */
"use strict";

(() => {
  const LISTED = 8; // up to this many goods have a field each; with more, people pick the goods they need
  const { element, withUnit } = jdpackOutcome;
  const { short } = jdpackWords;
  const market = JSON.parse(document.getElementById("market").textContent);
  const explain = jdpackOutcome.of(market);
  const { resources } = market;
  const listed = resources.length <= LISTED;
  const $ = (id) => document.getElementById(id);
  let made = 0; // elements that were given an id

  // --- fields -------------------------------------------------------------------------------

  /** A field with its label, a hint, and a place for an error. */
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
    element("option", { value: "" }, "Choose"),
    ...market.groups.map((name, g) => element("option", { value: g }, name)),
    element("option", { value: NO_GROUP }, "None of these"),
  );
  if (market.groups.length > 0)
    $("group-field").append(field(labelled("Your group", market.columns.group, "group"), "", group));

  /** The name of the chosen group, or null for none. */
  function chosenGroup() {
    if (market.groups.length === 0) return null;
    complain(group, group.value === "" ? "Choose your group, or “None of these”." : "");
    return group.value === "" || group.value === NO_GROUP ? null : market.groups[Number(group.value)];
  }

  // --- options ------------------------------------------------------------------------------

  const options = []; // each has its fieldset, the field of its value, and those of its amounts

  function addOption() {
    const value = numberInput();
    const request = element("input", { type: "text", autocomplete: "off", spellcheck: "false" });
    const option = { value, request, amounts: [] };
    const several = market.options > 1 || market.person !== null;
    const amounts = element("div", { class: listed ? "amounts" : "picks" });
    const k = market.bundle_size;
    const limit = k < resources.length ? (k === 1 ? "One good only." : `Up to ${k} goods.`) : "";
    const legend = element("legend", {}, several ? entry(options.length) : "");
    option.legend = legend;
    option.box = element(
      "fieldset",
      { class: several ? "option" : "only" },
      several ? legend : element("legend", { class: "hidden" }, "Your record"),
      market.person &&
        field(
          labelled("The name of the request", market.columns.request, "request"),
          market.options > 1
            ? "As the organiser has it. Options with the same name are of one request."
            : "As the organiser has it.",
          request,
        ),
      field(
        market.value_name
          ? `Your ${market.value_name}`
          : labelled("What it is worth to you", market.columns.value, "value"),
        `From 0 to ${short(market.max_value)}, as the organiser has it.`,
        value,
      ),
      element(
        "fieldset",
        {},
        element("legend", {}, "How much you ask for"),
        element(
          "p",
          { class: "hint" },
          [
            limit,
            ...market.max_totals.slice(0, LISTED).map(({ text }) => `Up to ${text}.`),
            listed && resources.length > 1 ? "Leave the others empty." : "",
          ]
            .filter(Boolean)
            .join(" "),
        ),
        amounts,
      ),
    );
    const inner = option.box.lastChild;
    if (listed) {
      resources.forEach((r, j) => {
        const control = numberInput();
        amounts.append(
          field(
            r.name,
            `Up to ${withUnit(short(r.max_demand), r.max_demand, r)}`,
            control,
            r.unit,
          ),
        );
        option.amounts.push({ control, pick: null, fixed: j });
      });
    } else {
      const more = element("button", { type: "button", class: "link" }, "Add another good");
      option.addPick = () => {
        const pick = element("select", {}, element("option", { value: "" }, "Choose a good"));
        resources.forEach((r, j) => {
          const most = withUnit(short(r.max_demand), r.max_demand, r);
          pick.append(element("option", { value: j }, `${r.name} (up to ${most})`));
        });
        const control = numberInput();
        const amount = field("Amount", "", control, " ");
        const unit = amount.querySelector(".with-unit > span");
        const named = () => {
          unit.textContent = pick.value === "" ? "" : resources[Number(pick.value)].unit;
        };
        pick.addEventListener("change", named);
        named();
        amounts.append(element("div", { class: "pick" }, field("Good", "", pick), amount));
        option.amounts.push({ control, pick, named });
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
      const what = market.person ? "Remove this" : "Remove this option";
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

  /** Number the options, and offer another if the market allows it. */
  function number() {
    options.forEach((option, i) => {
      if (market.options > 1 || market.person) option.legend.textContent = entry(i);
    });
    $("more-options").hidden = !market.person && market.options <= options.length;
  }

  /** What an entry of the form is called. */
  function entry(i) {
    if (!market.person) return `Option ${i + 1}`;
    return market.options > 1 ? `Entry ${i + 1}` : `Request ${i + 1}`;
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
      if (/^\s*[-−]/.test(text)) sentence = "This cannot be negative.";
      else if (/^\s*[\d.,\s'’]*\d\s*$/.test(text))
        sentence = "Write the number with a decimal point and no other marks, like 1250.5.";
      else if (/^\s*[\d.]+e\+?\d+\s*$/i.test(text)) sentence = "This number is too large.";
      else sentence = "Write only a number, like 12.5, without a unit or other signs.";
    }
    complain(control, sentence);
    return found;
  }

  /** What is wrong with an id, if anything. */
  function aboutId(id) {
    if (id === "") return "Enter your id.";
    if (!jdpack.wellFormed(id)) return "This id has an invalid character.";
    if (new TextEncoder().encode(id).length > jdpack.ID_BYTES)
      return "This is too long for an id. Did you paste something else?";
    return "";
  }

  /** The record in the form, or null if something is wrong; then the form shows what. */
  function record() {
    const id = $("id").value;
    complain($("id"), aboutId(id));
    complain($("code"), ""); // `show` compares it, once the record is complete
    const own_group = chosenGroup();
    const read_options = options.map((option) => {
      const value = read(option.value, market.value_name ? `your ${market.value_name}` : "what it is worth to you", false);
      const demand = resources.map(() => 0);
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
          pick ? "Choose a good." : "Enter how much you ask for, here or for another good.",
        );
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
          complain(control, `You may ask for at most ${k === 1 ? "one good" : `${k} goods`}.`);
        }
      }
      return { value, demand };
    });
    const own_requests = market.person ? requestsOf(read_options) : null;
    const wrong = $("form").querySelectorAll("[aria-invalid=true]");
    const said =
      wrong.length > 1
        ? `${wrong.length} fields need your attention.`
        : "One field needs your attention.";
    $("problems").textContent = wrong.length === 0 ? "" : said;
    if (wrong.length > 0) {
      wrong[0].focus();
      return null;
    }
    if (market.person) return { id, group: own_group, requests: own_requests };
    return { id, group: own_group, options: read_options };
  }

  /** The requests in the form; complains about names that are missing or come back. */
  function requestsOf(read_options) {
    const found = [];
    options.forEach(({ request }, i) => {
      const name = request.value;
      const last = found[found.length - 1];
      let sentence = "";
      if (name === "") sentence = "Enter the name of this request.";
      else if (aboutId(name)) sentence = "This cannot be the name of a request.";
      else if (last && last.name === name) {
        last.options.push(read_options[i]);
        if (last.options.length > market.options)
          sentence =
            market.options === 1
              ? "You have another request with this name."
              : `One request may have at most ${market.options} options.`;
      } else if (found.some((other) => other.name === name))
        sentence = "You have another request with this name; put their entries together.";
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
    complain(
      $("code"),
      wrong
        ? "This is not the check code of this record. Something is mistyped: your id, a number, or the code."
        : "",
    );
    if (wrong) {
      $("problems").textContent = "Your record and its check code do not go together.";
      $("code").focus();
      return;
    }
    $("given").textContent =
      typed === "" ? `Not checked. If your record is ${given}:` : `The check code is right. Your record is ${given}:`;
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
      complain($("file"), files.length ? "One file at a time, please." : "That is not a file.");
      return;
    }
    const refused = await problem(files[0]);
    complain($("file"), refused);
    if (refused === "") submit();
  }

  /** Fill the form from a file; returns a sentence if the file is wrong, otherwise "". */
  async function problem(file) {
    if (file.size > jdpackRecord.MAX_BYTES)
      return "The file is larger than 64 kB; it may hold only your own record.";
    let bytes;
    try {
      bytes = await file.arrayBuffer();
    } catch {
      return "The file cannot be opened. Choose it again.";
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
      fill(jdpackRecord.parse(market, text));
      return "";
    } catch (error) {
      const known = error instanceof jdpackRecord.RecordError;
      return known ? error.message : "The file cannot be read as text in UTF-8.";
    }
  }

  /** Put a record into the form, so that people see what counts. */
  function fill(mine) {
    if (mine.id !== null) $("id").value = mine.id;
    if (mine.id !== null && $("id").value !== mine.id) {
      $("id").value = ""; // a field drops line breaks, which would make it another id
      throw new jdpackRecord.RecordError("The id in the file contains a line break.");
    }
    const g = market.groups.indexOf(mine.group);
    group.value = g < 0 ? NO_GROUP : String(g);
    options.splice(0).forEach((option) => option.box.remove());
    const all = (mine.requests || [mine]).flatMap((own) =>
      own.options.map((option) => ({ ...option, name: own.name })),
    );
    for (const { value, demand, name } of all) {
      const option = addOption();
      option.value.value = String(value);
      if (name !== undefined) option.request.value = name;
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
        option.amounts[i].named();
        option.amounts[i].control.value = String(demand[j]);
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
      $("problems").textContent = "The link of your letter is damaged. Type your record instead.";
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
  $("add-option").addEventListener("click", () => addOption().value.focus());
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
  if (market.person) $("add-option").textContent = market.options > 1 ? "Add another entry" : "Add another request";
  $("example").textContent = jdpackRecord.examples(market).join("\n\n");
  $("no-script").hidden = true;
  $("with-script").hidden = false;
  addOption();
  fromLink();
  addEventListener("hashchange", fromLink);
  $("form").dataset.ready = "yes";
})();
