'use strict';
// The frames are held against bytes written here by hand from `proto/README.md`, not against the code that made them.
const test = require('node:test');
const assert = require('node:assert/strict');
const { readFileSync } = require('node:fs');
const native = require('..');

/** The few MessagePack headers these tests need, written by hand. */
const str = (text) => Buffer.concat([Buffer.from([0xa0 | Buffer.byteLength(text)]), Buffer.from(text)]);
const map = (...pairs) => Buffer.concat([Buffer.from([0x80 | (pairs.length / 2)]), ...pairs]);
const bytes = (...numbers) => Buffer.from(numbers);
const request = (msgid, method, params) => Buffer.concat([bytes(0x94, 0), msgid, str(method), bytes(0x91), params]);
const payload = map(str('pan'), str('4242'));

test('a call is the frame of the contract', () => {
  const rows = [
    [
      'encrypt',
      { app: 'demo', payload },
      request(bytes(7), 'encrypt', map(str('app'), str('demo'), str('payload'), payload)),
    ],
    [
      'encrypt',
      { app: 'demo', payload, suite: 'secp256k1', keyScope: 'field', deadlineMs: 100 },
      request(
        bytes(7),
        'encrypt',
        map(
          str('app'),
          str('demo'),
          str('suite'),
          str('secp256k1'),
          str('key_scope'),
          str('field'),
          str('deadline_ms'),
          bytes(100),
          str('payload'),
          payload,
        ),
      ),
    ],
    [
      'decrypt',
      { app: 'demo', payload },
      request(bytes(7), 'decrypt', map(str('app'), str('demo'), str('payload'), payload)),
    ],
    [
      'tokenize',
      { app: 'demo', payload, collection: 'people', idempotencyKey: bytes(1, 2) },
      request(
        bytes(7),
        'tokenize',
        map(
          str('app'),
          str('demo'),
          str('collection'),
          str('people'),
          str('idempotency_key'),
          bytes(0xc4, 2, 1, 2),
          str('payload'),
          payload,
        ),
      ),
    ],
    [
      'detokenize',
      { app: 'demo', payload, collection: 'people' },
      request(
        bytes(7),
        'detokenize',
        map(str('app'), str('demo'), str('collection'), str('people'), str('payload'), payload),
      ),
    ],
  ];
  for (const [method, call, expected] of rows) assert.deepEqual(native[method](7, call), expected, method);
  assert.deepEqual(native.info(7), request(bytes(7), 'info', bytes(0x80)));
  assert.deepEqual(native.cancel(300), Buffer.concat([bytes(0x93, 2), str('cancel'), bytes(0x91, 0xcd, 1, 44)]));
});

test('a made document has the fields and the size asked for, and follows from its seed', () => {
  const sent = native.encrypt(1, { app: 'demo', fields: 30, fieldBytes: 16, seed: 5 });
  const document = native.document(30, 16, 5);
  assert.ok(sent.includes(document));
  assert.equal(document.length, 3 + 30 * (13 + 17));
  assert.equal(document.subarray(4, 16).toString(), 'field_000000');
  assert.deepEqual(document, native.document(30, 16, 5));
  assert.notDeepEqual(document, native.document(30, 16, 6));
  assert.equal(native.document(0, 16).length, 1);
  assert.equal(native.document(1, 70_000).length, 1 + 13 + 5 + 70_000);
});

test('what makes no frame throws and says why', () => {
  const rows = [
    [() => native.encrypt(1, { app: 'demo' }), /either payload or fields/],
    [() => native.encrypt(1, { app: 'demo', payload, fields: 1 }), /either payload or fields/],
    [() => native.encrypt(1, { app: 'demo', payload: bytes(1, 1) }), /payload/],
    [() => native.encrypt(1, { app: 'demo', payload: bytes(0x92, 1) }), /payload/],
    [() => native.encrypt(1, { app: 'demo', payload, suite: 'p521' }), /suite: p521/],
    [() => native.encrypt(1, { app: 'demo', payload, keyScope: 'all' }), /keyScope: all/],
    [() => native.tokenize(1, { app: 'demo', payload }), /collection/],
    [() => native.encrypt(1, { fields: 1 }), /app/],
    [() => native.encrypt('one', { app: 'demo', fields: 1 }), /u32/],
    [() => native.encrypt(1, { app: 'demo', fields: 2_000_000 }), /more than/],
    [() => native.document(1_000_000, 1_000_000), /more than/],
  ];
  for (const [call, why] of rows) assert.throws(call, why, String(call));
});

test('a panic is an exception', () => {
  assert.throws(() => native.panicForTest(), /asked to/);
  // And the binding still works.
  assert.equal(native.cancel(1).length, 11);
});

test('the typings name everything the binding has, and nothing else', () => {
  const typings = readFileSync(require.resolve('../index.d.ts'), 'utf8');
  const declared = [...typings.matchAll(/^export (?:function|class) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(declared.sort(), Object.keys(native).sort());
  const keys = (name) =>
    [...typings.match(new RegExp(`interface ${name} {([^}]*)}`))[1].matchAll(/^ {2}(\w+)\??:/gm)].map(([, key]) => key);
  const [reply] = new native.Replies().push(Buffer.concat([bytes(0x94, 1, 7, 0xc0), map(str('status'), str('ok'))]));
  for (const key of Object.keys(reply)) assert.ok(keys('Reply').includes(key), key);
});
