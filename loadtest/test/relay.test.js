'use strict';
// Documents through a relay that does wrong. Each wrong relay is a small proxy in front of a real one.
const test = require('node:test');
const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const os = require('node:os');
const path = require('node:path');
const engines = require('../lib/engine');
const relays = require('../lib/relay');
const { document } = require('../engine/lib/http');
const { program } = require('../lib/setup');
const { drive: driven } = require('./drive');

const RUN = path.join(__dirname, '../run');
const sealwire = program(process.env.SEALWIRE_PROGRAM);
const beside = process.env.SEALWIRE_PROGRAM && path.join(path.dirname(path.resolve(sealwire)), 'sealwire-relay');

let engine;
let relay;
test.before(async () => {
  engine = await engines.start(sealwire);
  relay = await relays.start(program(beside && fs.existsSync(beside) ? beside : undefined, 'sealwire-relay'), engine);
});
test.after(async () => {
  await relay?.stop();
  await engine.stop();
});

/** Changes to the body of a response; `null` breaks it off. */
const SPOIL = {
  right: (body) => body,
  flipped: (body) => body.replace('.50', '.51'),
  short: (body) => body.slice(0, -1),
  spaced: (body) => `${body}\n`,
  broken: () => null,
  bypass: (body) => body,
};

/** Starts a proxy that spoils responses in the way `kind`. Resolves with {address, close}. */
async function liar(kind) {
  const [host, port] = (kind === 'bypass' ? relay.service : relay).address.split(':');
  const server = http.createServer((request, response) => {
    const { method, url, headers } = request;
    const upstream = http.request({ host, port, method, path: url, headers }, (answer) => {
      const chunks = [];
      answer.on('data', (chunk) => chunks.push(chunk));
      answer.on('end', () => {
        const body = SPOIL[kind](Buffer.concat(chunks).toString());
        response.writeHead(answer.statusCode, { 'content-type': 'application/json' });
        if (body !== null) return response.end(body);
        response.write('{ ');
        return setImmediate(() => response.destroy());
      });
    });
    upstream.on('error', () => response.destroy());
    request.pipe(upstream);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { address: `127.0.0.1:${server.address().port}`, close };
}

const drive = (flow, address) =>
  driven(engine.address, flow, { users: 1, folder: engine.folder, settings: { relay: address } });

test('documents are large enough, and equal seeds make equal ones', () => {
  const options = { fields: 30, fieldBytes: 24 };
  const text = document(7, options);
  assert.ok(text.length > 3_900 && text.length < 4_800, String(text.length));
  assert.equal(JSON.parse(text).items.length, 30);
  assert.equal(new Set(JSON.parse(text).items.map(({ value }) => value)).size, 30);
  assert.deepEqual([document(7, options) === text, document(8, options) === text], [true, false]);
});

test('a right relay passes documents, and the service keeps ciphertext', async () => {
  const flow = [{ loop: [{ post: { name: 'write' } }, { get: { name: 'read', fieldBytes: 200 } }], count: 3 }];
  const { failures, errors, counters, result } = await drive(flow, relay.address);
  assert.deepEqual([failures, errors], [[null], {}]);
  assert.deepEqual([counters['write.checked'], counters['read.checked'], counters['read.fields']], [3, 3, 90]);
  assert.ok(result.totals.bytes_in_per_s * result.conditions.duration_s > 6 * 4_000);
  const bodies = [...relay.service.kept.values()].map(String);
  // Those of `read` were posted before.
  assert.ok(bodies.length >= 11, String(bodies.length));
  for (const body of bodies) assert.equal(body.match(/"value":"sw1:/g).length, 30);
});

test('each wrong response fails its virtual user', async (t) => {
  const rows = [
    ['right', null],
    ['flipped', 'wrong_reply'],
    ['short', 'wrong_reply'],
    ['spaced', 'wrong_reply'],
    ['broken', 'connection_lost'],
    // The service refuses what is not encrypted.
    ['bypass', 'wrong_reply'],
  ];
  for (const [kind, code] of rows) {
    for (const step of ['post', 'get']) {
      await t.test(`${kind}, ${step}`, async () => {
        const server = await liar(kind);
        const { failures, counters } = await drive([{ [step]: { name: 'call' } }], server.address);
        server.close();
        assert.deepEqual([failures, counters['call.errors']], [[code], code ? 1 : 0]);
      });
    }
  }
  await t.test('no relay', async () => {
    assert.deepEqual((await drive([{ post: { name: 'call' } }], undefined)).failures, ['connect_failed']);
    const [nobody] = await engines.freeAddresses(1);
    assert.deepEqual((await drive([{ post: { name: 'call' } }], nobody)).failures, ['connection_lost']);
  });
});

test('a wrong response of a relay fails the run', async (t) => {
  const work = fs.mkdtempSync(path.join(os.tmpdir(), 'sealwire-relay-runs-'));
  t.after(() => fs.rmSync(work, { recursive: true, force: true }));
  const file = path.join(work, 'short.yml');
  fs.writeFileSync(
    file,
    `
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
    flow: [{ post: { name: call } }]
`,
  );
  const runs = ['right', 'flipped', 'bypass'].map(async (kind) => {
    const server = await liar(kind);
    const args = [RUN, file, '--server', engine.address, '--folder', engine.folder, '--sealwire', sealwire];
    args.push('--relay', server.address, '--output', path.join(work, kind));
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    let said = '';
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (said += text));
    const status = await new Promise((resolve) => child.once('close', resolve));
    server.close();
    assert.equal(status, kind === 'right' ? 0 : 1, `${kind}: ${said}`);
    assert.equal(/fail: maxErrorRate/.test(said), kind !== 'right', `${kind}: ${said}`);
  });
  await Promise.all(runs);
});
