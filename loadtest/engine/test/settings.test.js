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
