'use strict';
// Runs that must fail, through the same command as runs that must not: a gate that cannot fail is none.
const test = require('node:test');
const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const engines = require('../lib/engine');
const { responder } = require('./responder');
const { program } = require('../lib/setup');

const RUN = path.join(__dirname, '../run');
const UNTIL_MS_MAX = 180_000;
const sealwire = program(process.env.SEALWIRE_PROGRAM);

/** One engine gives everything a folder with certificates. */
let engine;
let work;
test.before(async () => {
  work = fs.mkdtempSync(path.join(os.tmpdir(), 'sealwire-runs-'));
  engine = await engines.start(sealwire);
});
test.after(async () => {
  await engine.stop();
  fs.rmSync(work, { recursive: true, force: true });
});

/** A short scenario that passes against an engine that does what it should. */
const GOOD = `
config:
  target: sealwire://127.0.0.1:7443
  engines: { sealwire: { connections: 2 } }
  plugins: { ensure: {} }
  phases: [{ arrivalCount: 3, duration: 1 }]
  ensure:
    maxErrorRate: 0
    conditions: [{ expression: sealwire.short.call.ok >= 3 }]
scenarios:
  - name: short
    engine: sealwire
    flow: [{ loop: [{ send: { name: call, numEncrypts: 30 } }, { think: 0.01 }], TIMES }]
`;

/** How often the calls of a scenario are sent: a few times, or until something ends the run. */
const FEW = 'count: 20';
const UNTIL_ENDED = 'seconds: 3600';

function scenario(name, text, times = FEW) {
  const file = path.join(work, `${name}.yml`);
  fs.writeFileSync(file, text.replace('TIMES', times));
  return file;
}

/** Runs it against a server at `address`; resolves with {status, said, result}. */
async function run(name, file, address, folder = engine.folder) {
  const output = path.join(work, `${name}-results`);
  const args = [RUN, file, '--server', address, '--folder', folder, '--sealwire', sealwire, '--output', output];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (said += text));
  const status = await new Promise((resolve) => child.once('close', resolve));
  const result = path.join(output, `${name}.json`);
  return { status, said, result: fs.existsSync(result) ? JSON.parse(fs.readFileSync(result, 'utf8')) : null };
}

/** Command lines of the processes that name `text`. */
function naming(text) {
  const lines = fs.readdirSync('/proc').map((pid) => {
    try {
      return /^\d+$/.test(pid) ? fs.readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ') : '';
    } catch {
      return '';
    }
  });
  return lines.filter((line) => line.includes(text));
}

