'use strict';
// The scenario vault-mix: PostgreSQL, several engines on it, and `sealwire-load vault`, which fills the table, sends the
// load, kills an engine and checks every row.

const { execFile, spawn } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const readline = require('node:readline');
const { promisify } = require('node:util');
const { freeAddresses, ready } = require('./engine');
const { owe } = require('./leftovers');

const execute = promisify(execFile);
const NAME = 'vault-mix';
const APP = 'demo';
const COLLECTION = 'vault';
const ROLE = 'vault';
/** Name of the client certificate that `sealwire dev` issues. */
const CLIENT = 'dev-client';
/** Operations per second and core that engines, database and generator together serve without delay. */
const RATE_PER_CORE = 2_750;
const DEFAULTS = { state: 'postgres', engines: 3, rows: 1_000_000, seconds: 60 };
/** The short form, which asserts no times: a busy machine may wait long for the engine that is started again. */
const SHORT = { state: 'postgres', engines: 2, rows: 3_000, rate: 60, seconds: 4, killAfter: 1.5, stateDelay: 0, warmUp: 1, drain: 180 };
/** Seconds of load before the measurement. The first seconds after filling a large table were slower than the others. */
const WARM_UP_S = 30;
const STOP_MS_MAX = 30_000;

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

/** Runs the generator. Its progress is shown unless the run is `brief`. */
function generate(program, args, brief) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    const paid = owe(() => child.kill('SIGKILL'));
    let [said, errors] = ['', ''];
    child.stdout.on('data', (text) => (said += text));
    child.stderr.on('data', (text) => {
      errors = (errors + text).slice(-4_000);
      if (!brief) process.stderr.write(text);
    });
    child.once('error', reject);
    child.once('close', (status) => {
      paid();
      resolve({ status, said, errors });
    });
  });
}

/** Starts PostgreSQL and engines. Resolves with {folder, addresses, engines, logs, stop}. */
async function start({ sealwire, load, postgres }, count, stateDelay) {
  const parent = fs.mkdtempSync(path.join(os.tmpdir(), 'sealwire-vault-'));
  const engines = [];
  const remove = () => fs.rmSync(parent, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 });
  const paid = owe(() => {
    engines.forEach((engine) => engine.child?.kill('SIGKILL'));
    remove();
  });
  let [database, relay] = [];
  const stop = async () => {
    await Promise.all(engines.map((engine) => engine.stop()));
    await relay?.stop();
    await database?.stop();
    paid();
    remove();
  };
  try {
    // Certificates, key-encryption key and an operator's certificate; its embedded state is not used.
    const folder = path.join(parent, 'certificates');
    const nowhere = ['--listen', '127.0.0.1:0', '--admin', '127.0.0.1:0', '--control', '127.0.0.1:0'];
    await execute(sealwire, ['dev', '--folder', folder, ...nowhere, '--demo-only'], { env: quiet() });
    database = await startPostgres(postgres);
    if (stateDelay > 0) {
      relay = await startRelay(load, database.tcp, stateDelay);
      database.url = relay.url;
    }
    fs.writeFileSync(path.join(parent, 'password'), database.password, { mode: 0o600 });
    for (let number = 1; number <= count; number += 1) {
      const engine = await makeEngine(sealwire, parent, number, database.url);
      engines.push(engine);
      await engine.start();
      // The other engines read what the first has at their start.
      if (number === 1) await furnish(sealwire, folder, engine.control);
    }
    const logs = () => engines.map((engine) => engine.log()).join('');
    return { folder, addresses: engines.map((engine) => engine.address), engines, logs, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** Starts a server that ends with this process, however that ends. Resolves with {url, password, stop}. */
function startPostgres(program) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, [], { stdio: ['pipe', 'pipe', 'pipe'] });
    let said = '';
    child.stderr.on('data', (text) => (said += text));
    const ended = new Promise((done) => child.once('close', done));
    ended.then((status) => reject(new Error(`PostgreSQL ended with ${status}: ${said}`)));
    child.once('error', reject);
    const found = {};
    const stop = async () => {
      child.stdin.end();
      await ended;
    };
    readline.createInterface({ input: child.stdout }).on('line', (line) => {
      const [name, ...value] = line.split(' ');
      found[name] = value.join(' ');
      if (name === 'ready') resolve({ url: found.url, tcp: found.tls, password: found.password, stop });
    });
  });
}

