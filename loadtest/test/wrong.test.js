'use strict';
// What the Artillery engine makes of a server that does wrong, without Artillery: each wrong alone, in milliseconds.
const test = require('node:test');
const assert = require('node:assert/strict');
const engines = require('../lib/engine');
const { program } = require('../lib/setup');
const { drive: driven } = require('./drive');
const { responder } = require('./responder');

let engine;
test.before(async () => {
  engine = await engines.start(program(process.env.SEALWIRE_PROGRAM));
});
test.after(() => engine.stop());

const drive = (address, flow, options = {}) => driven(address, flow, { folder: engine.folder, ...options });

const SEND = [{ send: { name: 'call', numEncrypts: 30 } }];

test('a right server, through the relay of bytes that the wrong ones are made of', async () => {
  const server = await responder(engine, 'right');
  const { counters, failures, errors, result } = await drive(server.address, SEND);
  server.close();
  assert.deepEqual([failures, errors], [[null, null], {}]);
  assert.deepEqual([counters['call.sent'], counters['call.ok'], counters['call.fields']], [2, 2, 60]);
  assert.ok(counters['call.checked'] >= 1);
  // Two arrivals in a second, however soon their answers came.
  assert.deepEqual([result.conditions.offered_per_s, result.totals.offered_per_s], [2, 2]);
});

test('each wrong reply fails its virtual user and is counted by its code', async (t) => {
  const rows = [
    ['one byte of the payload changed', 'flipped', 'wrong_reply'],
    ['a field missing', 'short', 'wrong_reply'],
    ['no envelopes', 'echo', 'wrong_reply'],
    ['the right shape, which does not open', 'forged', 'cannot_open'],
    ['the answer to another call', 'msgid', 'contract_broken'],
    ['no answer', 'silent', 'timeout', 1_000],
    ['bytes that are no message', 'noise', 'contract_broken'],
  ];
  for (const [what, kind, code, timeoutMs] of rows) {
    await t.test(what, async () => {
      const server = await responder(engine, kind);
      const flow = [{ send: { name: 'call', numEncrypts: 30, timeoutMs } }];
      const { counters, errors, failures, result } = await drive(server.address, flow, { users: 1 });
      server.close();
      assert.deepEqual(failures, [code]);
      assert.deepEqual(errors, { [code]: 1 });
      assert.equal(counters['call.errors'], 1);
      assert.deepEqual(result.classes[0].errors, { [code]: 1 });
    });
  }
});

test('an error of the engine is one, unless the scenario expects it', async () => {
  const tooLate = { name: 'call', numEncrypts: 60_000, deadlineMs: 1 };
  const { failures, errors } = await drive(engine.address, [{ send: tooLate }], { users: 1 });
  assert.ok(['deadline_exceeded', 'overloaded'].includes(failures[0]), failures[0]);
  assert.equal(errors[failures[0]], 1);
  const expect = ['deadline_exceeded', 'overloaded'];
  const allowed = await drive(engine.address, [{ send: { ...tooLate, expect } }], { users: 1 });
  assert.deepEqual([allowed.failures, allowed.errors], [[null], {}]);
  assert.equal(allowed.counters['call.refused'], 1);
});

test('an app that is not there, a certificate that is not accepted, a folder without one', async () => {
  const none = await drive(engine.address, [{ send: { name: 'call', app: 'nobody' } }], { users: 1 });
  assert.deepEqual(none.failures, ['not_found']);
  const other = await engines.start(program(process.env.SEALWIRE_PROGRAM));
  const stranger = await drive(engine.address, SEND, { users: 1, folder: other.folder });
  await other.stop();
  assert.equal(stranger.failures[0], 'connect_failed');
  const nobody = await drive(engine.address, SEND, { users: 1, settings: { identity: 'nobody' } });
  assert.deepEqual([nobody.failures, nobody.errors], [['no_certificate'], { no_certificate: 1 }]);
});

test('who fails is not waited for at a meeting', async () => {
  const flow = [{ send: { name: 'call', app: 'nobody' } }, { meet: { users: 2 } }];
  const { failures } = await drive(engine.address, flow);
  assert.deepEqual(failures, ['not_found', 'not_found']);
  const mixed = [
    {
      mix: [
        { weight: 1, send: { name: 'a', app: 'nobody' } },
        { weight: 1, send: { name: 'b' } },
      ],
    },
    { meet: { users: 2 } },
  ];
  const late = await drive(engine.address, mixed);
  assert.deepEqual(late.failures, ['not_found', 'not_found']);
});

test('bytes are those of all connections, also of the closed', async () => {
  const flow = [{ slowRead: { name: 'call', numEncrypts: 2_000, calls: 2, holdMs: 0 } }];
  const { failures, result } = await drive(engine.address, flow, { users: 1 });
  assert.deepEqual(failures, [null]);
  const { bytes_in_per_s: perSecond } = result.totals;
  // Each field comes back as an envelope of 106 bytes.
  assert.ok(perSecond * result.conditions.duration_s >= 2 * 2_000 * 106, String(perSecond));
});

test('load beside fails the run too', async () => {
  const beside = [{ name: 'batch', identity: 'batch', flow: [{ send: { name: 'call', app: 'nobody' } }] }];
  const flow = [{ loop: [{ think: 0.05 }, { send: { name: 'own' } }], seconds: 3600 }];
  const { failures } = await drive(engine.address, flow, { users: 1, settings: { beside } });
  assert.deepEqual(failures, ['not_found']);
  // Also what it has not told when the last user ends: it does not read the answer before.
  const held = [{ ...beside[0], flow: [{ slowRead: { name: 'call', app: 'nobody', holdMs: 1_000 } }] }];
  const last = await drive(engine.address, [{ think: 0 }], { users: 2, settings: { beside: held } });
  assert.deepEqual(last.failures.sort(), ['not_found', null]);
  const [{ sent, errors }] = last.result.classes;
  assert.deepEqual(errors, { not_found: sent });
  assert.ok(sent >= 1);
});
