'use strict';
// What a scenario may say, in tables. Read once, before anything runs, so that a misspelt key fails the run.

const FIELDS_MAX = 1_000_000;

const whole = (min, max) => (value) =>
  Number.isInteger(value) && value >= min && value <= max ? null : `a whole number from ${min} to ${max}`;
const number = (min, max) => (value) =>
  typeof value === 'number' && value >= min && value <= max ? null : `a number from ${min} to ${max}`;
const oneOf =
  (...names) =>
  (value) =>
    names.includes(value) ? null : `one of ${names.join(', ')}`;
const flag = (value) => (typeof value === 'boolean' ? null : 'true or false');
const named = (value) =>
  typeof value === 'string' && /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/.test(value) ? null : 'letters, digits, _ and -';
const codes = (value) =>
  Array.isArray(value) && value.every((code) => typeof code === 'string' && /^[a-z_]+$/.test(code))
    ? null
    : 'a list of error codes';

/** Key: [rule, default]; `undefined` is no default, and the key may be absent. */
const COMMON = {
  name: [named, undefined],
  app: [named, 'demo'],
  calls: [whole(1, 256), 1],
  deadlineMs: [whole(1, 3_600_000), undefined],
  timeoutMs: [whole(1, 3_600_000), undefined],
  expect: [codes, []],
};
const SIZE = { fieldBytes: [whole(1, 65_536), 16] };
const ENVELOPES = {
  numEncrypts: [whole(1, FIELDS_MAX), 30],
  ...SIZE,
  suite: [oneOf('p256', 'secp256k1', 'xaes', 'p256-psk'), 'p256'],
  keyScope: [oneOf('request', 'field', 'epoch'), 'request'],
};
const TOKENS = { fields: [whole(1, 10_000), 1], ...SIZE, collection: [named, 'loadtest'] };

const DOCUMENTS = {
  name: [named, undefined],
  calls: COMMON.calls,
  timeoutMs: COMMON.timeoutMs,
  expect: COMMON.expect,
  numEncrypts: ENVELOPES.numEncrypts,
  fieldBytes: [whole(24, 65_536), 24],
};

const CALLS = {
  /** Encrypts a new document. */
  send: { method: 'encrypt', keys: { ...COMMON, ...ENVELOPES, cancelAfterMs: [whole(0, 60_000), undefined] } },
  /** Decrypts one of `documents` documents, which were encrypted before and are not measured. */
  decrypt: { method: 'decrypt', keys: { ...COMMON, ...ENVELOPES, documents: [whole(1, 1_000), 8] } },
  /** Tokenizes a new document; with `again`, one that has its tokens, where equal values have equal ones. */
  tokenize: { method: 'tokenize', keys: { ...COMMON, ...TOKENS, again: [flag, false], idempotent: [flag, false] } },
  /** Looks up the tokens of any document that this run has tokenized in the collection. */
  detokenize: { method: 'detokenize', keys: { ...COMMON, ...TOKENS } },
  /** Posts a new document through a relay, which encrypts its fields and decrypts them in the response. */
  post: { method: 'post', needsRelay: true, keys: DOCUMENTS },
  /** Gets a document that a relay has encrypted. `documents` are posted first, unmeasured, if none was posted before. */
  get: { method: 'get', needsRelay: true, keys: { ...DOCUMENTS, documents: [whole(1, 1_000), 8] } },
  /** On a connection of its own: sends `calls` at once, reads nothing for a while, then slowly. */
  slowRead: {
    method: 'encrypt',
    keys: {
      ...COMMON,
      ...ENVELOPES,
      holdMs: [whole(0, 60_000), 2_000],
      bytesPerSecond: [whole(1_024, 1_000_000_000), 1_000_000],
    },
  },
};

/** Steps that hold other steps or only wait. Each has its reader below. */
const STEPS = { loop, mix, think, meet };

/**
 * Reads the flow of the scenario `scenario`. `classes` collects what it will measure: name to {method, fields,
 * fieldBytes, weight}.
 */
function read(flow, scenario, classes, weight = 1) {
  if (!Array.isArray(flow) || flow.length === 0) throw new Error(`${scenario}: a flow is a list of steps`);
  return flow.map((step) => readStep(step, scenario, classes, weight));
}

function readStep(step, scenario, classes, weight) {
  const names = Object.keys(step ?? {});
  const action = names.find((name) => name in CALLS || name in STEPS);
  if (!action) {
    const known = [...Object.keys(CALLS), ...Object.keys(STEPS)].join(', ');
    throw new Error(`${scenario}: no step is called ${names[0] ?? 'nothing'}; there are ${known}`);
  }
  if (action in STEPS) return STEPS[action](step, scenario, classes, weight);
  only(names, [action], `${scenario}: ${action}`);
  return readCall(action, step[action] ?? {}, scenario, classes, weight);
}

