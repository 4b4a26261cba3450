'use strict';
// PostgreSQL and several engines on it, all thrown away afterwards, and the generator that loads them.

const { execFile, spawn } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const readline = require('node:readline');
const { promisify } = require('node:util');
const { freeAddresses, ready } = require('./engine');
const { owe } = require('./leftovers');

const execute = promisify(execFile);
const APP = 'demo';
const COLLECTION = 'vault';
const ROLE = 'load';
const GRANTS = [`tokenize,detokenize apps=${APP} collections=${COLLECTION}`, `encrypt,decrypt apps=${APP}`];
/** Name of the client certificate that `sealwire dev` issues. */
const CLIENT = 'dev-client';
const STOP_MS_MAX = 30_000;

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

/** Starts PostgreSQL and engines. Resolves with {folder, addresses, engines, database, logs, stop}. */
async function start({ sealwire, load, postgres }, count, stateDelay = 0) {
  const parent = fs.mkdtempSync(path.join(os.tmpdir(), 'sealwire-engines-'));
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
    const passwordFile = path.join(parent, 'password');
    fs.writeFileSync(passwordFile, database.password, { mode: 0o600 });
    for (let number = 1; number <= count; number += 1) {
      const engine = await makeEngine(sealwire, parent, number, database.url);
      engines.push(engine);
      await engine.start();
      // The other engines read what the first has at their start.
      if (number === 1) await furnish(sealwire, folder, engine.control);
    }
    const logs = () => engines.map((engine) => engine.log()).join('');
    const access = { url: database.url, passwordFile };
    return { folder, addresses: engines.map((engine) => engine.address), engines, database: access, logs, stop };
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
    ['roles', 'set', ROLE, ...GRANTS],
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

module.exports = { APP, COLLECTION, execute, generate, start };
