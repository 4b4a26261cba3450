'use strict';
const test = require('node:test');
const assert = require('node:assert/strict');
const { Strain, limit } = require('../lib/strain');

test('when a thread is the limit', () => {
  const of = (ok, p99) => ({ ok, latency_us: { p99 } });
  const rows = [
    ['idle', 0.2, 300, [of(10, 900)], null],
    ['at work all the time', 0.95, 300, [of(10, 900)], /at work 95 %/],
    ['late, against the quickest class', 0.2, 5_000, [of(10, 400_000), of(10, 20_000)], /late by 5000 us.*20000 us/],
    ['late, against slow ones', 0.2, 5_000, [of(10, 400_000), of(10, 60_000)], null],
    ['late, and the quick class had no answer', 0.2, 5_000, [of(10, 400_000), of(0, 0)], null],
    ['no more late than the timer', 0.2, 2_000, [of(10, 900)], null],
    ['no answer at all', 0.2, 5_000, [], null],
  ];
  for (const [name, busy, lagP99Us, classes, why] of rows) {
    const said = limit({ busy, lagP99Us }, classes, 'a loop');
    if (why) assert.match(said, why, name);
    else assert.equal(said, null, name);
  }
});

test('a loop that is blocked shows', async () => {
  const strain = new Strain();
  await new Promise((resolve) => setTimeout(resolve, 20));
  const end = performance.now() + 300;
  while (performance.now() < end);
  await new Promise((resolve) => setTimeout(resolve, 20));
  const { busy, lagMaxUs } = strain.read();
  // A machine that is busy with others makes the loop later still, and its share of the time less.
  assert.ok(busy > 0 && lagMaxUs > 100_000, `${busy}, ${lagMaxUs}`);
});
