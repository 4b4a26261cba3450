'use strict';
// A server that lies. It stands before a real engine, passes every call on, and spoils the answers in one way, so that
// what a test proves is only ever that one wrong.

const fs = require('node:fs');
const path = require('node:path');
const tls = require('node:tls');
const { Replies } = require('sealwire-native');

/** Bytes of the last field of a document of 16-byte fields, encrypted: key, string header, envelope. */
const LAST_FIELD = 13 + 2 + 106;

/** What becomes of the payload of an encrypted document; `null`: no answer. */
const SPOIL = {
  right: (payload) => payload,
  flipped: (payload) => altered(payload, 6),
  short: (payload) => {
    const less = Buffer.from(payload.subarray(0, -LAST_FIELD));
    less.writeUInt16BE(less.readUInt16BE(1) - 1, 1);
    return less;
  },
  echo: (payload) => Buffer.from(payload.toString('latin1').replaceAll('sw1:', 'data'), 'latin1'),
  // In the ciphertext of the first field: it looks right and does not open.
  forged: (payload) => altered(payload, 3 + 13 + 2 + 80),
  silent: () => null,
};

/** Starts one that spoils in the way `kind`. Resolves with {address, close}. */
async function responder(engine, kind) {
  const file = (name) => fs.readFileSync(path.join(engine.folder, name));
  const ca = file('ca.pem');
  const [host, port] = engine.address.split(':');
  const upstreams = { host, port, servername: 'localhost', ca, cert: file('client.pem'), key: file('client-key.pem') };
  const identity = { cert: file('server.pem'), key: file('server-key.pem') };
  const server = tls.createServer({ ...identity, ca, requestCert: true, minVersion: 'TLSv1.3' }, (caller) => {
    const upstream = tls.connect(upstreams);
    const replies = new Replies();
    caller.on('data', (chunk) => upstream.write(chunk));
    upstream.on('data', (chunk) => {
      for (const reply of replies.push(chunk)) {
        const bytes = answer(reply, kind);
        if (bytes && !caller.destroyed) caller.write(bytes);
      }
    });
    for (const [one, other] of [
      [caller, upstream],
      [upstream, caller],
    ]) {
      one.on('error', () => other.destroy());
      one.on('close', () => other.destroy());
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { address: `127.0.0.1:${server.address().port}`, close: () => server.close() };
}

function answer(reply, kind) {
  if (!reply.ok) return message(reply.msgid, map(text('code'), text(reply.code), text('message'), text('no')), NIL);
  // What the engine says of itself, and documents that were opened, pass.
  const encrypted = reply.payload?.includes('sw1:');
  if (!reply.payload) return message(reply.msgid, NIL, reply.result);
  if (encrypted && kind === 'noise') return Buffer.from([0xc1]);
  if (encrypted && kind === 'msgid') return message(reply.msgid + 1_000, NIL, document(reply.payload));
  const payload = encrypted ? SPOIL[kind](reply.payload) : reply.payload;
  return payload && message(reply.msgid, NIL, document(payload));
}

const NIL = Buffer.from([0xc0]);
const text = (value) => Buffer.concat([Buffer.from([0xa0 | value.length]), Buffer.from(value)]);
const map = (...parts) => Buffer.concat([Buffer.from([0x80 | (parts.length / 2)]), ...parts]);
const document = (payload) => map(text('payload'), payload, text('generation'), Buffer.from([1]));

function message(msgid, error, result) {
  const head = Buffer.from([0x94, 1, 0xce, 0, 0, 0, 0]);
  head.writeUInt32BE(msgid, 3);
  return Buffer.concat([head, error, result]);
}

/** The same bytes but one, which is another letter. */
function altered(bytes, at) {
  const copy = Buffer.from(bytes);
  copy[at] = copy[at] === 0x41 ? 0x42 : 0x41;
  return copy;
}

module.exports = { responder };