function readCall(action, given, scenario, classes, weight) {
  const { method, keys, needsRelay = false } = CALLS[action];
  const options = readKeys(given, keys, `${scenario}: ${action}`);
  const fields = options.numEncrypts ?? options.fields;
  const name = options.name ?? `${method}-${fields}`;
  const className = `sealwire.${scenario}.${name}`;
  const what = { method, fields, fieldBytes: options.fieldBytes, weight };
  const before = classes.get(className);
  if (before && JSON.stringify(before) !== JSON.stringify(what)) {
    throw new Error(`${scenario}: two different calls are named ${name}`);
  }
  classes.set(className, what);
  return { kind: 'call', action, method, needsRelay, className, options: { ...options, fields } };
}

/** The values of `keys`, with defaults; throws on anything else. */
function readKeys(given, keys, where) {
  only(Object.keys(given), Object.keys(keys), where);
  const entries = Object.entries(keys).map(([key, [rule, otherwise]]) => {
    if (given[key] === undefined) return [key, otherwise];
    const wrong = rule(given[key]);
    if (wrong) throw new Error(`${where}: ${key} must be ${wrong}`);
    return [key, given[key]];
  });
  return Object.fromEntries(entries);
}

function only(names, known, where) {
  const stranger = names.find((name) => !known.includes(name));
  if (stranger !== undefined) throw new Error(`${where} has no key ${stranger}; it takes ${known.join(', ')}`);
}

/** `loop: [steps]` with `count` or `seconds`. */
function loop(step, scenario, classes, weight) {
  const where = `${scenario}: loop`;
  const keys = { count: [whole(1, 10_000_000), undefined], seconds: [number(0.001, 86_400), undefined] };
  const { loop: steps, ...rest } = step;
  const { count, seconds } = readKeys(rest, keys, where);
  if ((count === undefined) === (seconds === undefined)) throw new Error(`${where} takes either count or seconds`);
  const within = read(steps, scenario, classes, weight);
  if (seconds !== undefined) noMeeting(within, where, 'users go round it more or less often');
  return { kind: 'loop', steps: within, count, seconds };
}

/**
 * `mix: [{weight, send: ...}]`: one of them, dealt from a shuffled deck, so that the shares hold exactly over each deck
 * and not only on average.
 */
function mix(step, scenario, classes) {
  const where = `${scenario}: mix`;
  only(Object.keys(step), ['mix'], where);
  if (!Array.isArray(step.mix)) throw new Error(`${where} is a list`);
  const wrong = step.mix.find((entry) => whole(1, 1_000)(entry.weight));
  if (wrong) throw new Error(`${where}: weight must be ${whole(1, 1_000)(wrong.weight)}`);
  const weights = step.mix.map((entry) => entry.weight);
  const total = weights.reduce((a, b) => a + b, 0);
  const divisor = weights.reduce(gcd);
  const cards = step.mix.flatMap(({ weight, ...rest }) => {
    const card = readStep(rest, scenario, classes, weight / total);
    return new Array(weight / divisor).fill(card);
  });
  noMeeting(cards, where, 'users draw different cards');
  return { kind: 'mix', cards, deck: [] };
}

/** `think: seconds`. */
function think(step, scenario) {
  only(Object.keys(step), ['think'], `${scenario}: think`);
  const wrong = number(0, 86_400)(step.think);
  if (wrong) throw new Error(`${scenario}: think must be ${wrong}`);
  return { kind: 'think', ms: step.think * 1000 };
}

/** `meet: {users: n}`: nobody goes on before n virtual users are here. */
function meet(step, scenario) {
  only(Object.keys(step), ['meet'], `${scenario}: meet`);
  const { users } = readKeys(step.meet, { users: [whole(1, 10_000), 1] }, `${scenario}: meet`);
  return { kind: 'meet', users, here: 0, waiting: [] };
}

/** Refuses a meeting among steps that not every user comes by as often. */
function noMeeting(steps, where, why) {
  if (unmet(steps, NaN) !== null) throw new Error(`${where} has a meeting: ${why}, and some would wait for ever`);
}

/** Why users who go through these steps, so many of them, would wait at a meeting for ever; null if they would not. */
function unmet(steps, users) {
  for (const step of steps) {
    if (step.kind === 'meet' && users % step.users !== 0) {
      return `${step.users} users meet, and ${users} come: some would wait for ever`;
    }
    const within = unmet(step.steps ?? step.cards ?? [], users);
    if (within) return within;
  }
  return null;
}

/** True if one of the steps goes through a relay. */
function needsRelay(steps) {
  return steps.some((step) => step.needsRelay || needsRelay(step.steps ?? step.cards ?? []));
}

/** Calls that a user makes on the way through steps without a loop, on average. */
function callsIn(steps) {
  const all = (list) => list.reduce((sum, step) => sum + callsIn([step]), 0);
  if (steps.length !== 1) return all(steps);
  const [{ kind, options, cards }] = steps;
  if (kind === 'mix') return all(cards) / cards.length;
  return kind === 'call' ? options.calls : 0;
}

const gcd = (a, b) => (b === 0 ? a : gcd(b, a % b));

module.exports = { read, unmet, needsRelay, callsIn, readKeys, only, rules: { whole, number, oneOf, flag, named, codes } };
