'use strict';
// The scenario scale: PostgreSQL, several engines on it, HAProxy in front of them, and `sealwire-load scale`, which loads
// 1, 2 and more of the engines through the endpoint list of clients and through HAProxy.

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { APP, COLLECTION, execute, generate, start } = require('./cluster');
const { freeAddresses } = require('./engine');
const { owe } = require('./leftovers');
const { ROOT } = require('./setup');

const NAME = 'scale';
const OPTIONS = ['engines', 'rows', 'seconds', 'rounds', 'fields', 'connection-age'];
/** The rows are enough for indexes of several levels. */
const DEFAULTS = { engines: 4, rows: 1_000_000, seconds: 5, rounds: 3, fields: 30, 'connection-age': 1_800 };
/** The short form, which asserts no times. */
const SHORT = { engines: 2, rows: 4_000, seconds: 0.4, rounds: 1, fields: 30, connectionAge: 1_800, clients: 2, warmUp: 0.1 };
const CLIENTS = 8;
const WARM_UP_S = 1.5;
/** How long HAProxy may take to listen. */
const LISTEN_MS_MAX = 60_000;

/** Reads the options of the scenario, which are texts, and adds the defaults. */
function settings(given) {
  const number = (name, min, max) => {
    if (given[name] === undefined) return DEFAULTS[name];
    if (!/^\d+$/.test(given[name]) || Number(given[name]) < min || Number(given[name]) > max) {
      throw new Error(`--${name} is a whole number from ${min} to ${max}`);
    }
    return Number(given[name]);
  };
  return {
    engines: number('engines', 1, 16),
    rows: number('rows', 0, 1_000_000_000),
    seconds: number('seconds', 1, 3_600),
    rounds: number('rounds', 1, 100),
    fields: number('fields', 1, 10_000),
    connectionAge: number('connection-age', 10, 86_400),
    clients: CLIENTS,
    warmUp: WARM_UP_S,
  };
}

/** Numbers of engines to load: 1, 2, 4, and so on to all of them. */
function counts(engines) {
  const powers = [];
  for (let count = 1; count < engines; count *= 2) powers.push(count);
  return [...powers, engines];
}

/** Runs the load as `vault.run` does. */
async function run(programs, chosen, { output, environment, json, brief }) {
  const result = path.join(output, `${environment ? `${NAME}.${environment}` : NAME}.json`);
  fs.mkdirSync(output, { recursive: true });
  fs.rmSync(result, { force: true });
  const cluster = await start(programs, chosen.engines);
  let balancer;
  try {
    balancer = await startBalancer(cluster.engines, counts(chosen.engines));
    const { passwordFile } = cluster.database;
    // Engines are not superusers. A checkpoint needs one.
    const url = cluster.database.url.replace('user=sealwire', 'user=postgres');
    const args = ['scale', '--folder', cluster.folder, '--server-name', 'localhost', '--output', result];
    args.push('--connect', cluster.addresses.join(','), '--admin', cluster.engines.map(({ admin }) => admin).join(','));
    args.push('--counts', counts(chosen.engines).join(','), '--balancers', balancer.addresses.join(','));
    args.push('--database', url, '--database-password-file', passwordFile, '--app', APP, '--collection', COLLECTION);
    args.push('--warm-up', String(chosen.warmUp), '--connection-age', String(chosen.connectionAge));
    if (chosen.engines > 1) args.push('--restart');
    for (const name of ['rows', 'seconds', 'rounds', 'fields', 'clients']) args.push(`--${name}`, String(chosen[name]));
    const { status, said, errors } = await generate(programs.load, args, brief);
    const figures = fs.existsSync(result) ? JSON.parse(fs.readFileSync(result, 'utf8')) : null;
    const ok = status === 0 && figures !== null;
    const why = ok ? '' : ` (sealwire-load ended with ${status})\n${errors.trim()}\n${cluster.logs()}`;
    (json ? process.stderr : process.stdout).write(`${ok ? 'ok  ' : 'FAIL'} ${NAME}${why}\n${brief || json ? '' : said}`);
    if (figures && !brief) {
      const { stdout } = await execute(programs.load, ['capacity', result]);
      if (!json) process.stdout.write(`\n${stdout}`);
    }
    return { name: NAME, ok, said: errors, result: figures };
  } finally {
    await balancer?.stop();
    await cluster.stop();
  }
}

/**
 * Starts HAProxy with the settings of ops/haproxy.cfg and an address for each number of engines. Resolves with
 * {addresses, stop}.
 */
async function startBalancer(engines, numbers) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sealwire-haproxy-'));
  const addresses = await freeAddresses(numbers.length);
  const file = path.join(folder, 'haproxy.cfg');
  fs.writeFileSync(file, configuration(engines, numbers, addresses));
  const search = `${process.env.PATH}:/usr/sbin`;
  const child = spawn('haproxy', ['-db', '-f', file], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, PATH: search },
  });
  const remove = () => fs.rmSync(folder, { recursive: true, force: true });
  const paid = owe(() => {
    child.kill('SIGKILL');
    remove();
  });
  let said = '';
  child.stderr.on('data', (text) => (said = (said + text).slice(-4_000)));
  const ended = new Promise((resolve) => {
    child.once('error', (error) => {
      said = error.code === 'ENOENT' ? 'haproxy is not installed: apt-get install haproxy' : error.message;
      resolve();
    });
    child.once('close', resolve);
  });
  const stop = async () => {
    child.kill('SIGTERM');
    await ended;
    paid();
    remove();
  };
  try {
    await Promise.all(addresses.map((address) => listens(address, child, () => said)));
  } catch (error) {
    await stop();
    throw error;
  }
  return { addresses, stop };
}

/** Returns a configuration of HAProxy with a frontend for each number of engines. */
function configuration(engines, numbers, addresses) {
  const text = fs.readFileSync(path.join(ROOT, 'ops/haproxy.cfg'), 'utf8');
  const at = text.indexOf('frontend engines_in');
  const frontend = text.slice(at);
  const part = (count, index) =>
    frontend
      .replace('frontend engines_in', `frontend engines_in_${count}`)
      .replace('bind :7443', `bind ${addresses[index]}`)
      .replace(/\bengines(_without_database)?(?= if |\)|\n)/g, `engines$1_${count}`)
      .replace(/( +server .*\n)+/g, servers(engines.slice(0, count)));
  return text.slice(0, at) + numbers.map(part).join('\n');
}

function servers(engines) {
  const line = ({ address, admin }, index) => {
    const [host, port] = admin.split(':');
    return `    server engine${index + 1} ${address} addr ${host} port ${port}\n`;
  };
  return engines.map(line).join('');
}

/** Resolves when something listens on the address, and rejects if the program ends before. */
async function listens(address, child, said) {
  const [host, port] = address.split(':');
  const until = Date.now() + LISTEN_MS_MAX;
  for (;;) {
    const open = await new Promise((resolve) => {
      const socket = net.connect(Number(port), host);
      const give = (is) => {
        socket.destroy();
        resolve(is);
      };
      socket.once('connect', () => give(true));
      socket.once('error', () => give(false));
    });
    if (open) return;
    if (child.exitCode !== null || child.pid === undefined || Date.now() > until) {
      throw new Error(`HAProxy does not listen on ${address}: ${said()}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

module.exports = { NAME, OPTIONS, SHORT, configuration, counts, settings, run };
