/* An agent's own record from a small file: JSON, or CSV in the layout of the market's table.
 *
 * Gives {id, group, options: [{value, demand}]}, with `id` and `group` null if the file has none and
 * one amount per resource, or throws a RecordError, which names a text for the reader (`words.js`). If
 * people may make several requests, it gives {id, group, requests: [{name, options}]}.
 */
"use strict";

const jdpackRecord = (() => {
  const MAX_BYTES = 65536;

  class RecordError extends Error {
    constructor(key, given = {}) {
      super(key);
      this.key = `record.${key}`;
      this.given = given;
    }
  }

  /** A number in a file: digits, a point, perhaps an exponent; otherwise null. */
  function number(text) {
    const plain = text.trim();
    if (!/^(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain)) return null;
    const found = Number(plain);
    return found < Infinity ? found : null;
  }

  function parse(market, text) {
    const plain = text.replace(/^\uFEFF/, "");
    if (plain.trim() === "") throw new RecordError("empty");
    const record = /^\s*[{[]/.test(plain) ? fromJson(market, plain) : fromCsv(market, plain);
    for (const { options } of record.requests || [record]) {
      if (options.length > market.options) {
        const given = { count: options.length, most: market.options };
        throw new RecordError(market.person ? "request_options" : "options", given);
      }
    }
    return record;
  }

  // --- JSON ---------------------------------------------------------------------------------

  function fromJson(market, text) {
    let data;
    try {
      data = JSON.parse(text);
    } catch {
      throw new RecordError("not_json");
    }
    if (Array.isArray(data) || data === null) {
      throw new RecordError("one_record", { example: '{"id": ..., ...}' });
    }
    const own = market.groups.length > 0 ? ["id", "group"] : ["id"];
    let each = [data];
    if (market.person) {
      known(data, [...own, "requests"]);
      each = data.requests;
      if (!Array.isArray(each) || each.length === 0)
        throw new RecordError("requests_list");
    }
    const lists = each.map((given) => jsonOptions(given, market.person ? ["request"] : own));
    let id = null;
    if ("id" in data && data.id !== null) {
      if (typeof data.id !== "string" && !Number.isSafeInteger(data.id)) {
        throw new RecordError("id_type");
      }
      id = String(data.id);
    }
    const group = market.groups.length > 0 ? jsonGroup(data) : null;
    const found = lists.map((options) => options.map((option) => jsonOption(market, option)));
    if (!market.person) return { id, group, options: found[0] };
    const named = each.map((given, i) => ({ name: jsonName(given), options: found[i] }));
    return { id, group, requests: distinct(named) };
  }

  /** The options of a record or of a request. */
  function jsonOptions(data, own) {
    if (typeof data !== "object" || data === null || Array.isArray(data))
      throw new RecordError("each_request");
    const several = "options" in data;
    known(data, several ? [...own, "options"] : [...own, "value", "demand"]);
    const options = several ? data.options : [{ value: data.value, demand: data.demand }];
    if (!Array.isArray(options) || options.length === 0) {
      throw new RecordError("options_list");
    }
    return options;
  }

  function jsonName({ request }) {
    const name = Number.isSafeInteger(request) ? String(request) : request;
    if (typeof name !== "string" || name === "")
      throw new RecordError("request_name", { example: '{"request": ..., ...}' });
    return name;
  }

  function distinct(requests) {
    const seen = new Set();
    for (const { name } of requests) {
      if (seen.has(name)) throw new RecordError("same_name", { name });
      seen.add(name);
    }
    return requests;
  }

  function jsonGroup(data) {
    if (!("group" in data))
      throw new RecordError("lacks_group");
    if (data.group !== null && typeof data.group !== "string")
      throw new RecordError("group_type");
    return data.group || null;
  }

  function jsonOption(market, option) {
    if (typeof option !== "object" || option === null || Array.isArray(option)) {
      throw new RecordError("each_option");
    }
    known(option, ["value", "demand"]);
    const value = jsonNumber(option.value, null);
    const asked = option.demand;
    if (Array.isArray(asked)) {
      if (asked.length !== market.resources.length) {
        throw new RecordError("amounts", { count: asked.length, goods: market.resources.length });
      }
      return { value, demand: asked.map((a, j) => jsonNumber(a, market.resources[j].name)) };
    }
    if (typeof asked !== "object" || asked === null) {
      throw new RecordError("lacks_demand", { example: '{"…": 1, ...}' });
    }
    const { resources } = market;
    const demand = resources.map(() => 0);
    const seen = new Set();
    for (const [name, amount] of Object.entries(asked)) {
      // By name; or by column, if no good has the name.
      let j = resources.findIndex((r) => r.name === name);
      if (j < 0) j = resources.findIndex((r) => r.column === name);
      if (j < 0) throw new RecordError("no_good", { name });
      if (seen.has(j))
        throw new RecordError("good_twice", { name: resources[j].name });
      seen.add(j);
      demand[j] = jsonNumber(amount, resources[j].name);
    }
    return { value, demand };
  }

  /** A number; `good` is the name of what it is an amount of, or null for a value. */
  function jsonNumber(given, good) {
    if (typeof given !== "number" || !(given >= 0 && given < Infinity)) {
      throw good === null
        ? new RecordError("value_number")
        : new RecordError("amount_number", { good });
    }
    return given;
  }

  function known(data, keys) {
    const other = Object.keys(data).find((key) => !keys.includes(key));
    if (other !== undefined) {
      throw new RecordError("unknown_key", { name: other, keys: keys.join(", ") });
    }
  }

  // --- CSV ----------------------------------------------------------------------------------

  function fromCsv(market, text) {
    const [head, ...rows] = csvRows(text);
    const { columns, resources } = market;
    if (rows.length === 0)
      throw new RecordError("no_rows");
    const long = columns.layout === "long";
    const names = long
      ? [columns.value, columns.resource, columns.amount, columns.option]
      : [columns.value, ...resources.map((r) => r.column)];
    if (market.groups.length > 0) names.push(columns.group);
    if (market.person) names.push(columns.request);
    for (const name of head) {
      if (name !== columns.id && !names.includes(name) && !columns.ignore.includes(name)) {
        throw new RecordError("unknown_column", { name });
      }
    }
    const optional = long ? [columns.option] : [];
    const lost = names.find((name) => !head.includes(name) && !optional.includes(name));
    if (lost !== undefined) throw new RecordError("lacks_column", { name: lost });
    const twice = head.find((name, i) => head.indexOf(name) !== i);
    if (twice !== undefined) throw new RecordError("column_twice", { name: twice });
    for (const row of rows) {
      if (row.length !== head.length) {
        throw new RecordError("fields", { count: row.length, first: head.length });
      }
    }
    const cell = (row, name) => row[head.indexOf(name)];
    const hasId = head.includes(columns.id);
    const ids = new Set(hasId ? rows.map((row) => cell(row, columns.id)) : []);
    if (ids.size > 1) {
      throw new RecordError("several_people");
    }
    const id = hasId ? [...ids][0] : null;
    const groups = new Set(
      market.groups.length > 0 ? rows.map((row) => cell(row, columns.group)) : [""],
    );
    if (groups.size > 1) {
      throw new RecordError("several_groups");
    }
    const group = [...groups][0] || null;
    if (!market.person) return { id, group, options: csvOptions(market, head, rows) };
    const requests = [];
    for (const row of rows) {
      const name = cell(row, columns.request);
      if (name === "") throw new RecordError("lacks_request");
      if (requests.length === 0 || requests[requests.length - 1].name !== name)
        requests.push({ name, rows: [] });
      requests[requests.length - 1].rows.push(row);
    }
    const found = requests.map(({ name, rows: own }) => ({
      name,
      options: csvOptions(market, head, own),
    }));
    return { id, group, requests: distinct(found) };
  }

  /** The options in some rows. */
  function csvOptions(market, head, rows) {
    const { columns, resources } = market;
    const cell = (row, name) => row[head.indexOf(name)];
    if (columns.layout !== "long") {
      return rows.map((row) => {
        // In the order of the Python twin, so that both refuse the same number first.
        const demand = resources.map((r) =>
          csvNumber(cell(row, r.column), r.name),
        );
        return { value: csvNumber(cell(row, columns.value), null), demand };
      });
    }
    const options = new Map();
    for (const row of rows) {
      const key = head.includes(columns.option) ? cell(row, columns.option) : "";
      const value = csvNumber(cell(row, columns.value), null);
      if (!options.has(key)) {
        options.set(key, { value, demand: resources.map(() => 0), seen: new Set() });
      }
      const option = options.get(key);
      if (option.value !== value) throw new RecordError("two_values");
      const name = cell(row, columns.resource);
      if (name === "") continue;
      const j = resources.findIndex((r) => r.column === name);
      if (j < 0) throw new RecordError("no_good", { name });
      if (option.seen.has(j))
        throw new RecordError("good_twice", { name });
      option.seen.add(j);
      option.demand[j] = csvNumber(cell(row, columns.amount), resources[j].name);
    }
    return [...options.values()].map(({ value, demand }) => ({ value, demand }));
  }

  /** A number; `good` is the name of what it is an amount of, which may be blank; null for a value. */
  function csvNumber(text, good) {
    if (good !== null && text.trim() === "") return 0;
    const found = number(text);
    if (found === null)
      throw good === null
        ? new RecordError("value_text", { text })
        : new RecordError("amount_text", { good, text });
    return found;
  }

  /** Rows of fields separated by commas, as in RFC 4180. */
  function csvRows(text) {
    const rows = [[]];
    let [field, quoted, closed] = ["", false, false];
    const end = () => {
      rows[rows.length - 1].push(field);
      [field, closed] = ["", false];
    };
    for (let i = 0; i < text.length; i++) {
      const c = text[i];
      if (quoted) {
        if (c !== '"') field += c;
        else if (text[i + 1] === '"') field += text[++i];
        else [quoted, closed] = [false, true];
      } else if (c === '"' && field === "" && !closed) quoted = true;
      else if (c === ",") end();
      else if (c === "\n" || c === "\r") {
        if (c === "\r" && text[i + 1] === "\n") i++;
        end();
        rows.push([]);
      } else field += c;
    }
    if (quoted) throw new RecordError("quote");
    end();
    const full = rows.filter((row) => row.length > 1 || row[0] !== "");
    if (full.length === 0) throw new RecordError("empty");
    if (full[0].length === 1 && /[;\t]/.test(full[0][0])) {
      throw new RecordError("commas");
    }
    return full;
  }

  // --- examples -----------------------------------------------------------------------------

  /** What a file looks like in this market: as JSON, and as CSV unless the rows are too long. */
  function examples(market) {
    const { columns, resources, options, bundle_size } = market;
    const asked = resources.slice(0, Math.min(2, bundle_size));
    const demand = (some) => Object.fromEntries(some.map((r) => [r.name, r.max_demand]));
    const first = { value: market.max_value, demand: demand(asked) };
    const second = { value: market.max_value / 2, demand: demand(resources.slice(-1)) };
    const several = [first, second].map((option) => `  ${JSON.stringify(option)}`).join(",\n");
    const group = market.groups.slice(0, 1);
    const own = { id: "A17", ...(group.length > 0 ? { group: group[0] } : {}) };
    const requests = [first, second]
      .map((option, i) => `  ${JSON.stringify({ request: String(i + 1), ...option })}`)
      .join(",\n");
    const lists = market.person
      ? `"requests":[\n${requests}\n]`
      : options > 1 && `"options":[\n${several}\n]`;
    const found = [
      lists
        ? `${JSON.stringify(own).slice(0, -1)},${lists}}`
        : JSON.stringify({ ...own, ...first }),
    ];
    const grouped = (rows) =>
      rows.map((row, i) => [
        ...row,
        ...(group.length > 0 ? [i ? group[0] : columns.group] : []),
        ...(market.person ? [i ? "1" : columns.request] : []),
      ]);
    if (columns.layout === "long") {
      const named = [columns.id, columns.value, columns.resource, columns.amount];
      const rows = asked.map((r) => ["A17", market.max_value, r.column, r.max_demand]);
      if (options > 1) [named, ...rows].forEach((row, i) => row.push(i ? "1" : columns.option));
      found.push(csv(grouped([named, ...rows])));
    } else if (resources.length <= 8) {
      const amounts = resources.map((r) => (asked.includes(r) ? r.max_demand : 0));
      found.push(
        csv(
          grouped([
            [columns.id, columns.value, ...resources.map((r) => r.column)],
            ["A17", market.max_value, ...amounts],
          ]),
        ),
      );
    }
    return found;
  }

  const csv = (rows) => rows.map((row) => row.map(csvField).join(",")).join("\n");

  function csvField(field) {
    const text = String(field);
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  }

  return { MAX_BYTES, RecordError, number, parse, examples };
})();
