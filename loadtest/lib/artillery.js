'use strict';
// One run of a scenario file by Artillery.

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { check, choose } = require('./gates');
const { owe } = require('./leftovers');
const { HERE } = require('./setup');

/** Folder beside the results for what ran, and Artillery's own report. */
const ASIDE = 'artillery';
/** The environment of short forms, which say nothing about speed: their calls wait as long as a starved machine needs. */
const SHORT = 'smoke';
const SHORT_TIMEOUT_MS = 1_800_000;

/**
 * Runs `file` against `engine` {address, folder, pid, state} and a `relay` {address} in front of it. Resolves with {ok, said, result}: whether every gate
 * held, what Artillery printed, and the run as `sealwire.load/1` (null if there was none). Both are kept in `output`.
 */
async function run(file, { engine, relay, environment, output }) {
  const name = path.basename(file).replace(/\.ya?ml$/, '');
  const { script } = check(file);
  const base = environment ? `${name}.${environment}` : name;
  // Apart from the results, so that `*.json` of the folder are results.
  const aside = path.join(output, ASIDE);
  const files = {
    script: path.join(aside, `${base}.script.json`),
    artillery: path.join(aside, `${base}.report.json`),
    result: path.join(output, `${base}.json`),
  };
  fs.mkdirSync(aside, { recursive: true });
  fs.rmSync(files.artillery, { force: true });
  fs.rmSync(files.result, { force: true });
  fs.writeFileSync(files.script, JSON.stringify(resolved(script, environment, engine, relay), null, 1));
  const { status, said } = await artillery(['run', '--quiet', '--output', files.artillery, files.script], {
    SEALWIRE_LOADTEST_OUTPUT: files.result,
    SEALWIRE_LOADTEST_SERVER_PID: engine.pid ? String(engine.pid) : '',
    SEALWIRE_LOADTEST_STATE: engine.state ?? '',
  });
  const result = fs.existsSync(files.result) ? JSON.parse(fs.readFileSync(files.result, 'utf8')) : null;
  return { name, ok: status === 0 && result !== null, status, said, result, files };
}

/** The script that runs: in one environment, against one engine. */
function resolved({ config: { environments, ...all }, scenarios }, environment, engine, relay) {
  const config = environment ? choose({ environments, ...all }, environment) : all;
  const sealwire = {
    ...config.engines?.sealwire,
    folder: engine.folder,
    ...(relay && { relay: relay.address }),
    ...(environment === SHORT && { timeoutMs: SHORT_TIMEOUT_MS }),
  };
  return { config: { ...config, target: `sealwire://${engine.address}`, engines: { sealwire } }, scenarios };
}

function artillery(args, extra) {
  const env = { ...process.env, ...extra, ARTILLERY_DISABLE_TELEMETRY: '1' };
  // Whoever has this set in a shell would have every gate open.
  delete env.ARTILLERY_DISABLE_ENSURE;
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [path.join(HERE, 'node_modules/artillery/bin/run'), ...args], {
      cwd: HERE,
      env,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const paid = owe(() => child.kill('SIGKILL'));
    let said = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (text) => {
        said += text;
      });
    }
    child.once('error', reject);
    child.once('close', (status) => {
      paid();
      resolve({ status, said });
    });
  });
}

module.exports = { run };
