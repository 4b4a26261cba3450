'use strict';
// A throw-away engine in a temporary folder, and what scenarios need in it.

const { execFile, spawn } = require('node:child_process');
const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { promisify } = require('node:util');
const { owe } = require('./leftovers');

const run = promisify(execFile);
const READY_MS_MAX = 180_000;
const POLL_MS = 50;
/** Starts in all, where somebody else takes a port that was free. */
const START_TRIES = 3;
/** How long an engine may take to end before it is ended: more than it gives its calls. */
const STOP_MS_MAX = 30_000;
/** Who loads beside the relay: another caller, so that fairness between callers is seen. It has the relay's role. */
const BATCH = 'batch';
/** Collections that scenarios name: equal values have equal tokens, and each call makes new ones. */
const COLLECTIONS = { loadtest: 'deterministic', secrets: 'random' };
const APP = 'demo';
/** The role that `sealwire dev` makes for its client. */
const ROLE = 'relay';

/** Starts `sealwire dev` on free ports. Resolves with {address, admin, folder, pid, child, stop}. */
async function start(sealwire, tries = START_TRIES) {
  const [listen, admin, control, http] = await freeAddresses(4);
  const parent = fs.mkdtempSync(path.join(os.tmpdir(), 'sealwire-loadtest-'));
  const folder = path.join(parent, 'engine');
  const child = spawn(
    sealwire,
    ['dev', '--folder', folder, '--listen', listen, '--admin', admin, '--control', control, '--http', http],
    {
      stdio: ['ignore', 'ignore', 'pipe'],
      env: { ...process.env, SEALWIRE_LOG_FILTER: 'warn' },
    },
  );
  let said = '';
  child.stderr.on('data', (text) => {
    said = (said + text).slice(-4_000);
  });
  // With all that it said.
  const ended = new Promise((resolve) => child.once('close', resolve));
  // The folder holds keys: the engine and it go with this process, whatever ends that.
  const remove = () => fs.rmSync(parent, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 });
  const paid = owe(() => {
    child.kill('SIGKILL');
    remove();
  });
  const stop = async () => {
    const late = setTimeout(() => child.kill('SIGKILL'), STOP_MS_MAX);
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM');
    await ended;
    clearTimeout(late);
    paid();
    remove();
  };
  try {
    await ready(admin, child, () => said);
    await furnish(sealwire, { folder, control, waitMs: READY_MS_MAX });
  } catch (error) {
    await stop();
    if (tries > 1 && said.includes('cannot listen on')) return start(sealwire, tries - 1);
    throw error;
  }
  return { address: listen, admin, folder, pid: child.pid, child, stop };
}

/**
 * Makes the second caller and the collections; what is there stays. `control`: host:port, or of the folder's own.
 * `waitMs`: how long to wait for the app, which an engine that has just started makes when it is ready.
 */
async function furnish(sealwire, { folder, control, waitMs = 0 }) {
  if (!fs.existsSync(path.join(folder, `${BATCH}.pem`))) {
    await run(sealwire, ['certs', 'client', BATCH, '--folder', folder]);
  }
  const connect = control ? ['--connect', control] : [];
  const until = Date.now() + waitMs;
  const changes = Object.entries(COLLECTIONS).map(([name, kind]) => ['collections', 'create', '--kind', kind, APP, name]);
  changes.push(['principals', 'grant', BATCH, ROLE]);
  for (const change of changes) {
    for (;;) {
      const error = await run(sealwire, [...change, '--folder', folder, ...connect]).then(() => null, (failure) => failure);
      if (!error || /conflict/.test(error.stderr)) break;
      // The app, or the role, which the engine makes last.
      const comes = /not_found/.test(error.stderr) && Date.now() < until;
      if (!comes) throw new Error(`${change.join(' ')}: ${error.stderr || error.message}`);
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  }
}

/** Resolves when a program answers on its admin address; rejects when it ends. */
async function ready(admin, child, said) {
  const until = Date.now() + READY_MS_MAX;
  while (Date.now() < until) {
    if (child.exitCode !== null) throw new Error(`it ended with ${child.exitCode}: ${said()}`);
    const answer = await fetch(`http://${admin}/ready`).catch(() => null);
    if (answer?.ok) return;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  throw new Error(`it is not ready after ${READY_MS_MAX} ms: ${said()}`);
}

/** That many addresses on loopback with ports that were free just now. */
async function freeAddresses(count) {
  const servers = await Promise.all(
    Array.from(
      { length: count },
      () =>
        new Promise((resolve, reject) => {
          const server = net.createServer().once('error', reject);
          server.listen(0, '127.0.0.1', () => resolve(server));
        }),
    ),
  );
  const addresses = servers.map((server) => `127.0.0.1:${server.address().port}`);
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return addresses;
}

module.exports = { start, furnish, freeAddresses, ready };
