'use strict';
const test = require('node:test');
const assert = require('node:assert/strict');
const { Worker } = require('node:worker_threads');
const native = require('..');

const str = (text) => Buffer.concat([Buffer.from([0xa0 | Buffer.byteLength(text)]), Buffer.from(text)]);
const map = (...pairs) => Buffer.concat([Buffer.from([0x80 | (pairs.length / 2)]), ...pairs]);
const bytes = (...numbers) => Buffer.from(numbers);
const NIL = bytes(0xc0);
const payload = map(str('pan'), str('4242'), str('rest'), bytes(0x92, 1, 2));
const answer = (msgid) =>
  Buffer.concat([bytes(0x94, 1, msgid), NIL, map(str('payload'), payload, str('generation'), bytes(3))]);
const refusal = (msgid) =>
  Buffer.concat([
    bytes(0x94, 1, msgid),
    map(
      str('code'),
      str('overloaded'),
      str('message'),
      str('too much'),
      str('retry_after_ms'),
      bytes(50),
      str('details'),
      map(str('reason'), str('backlog')),
    ),
    NIL,
  ]);

test('replies come out whole, however their bytes come in', () => {
  const stream = Buffer.concat([answer(1), refusal(2), answer(3)]);
  for (let piece = 1; piece <= stream.length; piece += 1) {
    const replies = new native.Replies();
    const out = [];
    for (let at = 0; at < stream.length; at += piece) out.push(...replies.push(stream.subarray(at, at + piece)));
    assert.deepEqual(
      out.map((reply) => [reply.msgid, reply.ok, reply.code]),
      [
        [1, true, undefined],
        [2, false, 'overloaded'],
        [3, true, undefined],
      ],
    );
    assert.equal(out[0].fields, 3);
    assert.equal(out[0].bytes, answer(1).length);
    assert.deepEqual(out[0].payload, payload);
    assert.deepEqual([out[1].message, out[1].retryAfterMs, out[1].reason], ['too much', 50, 'backlog']);
    assert.equal(replies.pending, 0);
  }
});

test('a result that is no document, and the last word of an engine', () => {
  const replies = new native.Replies();
  const status = map(str('status'), str('ok'));
  const [health] = replies.push(Buffer.concat([bytes(0x94, 1, 9), NIL, status]));
  assert.deepEqual([health.ok, health.result, health.payload], [true, status, undefined]);
  const error = map(str('code'), str('bad_request'), str('message'), str('no'));
  const [last] = replies.push(Buffer.concat([bytes(0x93, 2), str('error'), bytes(0x91), error]));
  assert.deepEqual([last.msgid, last.ok, last.code], [undefined, false, 'bad_request']);
});

test('what breaks the contract throws', () => {
  const rows = [
    ['a request', Buffer.concat([bytes(0x94, 0, 1), str('encrypt'), bytes(0x91, 0x80)])],
    ['no array', bytes(0xa1, 0x61)],
    ['a reserved byte', bytes(0xc1)],
    ['an error without a code', Buffer.concat([bytes(0x94, 1, 1), map(str('message'), str('no')), NIL])],
    ['4 GiB announced', bytes(0x94, 1, 1, 0xc0, 0xdb, 0xff, 0xff, 0xff, 0xff)],
  ];
  for (const [name, message] of rows) {
    assert.throws(() => new native.Replies().push(message), /breaks the contract/, name);
  }
});

test('a document is checked field by field', () => {
  const header = (suite, fill, first = 'A') => `sw1:${first}${suite}${fill.repeat(50)}`;
  const envelope = (suite, fill, end, first) => `${header(suite, fill, first)}${'x'.repeat(49)}${end}`;
  const short = (end) => `sw1:A7${'h'.repeat(34)}${'x'.repeat(49)}${end}`;
  const document = (...texts) =>
    map(
      ...texts.flatMap((text, i) => [
        str(`field_00000${i}`),
        Buffer.concat([bytes(0xd9, text.length), Buffer.from(text)]),
      ]),
    );
  const two = { holds: 'envelopes', fields: 2, fieldBytes: 16 };
  const good = document(envelope('Q', 'h', '1'), envelope('Q', 'h', '2'));
  const own = document(envelope('Q', 'h', '1'), envelope('Q', 'i', '2'));
  const token = (end) => `tok_${'x'.repeat(21)}${end}`;
  const rows = [
    [good, two, null],
    [good, { ...two, suite: 'secp256k1' }, /another suite/],
    [good, { ...two, suite: 'xaes' }, /another suite/],
    [document(envelope('h', 'h', '1'), envelope('h', 'h', '2')), { ...two, suite: 'secp256k1' }, null],
    [document(envelope('Q', 'h', '1', 'B'), envelope('Q', 'h', '2', 'B')), { ...two, suite: 'p256-psk' }, null],
    [document(envelope('Q', 'h', '1', 'B'), envelope('Q', 'h', '2', 'B')), two, /another suite/],
    [good, { ...two, suite: 'p256-psk' }, /another suite/],
    [document(short('1'), short('2')), { ...two, suite: 'xaes' }, null],
    [document(short('1'), short('2')), { ...two, suite: 'xaes', keyScope: 'field' }, /key scope/],
    [good, { ...two, keyScope: 'field' }, /key scope/],
    [own, { ...two, keyScope: 'field' }, null],
    [own, two, /key scope/],
    [own, { ...two, keyScope: 'epoch' }, null],
    [good, { ...two, fields: 3 }, /2 fields came back of 3/],
    [good, { ...two, fieldBytes: 20 }, /has not the length of an envelope/],
    [document(envelope('Q', 'h', '1'), envelope('Q', 'h', '1')), two, /the field before/],
    [document(envelope('Q', 'h', '1'), 'plaintext-'.repeat(4)), two, /is not an envelope/],
    [document(token('1'), token('2')), { ...two, holds: 'tokens' }, null],
    [document(token('1'), token('1')), { ...two, holds: 'tokens' }, /is not a new token/],
    [good, { ...two, holds: 'tokens' }, /is not a new token/],
    [native.document(2, 16, 7), { ...two, holds: 'values', seed: 7 }, null],
    [native.document(2, 16, 8), { ...two, holds: 'values', seed: 7 }, /not the one that was sent/],
    [bytes(0x90), two, /document/],
    [good.subarray(0, 20), two, /document|field/],
    [Buffer.concat([good, NIL]), two, /more follows/],
  ];
  for (const [index, [payload, expected, why]] of rows.entries()) {
    const found = native.check(payload, expected);
    if (why === null) assert.equal(found, null, `row ${index}`);
    else assert.match(String(found), why, `row ${index}`);
  }
  assert.throws(() => native.check(good, { ...two, holds: 'things' }), /things/);
  assert.throws(() => native.check(good, { ...two, suite: 'p521' }), /p521/);
});

test('it loads in several worker threads, where Artillery runs engines', async () => {
  const binding = `require(${JSON.stringify(require.resolve('..'))})`;
  const code = `require('node:worker_threads').parentPort.postMessage(${binding}.document(3, 4, 5))`;
  const made = () =>
    new Promise((resolve, reject) => new Worker(code, { eval: true }).once('message', resolve).once('error', reject));
  for (const document of await Promise.all([made(), made()])) {
    assert.deepEqual(Buffer.from(document), native.document(3, 4, 5));
  }
});