/**
 * Starts a relay of its own before the database at the URL `tcp`, and resolves with {url, stop}. Its connections are not
 * encrypted, which the engine permits on loopback.
 */
function startRelay(program, tcp, delay) {
  return new Promise((resolve, reject) => {
    const url = new URL(tcp);
    const args = ['relay', '--connect', `127.0.0.1:${url.port}`, '--delay', String(delay)];
    const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    const ended = new Promise((done) => child.once('close', done));
    ended.then((status) => reject(new Error(`the relay before PostgreSQL ended with ${status}`)));
    child.once('error', reject);
    const stop = async () => {
      child.stdin.end();
      await ended;
    };
    readline.createInterface({ input: child.stdout }).once('line', (address) => {
      url.port = address.split(':')[1];
      resolve({ url: url.href, stop });
    });
  });
}

/** What the figures say about the state. */
function describe({ state, stateDelay }) {
  return stateDelay > 0 ? `${state}, each round trip delayed by ${stateDelay} ms` : state;
}

/** Makes the configuration of an engine. It is started again with the same addresses when SIGKILL ends it. */
async function makeEngine(sealwire, parent, number, url) {
  const folder = path.join(parent, `engine-${number}`);
  const [address, admin, control] = await freeAddresses(3);
  fs.mkdirSync(folder);
  const config = `[listen]
address = "${address}"
[admin]
address = "${admin}"
[control]
address = "${control}"
principals = ["dev-operator"]
[access]
administrators = ["dev-operator"]
[tls]
certificate = "../certificates/server.pem"
key = "../certificates/server-key.pem"
client_ca = "../certificates/ca.pem"
[kek]
file = "../certificates/kek"
[audit]
folder = "audit"
[state]
mode = "postgres"
[postgres]
url = "${url}"
password_file = "../password"
${url.includes('@') ? 'tls = "off"\n' : ''}`;
  const file = path.join(folder, 'sealwire.toml');
  fs.writeFileSync(file, config);
  let log = '';
  let stopping = false;
  const engine = { address, admin, control, child: null, log: () => log.slice(-4_000) };
  const launch = () => {
    const child = spawn(sealwire, ['serve', '--config', file], { stdio: ['ignore', 'ignore', 'pipe'], env: quiet() });
    child.stderr.on('data', (text) => {
      log = (log + text).slice(-8_000);
    });
    engine.child = child;
    engine.ended = new Promise((resolve) => child.once('close', resolve));
    // The generator kills an engine. Any other end is a failure, which the generator finds.
    child.once('exit', (status, signal) => {
      if (signal === 'SIGKILL' && !stopping) launch();
    });
  };
  engine.start = async () => {
    launch();
    await ready(admin, engine.child, () => log);
  };
  engine.stop = async () => {
    stopping = true;
    const { child, ended } = engine;
    if (!child) return;
    const late = setTimeout(() => child.kill('SIGKILL'), STOP_MS_MAX);
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM');
    await ended;
    clearTimeout(late);
  };
  return engine;
}

/** Creates app, collection and role. */
async function furnish(sealwire, folder, control) {
  for (const change of [
    ['apps', 'create', APP],
    ['collections', 'create', '--kind', 'deterministic', APP, COLLECTION],
    ['roles', 'set', ROLE, `tokenize,detokenize apps=${APP} collections=${COLLECTION}`],
    ['principals', 'grant', CLIENT, ROLE],
  ]) {
    const operator = ['--cert', path.join(folder, 'operator.pem'), '--key', path.join(folder, 'operator-key.pem')];
    const connect = ['--connect', control, '--server-name', 'localhost', '--ca', path.join(folder, 'ca.pem')];
    await execute(sealwire, [...change, ...connect, ...operator]);
  }
}

function quiet() {
  return { ...process.env, SEALWIRE_LOG_FILTER: 'warn' };
}

module.exports = { NAME, SHORT, RATE_PER_CORE, describe, settings, run, start };
