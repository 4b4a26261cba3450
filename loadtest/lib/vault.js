'use strict';
// The scenario vault-mix: PostgreSQL, several engines on it, and `sealwire-load vault`, which fills the table, sends the
// load, kills an engine and checks every row.

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { APP, COLLECTION, execute, generate, start } = require('./cluster');

const NAME = 'vault-mix';
const OPTIONS = ['state', 'engines', 'rows', 'rate', 'seconds', 'kill-after', 'state-delay'];
/** Operations per second and core that engines, database and generator together serve without delay. */
const RATE_PER_CORE = 2_750;
const DEFAULTS = { state: 'postgres', engines: 3, rows: 1_000_000, seconds: 60 };
/** The short form, which asserts no times: a busy machine may wait long for the engine that is started again. */
const SHORT = { state: 'postgres', engines: 2, rows: 3_000, rate: 60, seconds: 4, killAfter: 1.5, stateDelay: 0, warmUp: 1, drain: 180 };
/** Seconds of load before the measurement. The first seconds after filling a large table were slower than the others. */
const WARM_UP_S = 30;

/** Reads the options of the scenario, which are texts, and adds the defaults. */
function settings(given) {
  const number = (name, min, max, whole = true) => {
    if (given[name] === undefined) return DEFAULTS[name];
    const value = Number(given[name]);
    if (!(value >= min && value <= max) || given[name].trim() === '' || (whole && !Number.isInteger(value))) {
      throw new Error(`--${name} is ${whole ? 'a whole number' : 'a number'} from ${min} to ${max}`);
    }
    return value;
  };
  const state = given.state ?? DEFAULTS.state;
  if (state !== 'postgres') throw new Error('--state must be postgres: engines share no other state');
  const engines = number('engines', 1, 16);
  const seconds = number('seconds', 1, 86_400);
  return {
    state,
    engines,
    rows: number('rows', 1, 4_000_000_000),
    rate: number('rate', 0.1, 1e6, false) ?? RATE_PER_CORE * os.availableParallelism(),
    seconds,
    stateDelay: number('state-delay', 0, 60_000, false) ?? 0,
    killAfter: number('kill-after', 0, seconds - 1, false) ?? Math.floor(seconds / 3),
    warmUp: WARM_UP_S,
    drain: 60,
  };
}

/**
 * Runs the load with `programs` {sealwire, load, postgres}. Resolves with {name, ok, said, result}, as for other
 * scenarios. `brief`: without the table.
 */
async function run(programs, chosen, { output, environment, json, brief }) {
  const result = path.join(output, `${environment ? `${NAME}.${environment}` : NAME}.json`);
  fs.mkdirSync(output, { recursive: true });
  fs.rmSync(result, { force: true });
  const cluster = await start(programs, chosen.engines, chosen.stateDelay);
  try {
    const args = ['vault', '--folder', cluster.folder, '--server-name', 'localhost', '--state', describe(chosen)];
    args.push('--connect', cluster.addresses.join(','), '--app', APP, '--collection', COLLECTION, '--output', result);
    const numbers = { rows: chosen.rows, rate: chosen.rate, seconds: chosen.seconds, drain: chosen.drain };
    for (const [name, value] of Object.entries(numbers)) args.push(`--${name}`, String(value));
    args.push('--warm-up', String(chosen.warmUp), '--kill-after', String(chosen.killAfter));
    const { status, said, errors } = await generate(programs.load, args, brief);
    const figures = fs.existsSync(result) ? JSON.parse(fs.readFileSync(result, 'utf8')) : null;
    const why = status === 0 ? '' : ` (sealwire-load ended with ${status})\n${errors.trim()}\n${cluster.logs()}`;
    const ok = status === 0 && figures !== null;
    (json ? process.stderr : process.stdout).write(`${ok ? 'ok  ' : 'FAIL'} ${NAME}${why}\n${brief || json ? '' : said}`);
    if (figures && !brief) {
      const page = result.replace(/json$/, 'html');
      await execute(programs.load, ['report', result, '--output', page]);
      process.stderr.write(`plots: ${path.relative(process.cwd(), page)}\n`);
    }
    return { name: NAME, ok, said: errors, result: figures };
  } finally {
    await cluster.stop();
  }
}

/** What the figures say about the state. */
function describe({ state, stateDelay }) {
  return stateDelay > 0 ? `${state}, each round trip delayed by ${stateDelay} ms` : state;
}

module.exports = { NAME, OPTIONS, SHORT, RATE_PER_CORE, describe, settings, run };
