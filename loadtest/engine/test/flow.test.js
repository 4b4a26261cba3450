'use strict';
const test = require('node:test');
const assert = require('node:assert/strict');
const flow = require('../lib/flow');

const read = (...steps) => {
  const classes = new Map();
  return { steps: flow.read(steps, 's', classes), classes };
};

test('what a flow says is read with its defaults', () => {
  const { steps, classes } = read({ send: { numEncrypts: 150, suite: 'secp256k1' } }, { think: 0.5 });
  assert.deepEqual(steps[0].options, {
    name: undefined,
    app: 'demo',
    calls: 1,
    deadlineMs: undefined,
    timeoutMs: undefined,
    expect: [],
    numEncrypts: 150,
    fieldBytes: 16,
    suite: 'secp256k1',
    keyScope: 'request',
    cancelAfterMs: undefined,
    fields: 150,
  });
  assert.deepEqual(steps[1], { kind: 'think', ms: 500 });
  assert.deepEqual(
    [...classes],
    [['sealwire.s.encrypt-150', { method: 'encrypt', fields: 150, fieldBytes: 16, weight: 1 }]],
  );
});

test('what is misspelt or out of range is refused by name', () => {
  const rows = [
    [{ sned: {} }, /no step is called sned/],
    [{}, /no step/],
    [null, /no step/],
    [{ send: { numEncrypt: 30 } }, /send has no key numEncrypt; it takes name, /],
    [{ send: {}, count: 3 }, /has no key count/],
    [{ send: { numEncrypts: 0 } }, /numEncrypts must be a whole number from 1/],
    [{ send: { numEncrypts: '30' } }, /numEncrypts must be a whole number/],
    [{ send: { suite: 'p521' } }, /suite must be one of p256, secp256k1, xaes, p256-psk/],
    [{ send: { keyScope: 'all' } }, /keyScope must be one of/],
    [{ send: { expect: 'overloaded' } }, /expect must be a list/],
    [{ send: { name: 'a.b' } }, /name must be letters/],
    [{ detokenize: { numEncrypts: 1 } }, /no key numEncrypts/],
    [{ loop: [{ send: {} }] }, /either count or seconds/],
    [{ loop: [{ send: {} }], count: 1, seconds: 1 }, /either count or seconds/],
    [{ loop: [{ send: {} }], times: 1 }, /no key times/],
    [{ loop: [], count: 1 }, /a list of steps/],
    [{ mix: [{ send: {} }] }, /weight must be/],
    [{ mix: [{ weight: 1, sned: {} }] }, /no step is called sned/],
    [{ think: '1s' }, /think must be/],
    [{ meet: { user: 3 } }, /no key user/],
    [{ mix: [{ weight: 1, send: {} }, { weight: 1, meet: { users: 2 } }] }, /mix has a meeting/],
    [{ mix: [{ weight: 1, loop: [{ meet: { users: 2 } }], count: 1 }] }, /mix has a meeting/],
    [{ loop: [{ meet: { users: 2 } }], seconds: 1 }, /loop has a meeting/],
  ];
  for (const [step, why] of rows) assert.throws(() => read(step), why, JSON.stringify(step));
  const twice = [{ send: { name: 'a' } }, { send: { name: 'a', numEncrypts: 31 } }];
  assert.throws(() => read(...twice), /two different calls are named a/);
});

test('steps through a relay are known, also in loops and mixes', () => {
  const { steps, classes } = read({ post: { numEncrypts: 5 } });
  assert.deepEqual(steps[0].options, {
    name: undefined,
    calls: 1,
    timeoutMs: undefined,
    expect: [],
    numEncrypts: 5,
    fieldBytes: 24,
    fields: 5,
  });
  assert.deepEqual([...classes.keys()], ['sealwire.s.post-5']);
  const mixed = { loop: [{ mix: [{ weight: 1, get: {} }, { weight: 1, send: {} }] }], count: 2 };
  assert.deepEqual([flow.needsRelay(read(mixed).steps), flow.needsRelay(read({ send: {} }).steps)], [true, false]);
  assert.throws(() => read({ post: { app: 'demo' } }), /post has no key app/);
  assert.throws(() => read({ get: { fieldBytes: 8 } }), /fieldBytes must be a whole number from 24/);
});

test('how many calls a user makes on the way', () => {
  const mixed = { mix: [{ weight: 3, send: { name: 'a', calls: 4 } }, { weight: 1, send: { name: 'b', calls: 8 } }] };
  const rows = [
    [[{ send: {} }], 1],
    [[{ send: { calls: 3 } }, { think: 1 }, { decrypt: { name: 'd' } }], 4],
    [[mixed], 5],
    [[mixed, { send: {} }], 6],
  ];
  for (const [steps, calls] of rows) assert.equal(flow.callsIn(read(...steps).steps), calls, JSON.stringify(steps));
});

test('a mix holds its shares exactly in each deck', () => {
  const share = (weight, numEncrypts) => ({ weight, send: { numEncrypts } });
  const { steps, classes } = read({ mix: [share(80, 30), share(18, 150), share(2, 2000)] });
  const counts = {};
  for (const card of steps[0].cards) counts[card.options.fields] = (counts[card.options.fields] ?? 0) + 1;
  assert.deepEqual(counts, { 30: 40, 150: 9, 2000: 1 });
  assert.deepEqual(
    [...classes.values()].map(({ weight }) => weight),
    [0.8, 0.18, 0.02],
  );
});
