/* The agent's function, the same as `jdpack.allocate`: what do I get, from my own record and the
 * billboard? Golden vectors and random agents check that the two agree, number by number.
 *
 * A plain script without dependencies. It touches no document and no network, so it runs anywhere.
 * Numbers are doubles that hold exact integers: codes have 16 and 32 bits, prices at most 2^52. A
 * cost is exact below 2^53; above that it exceeds every value, however it is rounded. Only the hash
 * and a weight times 2^24 need more bits: those are BigInts.
 *
 * A "market" here is what the page carries: see `jdpack.pages.billboard_page.data`.
 */
"use strict";

const jdpack = (() => {
  const SHARE = 2 ** 24; // shares, weights and factors are whole numbers of 1/SHARE
  const PRICE_UNITS = 2 ** 20; // of one value code
  const GRAIN = 2 ** 29; // coins have 53 bits: this many of their steps make one step of a share
  const EXACT = 2 ** 53;
  const ID_BYTES = 4096; // the same limit as in tables of agents
  const MASK = (1n << 64n) - 1n;

  // --- coins and turns ----------------------------------------------------------------------

  /** SipHash-2-4 (Aumasson & Bernstein 2012) of some bytes; the key is 32 hexadecimal digits. */
  function siphash(key, bytes) {
    const word = (at, from) => {
      let sum = 0n;
      for (let i = 7; i >= 0; i--) sum = (sum << 8n) | BigInt(from[at + i]);
      return sum;
    };
    const raw = Uint8Array.from(key.match(/../g), (pair) => parseInt(pair, 16));
    const [k0, k1] = [word(0, raw), word(8, raw)];
    let v0 = 0x736f6d6570736575n ^ k0;
    let v1 = 0x646f72616e646f6dn ^ k1;
    let v2 = 0x6c7967656e657261n ^ k0;
    let v3 = 0x7465646279746573n ^ k1;
    const turned = (x, bits) => ((x << bits) | (x >> (64n - bits))) & MASK;
    const rounds = (count) => {
      for (let i = 0; i < count; i++) {
        v0 = (v0 + v1) & MASK;
        v1 = turned(v1, 13n) ^ v0;
        v0 = turned(v0, 32n);
        v2 = (v2 + v3) & MASK;
        v3 = turned(v3, 16n) ^ v2;
        v0 = (v0 + v3) & MASK;
        v3 = turned(v3, 21n) ^ v0;
        v2 = (v2 + v1) & MASK;
        v1 = turned(v1, 17n) ^ v2;
        v2 = turned(v2, 32n);
      }
    };
    const padded = new Uint8Array(8 * (Math.floor(bytes.length / 8) + 1));
    padded.set(bytes);
    padded[padded.length - 1] = bytes.length & 255;
    for (let at = 0; at < padded.length; at += 8) {
      const next = word(at, padded);
      v3 ^= next;
      rounds(2);
      v0 ^= next;
    }
    v2 ^= 255n;
    rounds(4);
    return v0 ^ v1 ^ v2 ^ v3;
  }

  /** The first `count` primes' roots of this degree: the first 32 bits after the point. */
  function rootBits(degree, count) {
    const found = [];
    for (let p = 2; found.length < count; p++) {
      let prime = true;
      for (let q = 2; q * q <= p; q++) if (p % q === 0) prime = false;
      if (!prime) continue;
      const number = BigInt(p) << BigInt(32 * degree);
      let root = 0n;
      for (let bit = 1n << 35n; bit > 0n; bit >>= 1n) {
        if ((root | bit) ** BigInt(degree) <= number) root |= bit;
      }
      found.push(Number(root & 0xffffffffn));
    }
    return found;
  }

  let constants = null;

  /** SHA-256 (FIPS 180-4) of some bytes: its 64 highest bits. */
  function sha256(bytes) {
    constants ??= [rootBits(2, 8), rootBits(3, 64)];
    const [state, rounds] = [constants[0].slice(), constants[1]];
    const padded = new Uint8Array(64 * (Math.floor((bytes.length + 8) / 64) + 1));
    padded.set(bytes);
    padded[bytes.length] = 128;
    const view = new DataView(padded.buffer);
    view.setUint32(padded.length - 4, 8 * bytes.length);
    const turned = (x, bits) => (x >>> bits) | (x << (32 - bits));
    const w = new Array(64);
    for (let at = 0; at < padded.length; at += 64) {
      for (let t = 0; t < 16; t++) w[t] = view.getUint32(at + 4 * t);
      for (let t = 16; t < 64; t++) {
        const [x, y] = [w[t - 15], w[t - 2]];
        const low = turned(x, 7) ^ turned(x, 18) ^ (x >>> 3);
        const high = turned(y, 17) ^ turned(y, 19) ^ (y >>> 10);
        w[t] = (w[t - 16] + low + w[t - 7] + high) | 0;
      }
      let [a, b, c, d, e, f, g, h] = state;
      for (let t = 0; t < 64; t++) {
        const high = turned(e, 6) ^ turned(e, 11) ^ turned(e, 25);
        const one = (h + high + ((e & f) ^ (~e & g)) + rounds[t] + w[t]) | 0;
        const low = turned(a, 2) ^ turned(a, 13) ^ turned(a, 22);
        const two = (low + ((a & b) ^ (a & c) ^ (b & c))) | 0;
        [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
      }
      [a, b, c, d, e, f, g, h].forEach((more, k) => (state[k] = (state[k] + more) | 0));
    }
    return (BigInt(state[0] >>> 0) << 32n) | BigInt(state[1] >>> 0);
  }

  /** The coin of an agent, from 0 to 2^53 - 1; its id is a text. The header names the hash. */
  function coin(market, key, id) {
    const bytes = (text) => new TextEncoder().encode(text);
    const sha = market.coin_hash === "sha-256";
    return Number((sha ? sha256(bytes(`${key} ${id}`)) : siphash(key, bytes(id))) >> 11n);
  }

  const LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"; // which are not mistaken for each other

  /** The check code of an id and its outcomes, one for each request: the same as
   * `jdpack.agent.check_code`. */
  function checkCode(market, id, outcomes) {
    const lines = outcomes.flatMap(({ name, options }) => [
      ...(name === undefined ? [] : [`request ${name}`]),
      ...options.map(
        ({ value, codes, touched }) => value + touched.map((j) => ` ${j}:${codes[j]}`).join(""),
      ),
    ]);
    const text = ["check code", id, ...lines].join("\n");
    const number = Number(siphash(market.order, new TextEncoder().encode(text)) >> 44n);
    return [15, 10, 5, 0].map((bits) => LETTERS[(number >> bits) & 31]).join("");
  }

  /** A check code as somebody types it: small letters, spaces, O for 0, I and L for 1, U for V. */
  function asMeant(typed) {
    const plain = typed.toUpperCase().replace(/[^\p{L}\p{N}]/gu, "");
    return plain.replace(/[OILU]/g, (c) => ({ O: "0", I: "1", L: "1", U: "V" })[c]);
  }

  /** In which of `count` batches an agent with this place in the order is asked. */
  function turn(place, count) {
    return Number(((BigInt(place) >> 9n) * BigInt(count)) >> 44n);
  }

  /** Whether a text can be written as UTF-8, with no unpaired surrogates. */
  function wellFormed(text) {
    try {
      encodeURIComponent(text);
      return true;
    } catch {
      return false;
    }
  }

  // --- codes --------------------------------------------------------------------------------

  /** The smallest code for at least `amount` of a resource; the product is exact. */
  function demandCode(market, resource, amount) {
    const size = market.resources[resource].unit_size;
    const code = Math.trunc(amount / size);
    return code * size < amount ? code + 1 : code;
  }

  /** The largest code for at most `value`; the product is exact. */
  function valueCode(market, value) {
    const code = Math.trunc(value / market.value_step);
    return code * market.value_step > value ? code - 1 : code;
  }

  /** A bound on a total as whole numbers: its limit and its resources' unit sizes. */
  function exactTotal(market, { amount, quantum, resources }) {
    return {
      limit: BigInt(Math.floor(amount / quantum)), // the quantum is a power of two
      sizes: resources.map((j) => BigInt(market.resources[j].unit_size / quantum)),
    };
  }

  const steps = (code) => BigInt(Math.max(code - 1, 0));

  /** Whether an option with these codes is within a bound on a total. */
  function fits(market, total, codes) {
    const { limit, sizes } = exactTotal(market, total);
    let sum = 0n;
    total.resources.forEach((j, i) => (sum += steps(codes[j]) * sizes[i]));
    return sum <= limit;
  }

  /** The codes of amounts, each cut to its own cap. */
  function capped(market, demand) {
    return demand.map((amount, j) => {
      const { name, max_demand } = market.resources[j];
      return demandCode(market, j, bounded(amount, `demand for ${name}`, max_demand));
    });
  }

  /** Cut the codes of an option to the bounds on totals: kept in order while they fit, then the
   * largest that fits, then none. */
  function cutTotals(market, codes) {
    for (const total of market.max_totals) {
      if (fits(market, total, codes)) continue;
      const { limit, sizes } = exactTotal(market, total);
      let left = limit;
      total.resources.forEach((j, i) => {
        const asked = steps(codes[j]) * sizes[i];
        if (codes[j] === 0) return;
        if (left < 0n) codes[j] = 0;
        else if (asked <= left) left -= asked;
        else [codes[j], left] = [Number(left / sizes[i]) + 1, -1n];
      });
    }
  }

  /** The bounds on totals that these amounts exceed. */
  function beyond(market, demand) {
    if (market.max_totals.length === 0) return [];
    const codes = capped(market, demand);
    return market.max_totals.filter((total) => !fits(market, total, codes));
  }

  /** The amounts that count: those stated, cut to the public bounds. */
  function counted(market, demand) {
    const found = demand.map((amount, j) => Math.min(amount, market.resources[j].max_demand));
    for (const total of beyond(market, demand)) {
      let left = total.amount;
      for (const j of total.resources) {
        found[j] = Math.min(found[j], left);
        left -= found[j];
      }
    }
    return found;
  }

  function bounded(number, what, cap) {
    if (typeof number !== "number" || !(number >= 0 && number < Infinity)) {
      throw new RangeError(`${what} ${number} is not a number from 0 to ${cap}`);
    }
    return Math.min(number, cap);
  }

  /** The number of an agent's group, or -1 if it is in none of the market's groups. */
  function groupOf(market, group) {
    if (group === null || group === undefined) return -1;
    if (typeof group !== "string") throw new RangeError("the group is not text");
    if (market.groups.length === 0) throw new RangeError("this market has no groups");
    return market.groups.indexOf(group);
  }

  /** Options as codes; each has {value, demand: one amount per resource}. */
  function encode(market, options, group) {
    if (!(options.length >= 1 && options.length <= market.options)) {
      throw new RangeError(`a request may have 1 to ${market.options} options here`);
    }
    return options.map(({ value, demand }) => {
      if (demand.length !== market.resources.length) {
        throw new RangeError(`demand lists ${demand.length} amounts`);
      }
      const codes = capped(market, demand);
      if (codes.filter((code) => code > 0).length > market.bundle_size) {
        throw new RangeError(`an option may ask for at most ${market.bundle_size} resources`);
      }
      cutTotals(market, codes);
      // Caps and reserves of groups: agents whom a rule limits demand as much of it as of its base.
      for (const { base, group: about, members } of market.derived)
        codes.push((group === about) === members ? codes[base] : 0);
      const touched = codes.flatMap((code, j) => (code > 0 ? [j] : []));
      const code = valueCode(market, bounded(value, "value", market.max_value));
      return { value: code, codes, touched };
    });
  }

  // --- people with several requests ---------------------------------------------------------

  /** Counts the requests of one person in their order: see `jdpack.market.person`.
   *
   * The function returned takes a request in codes. It gives null, or the bound that the request
   * would exceed; then it is left out and not counted.
   */
  function counter(market) {
    const { requests, max_value, bundle_size, max_demand, max_totals } = market.person;
    const goods = market.resources.map((_, j) => j);
    const largest = (of, options) => options.reduce((most, o) => (of(o) > most ? of(o) : most), of(options[0]));
    const exact = max_totals.map((total) => ({ ...exactTotal(market, total), own: total.resources }));
    let [made, worth, width, touched] = [0, 0, 0, new Set()];
    let asked = goods.map(() => 0);
    let sums = exact.map(() => 0n);
    return (options) => {
      if (made === requests) return "requests";
      const value = worth + largest((o) => o.value, options);
      const next = goods.map((j) => asked[j] + largest((o) => Math.max(o.codes[j] - 1, 0), options));
      const totals = exact.map(({ sizes, own }, t) => {
        const count = (o) => own.reduce((sum, j, i) => sum + steps(o.codes[j]) * sizes[i], 0n);
        return sums[t] + largest(count, options);
      });
      const wide = width + largest((o) => goods.filter((j) => o.codes[j] > 0).length, options);
      const all = new Set(touched);
      for (const o of options) for (const j of goods) if (o.codes[j] > 0) all.add(j);
      if (value > max_value) return "max_value";
      if (Math.min(wide, all.size) > bundle_size) return "bundle_size";
      if (goods.some((j) => next[j] > max_demand[j])) return "max_demand";
      if (totals.some((sum, t) => sum > exact[t].limit)) return "max_total";
      [made, worth, width, touched, asked, sums] = [made + 1, value, wide, all, next, totals];
      return null;
    };
  }

  /** The text whose hash is the coin of a request. */
  function requestKey(id, name) {
    return `${new TextEncoder().encode(id).length}:${id}:${name}`;
  }

  /** What each request of a person gets; requests are {name, options}, all of them, in order.
   *
   * The results are those of `allocate`, with the request's `name`, and in `left_out` the bound that
   * it would exceed, or null.
   */
  function allocateAll(market, id, requests, group) {
    const admit = counter(market);
    return requests.map(({ name, options }) => {
      const outcome = allocate(market, id, options, group, name);
      const left_out = admit(outcome.options);
      if (left_out === null) return { ...outcome, name, left_out };
      const none = options.map(() => 0);
      const nothing = { won: none, times: none, shares: none, scaled: none, given: none };
      return { ...outcome, ...nothing, places: none.map(() => [0, 0]), name, left_out };
    });
  }

  // --- rounds, shares, what is given --------------------------------------------------------

  /** What an option costs at these prices, in price units. */
  function cost(option, prices) {
    let sum = 0;
    for (const j of option.touched) sum += option.codes[j] * prices[j];
    return sum;
  }

  /** The numbers of the rounds in which an agent is asked: all, or the one of its turn. */
  function asked(market, id) {
    const all = market.rounds.weights.map((_, t) => t);
    if (!market.batches) return all;
    const mine = turn(coin(market, market.order, id), market.batches);
    return all.filter((t) => t === mine);
  }

  /** The first option with the largest surplus, or -1 if that is negative; `but` is skipped. */
  function best(values, costs, t, but) {
    let [most, taken] = [-1, -1];
    for (let o = 0; o < values.length; o++) {
      const surplus = values[o] * PRICE_UNITS - costs[o][t];
      if (o !== but && surplus > most) [most, taken] = [surplus, o];
    }
    return taken;
  }

  /** The share of each option, in 1/SHARE: the weight of its rounds divided by that of all. */
  function sharesOf(won, weight) {
    return won.map((w) => Number((BigInt(w) * BigInt(SHARE)) / BigInt(weight)));
  }

  /** What the agent gets of each option, in 1/SHARE.
   *
   * For indivisible goods, the options lie on [0, 1) one after the other, each as wide as its share.
   * The agent gets the option that the coin falls on, if it is in the scaled part of its width.
   */
  function given(market, shares, factors, flipped) {
    if (market.divisible) return scaled(shares, factors);
    return coinPlaces(shares, factors).map(([from, below]) =>
      from <= flipped && flipped < below ? SHARE : 0,
    );
  }

  /** Where the coin must fall to give each option: from the first number, below the second. */
  function coinPlaces(shares, factors) {
    let begin = 0;
    return shares.map((share, o) => {
      const from = begin;
      begin += share * GRAIN;
      return [from, from + share * factors[o] * (GRAIN / SHARE)];
    });
  }

  function scaled(shares, factors) {
    return shares.map((share, o) => Math.floor((share * factors[o]) / SHARE));
  }

  /** What an agent gets, and what it follows from. Whole numbers; shares are in 1/SHARE.
   *
   * If agents may make several requests, `request` is the name of the one with these options.
   */
  function allocate(market, id, options, group, request) {
    if (typeof id !== "string" || !wellFormed(id)) throw new RangeError("the id is not text");
    if (new TextEncoder().encode(id).length > ID_BYTES) throw new RangeError("the id is too long");
    const coded = encode(market, options, groupOf(market, group));
    const rounds = asked(market, id);
    const values = coded.map((option) => option.value);
    const costs = coded.map((option) => rounds.map((t) => cost(option, market.rounds.prices[t])));
    const weights = rounds.map((t) => market.rounds.weights[t]);
    const [won, times] = [coded.map(() => 0), coded.map(() => 0)];
    for (let t = 0; t < rounds.length; t++) {
      const taken = best(values, costs, t);
      if (taken < 0) continue;
      won[taken] += weights[t];
      times[taken] += 1;
    }
    const shares = sharesOf(won, market.weight);
    const factors = coded.map(({ touched }) =>
      touched.reduce((least, j) => Math.min(least, market.factors[j]), SHARE),
    );
    const flipped = coin(market, market.seed, request === undefined ? id : requestKey(id, request));
    const prices = market.batches ? market.rounds.prices[rounds[0]] : market.final_prices;
    const paid = coded.map((option) => (prices ? cost(option, prices) : null));
    return {
      options: coded,
      rounds,
      weights,
      costs,
      paid, // what each option costs at the final prices, or those of the turn if it came
      surplus: paid.map((cost, o) => (cost === null ? null : values[o] * PRICE_UNITS - cost)),
      won,
      times,
      shares,
      factors,
      scaled: scaled(shares, factors),
      coin: flipped,
      places: coinPlaces(shares, factors),
      given: given(market, shares, factors, flipped),
    };
  }

  // --- how close it was ---------------------------------------------------------------------

  /** What the agent would get of option `o` at each value of it, at the same prices, all else equal.
   *
   * A list of {from, given}: value codes from `from` up to the next entry give `given`. In each
   * round, the option is taken above some value; below it, the best other option is taken, or none.
   */
  function byValue(market, outcome, o) {
    const values = outcome.options.map((option) => option.value);
    const cap = valueCode(market, market.max_value);
    const won = values.map(() => 0);
    const moves = [];
    outcome.rounds.forEach((_, t) => {
      const other = best(values, outcome.costs, t, o);
      let least = outcome.costs[o][t];
      if (other >= 0) {
        won[other] += outcome.weights[t];
        least += values[other] * PRICE_UNITS - outcome.costs[other][t] + (other < o ? 1 : 0);
      }
      const from = Math.ceil(least / PRICE_UNITS);
      if (least < EXACT && from <= cap) moves.push({ from, t, other });
    });
    moves.sort((a, b) => a.from - b.from);
    const now = () => given(market, sharesOf(won, market.weight), outcome.factors, outcome.coin)[o];
    const steps = [{ from: 0, given: now() }];
    for (let i = 0; i < moves.length;) {
      const { from } = moves[i];
      for (; i < moves.length && moves[i].from === from; i++) {
        const { t, other } = moves[i];
        if (other >= 0) won[other] -= outcome.weights[t];
        won[o] += outcome.weights[t];
      }
      const next = now();
      if (from === 0) steps[0].given = next;
      else if (next !== steps[steps.length - 1].given) steps.push({ from, given: next });
    }
    return steps;
  }

  /** Where the agent's own value lies among the steps of `byValue`, in value codes.
   *
   * `more` is the smallest value that gets more, or null; `kept` is the lowest value to which the
   * agent's own could drop without getting less; `most` is the smallest value that gets the maximum.
   */
  function closeness(market, outcome, o) {
    const steps = byValue(market, outcome, o);
    let at = steps.length - 1;
    while (steps[at].from > outcome.options[o].value) at--;
    const own = steps[at].given;
    const above = steps.slice(at + 1).find((step) => step.given > own);
    let kept = at;
    while (kept > 0 && steps[kept - 1].given >= own) kept--;
    const top = steps.reduce((a, b) => (b.given > a.given ? b : a));
    return {
      given: own,
      more: above ? above.from : null,
      kept: steps[kept].from,
      most: top.from,
      most_given: top.given,
    };
  }

  return {
    SHARE,
    PRICE_UNITS,
    ID_BYTES,
    siphash,
    sha256,
    coin,
    checkCode,
    asMeant,
    turn,
    wellFormed,
    beyond,
    counted,
    allocate,
    allocateAll,
    byValue,
    closeness,
  };
})();