/** Resolves when `is` gives true. */
async function until(is) {
  const end = Date.now() + UNTIL_MS_MAX;
  while (!(await is())) {
    assert.ok(Date.now() < end, `${is} within ${UNTIL_MS_MAX} ms`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Resolves when an engine has answered so many calls, by its own count. */
async function sealed(victim, calls) {
  await until(async () => {
    const metrics = await (await fetch(`http://${victim.admin}/metrics`)).text();
    const ok = [...metrics.matchAll(/^sealwire_requests_total\{method="encrypt",code="ok"\} (\d+)/gm)];
    return ok.reduce((sum, [, count]) => sum + Number(count), 0) >= calls;
  });
}

test('runs end as they should', { concurrency: 6 }, async (t) => {
  const cases = [
    t.test('a right engine passes, and is described', async () => {
      const { status, said, result } = await run('good', scenario('good', GOOD), engine.address);
      assert.equal(status, 0, said);
      assert.equal(result.schema, 'sealwire.load/1');
      const [calls] = result.classes;
      assert.ok(calls.ok >= 3 && calls.ok === calls.sent && calls.checked >= 1, JSON.stringify(calls));
      assert.deepEqual(calls.errors, {});
      assert.equal(
        calls.histogram_us.reduce((sum, [, count]) => sum + count, 0),
        calls.ok,
      );
      assert.equal(
        calls.over_time.reduce((sum, slice) => sum + slice.ok, 0),
        calls.ok,
      );
      assert.match(result.conditions.tls, /^TLSv1\.3 TLS_/);
      assert.equal(result.conditions.engine.version, '0.1.0');
      assert.equal(result.conditions.same_machine, true);
    }),
  ];
  cases.push(
    t.test('a wrong reply fails', async () => {
      const server = await responder(engine, 'forged');
      const { status, said, result } = await run('forged', scenario('forged', GOOD), server.address);
      server.close();
      assert.notEqual(status, 0, said);
      assert.ok(result.classes[0].errors.cannot_open >= 1, JSON.stringify(result.classes[0].errors));
      assert.match(said, /fail: maxErrorRate/);
    }),
    t.test('an engine that is killed midway fails', async (t) => {
      const victim = await engines.start(sealwire);
      t.after(() => victim.stop());
      // It ends with the engine, long before its time.
      const ended = run('killed', scenario('killed', GOOD, UNTIL_ENDED), victim.address, victim.folder);
      await sealed(victim, 20);
      victim.child.kill('SIGKILL');
      const { status, said, result } = await ended;
      assert.notEqual(status, 0, said);
      const [calls] = result.classes;
      // What the engine has counted may not have been read when it dies.
      assert.ok(calls.ok >= 1, 'it did work before');
      const lost = (calls.errors.connection_lost ?? 0) + (calls.errors.connect_failed ?? 0);
      assert.ok(lost >= 1, JSON.stringify(calls.errors));
      assert.match(said, /fail: maxErrorRate/);
    }),
    t.test('a run that is ended leaves no process and no key', { skip: process.platform !== 'linux' }, async () => {
      for (const [signal, code] of [
        ['SIGTERM', 143],
        ['SIGINT', 130],
      ]) {
        const temporary = path.join(work, signal);
        const output = path.join(temporary, 'results');
        fs.mkdirSync(temporary);
        const args = [RUN, scenario(signal, GOOD, UNTIL_ENDED), '--sealwire', sealwire, '--output', output];
        const child = spawn(process.execPath, args, { env: { ...process.env, TMPDIR: temporary }, stdio: 'ignore' });
        const ended = new Promise((resolve) => child.once('close', resolve));
        // The engine by its folder, and Artillery by its script.
        const runs = (what) => naming(temporary).some((line) => line.includes(what));
        await until(() => runs(' dev --folder ') && runs('artillery/bin/run'));
        assert.ok(fs.readdirSync(temporary).some((name) => name.startsWith('sealwire-loadtest-')));
        child.kill(signal);
        assert.equal(await ended, code);
        await until(() => naming(temporary).length === 0);
        assert.deepEqual(fs.readdirSync(temporary), ['results']);
      }
    }),
    t.test('an engine that is not there fails', async () => {
      const [nobody] = await engines.freeAddresses(1);
      const { status, said } = await run('down', scenario('down', GOOD), nobody);
      assert.notEqual(status, 0, said);
      assert.match(said, /fail: maxErrorRate/);
    }),
    t.test('a misspelt gate fails before anything runs', async () => {
      for (const [from, to] of [
        ['maxErrorRate', 'maxErorRate'],
        ['short.call.ok', 'short.cal.ok'],
        ['    conditions', '    condition'],
      ]) {
        const { status, said, result } = await run(
          'misspelt',
          scenario('misspelt', GOOD.replace(from, to)),
          engine.address,
        );
        assert.equal(status, 2, said);
        assert.equal(result, null);
      }
    }),
    t.test('a gate that does not hold fails', async () => {
      const { status, said } = await run(
        'closed',
        scenario('closed', GOOD.replace('ok >= 3', 'ok >= 1000000')),
        engine.address,
      );
      assert.equal(status, 1, said);
      assert.match(said, /fail: sealwire\.short\.call\.ok >= 1000000/);
    }),
  );
  await Promise.all(cases);
});
