'use strict';
const test = require('node:test');
const assert = require('node:assert/strict');
const settings = require('../lib/settings');

test('which addresses are of this machine', () => {
  const rows = [
    ['127.0.0.1', true],
    ['127.0.0.2', true],
    ['::ffff:127.0.0.1', true],
    ['192.0.2.1', false],
    ['2001:db8::1', false],
    ['127.example', false],
  ];
  for (const [address, here] of rows) assert.equal(settings.isHere(address), here, address);
});

test('the address of a relay is host:port', () => {
  const read = (relay) => settings.read({ target: 'sealwire://127.0.0.1:7443', engines: { sealwire: { relay } } }, new Map()).relay;
  for (const relay of ['127.0.0.1:8080', 'relay.internal:80', '[::1]:8080', undefined]) assert.equal(read(relay), relay);
  for (const relay of ['127.0.0.1', 'http://a:80', ':80', 8080]) assert.throws(() => read(relay), /relay must be host:port/);
});
