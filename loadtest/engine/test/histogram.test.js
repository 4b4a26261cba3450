'use strict';
const test = require('node:test');
const assert = require('node:assert/strict');
const { Histogram } = require('../lib/histogram');

test('percentiles are within 1.6 % above the exact ones', () => {
  const histogram = new Histogram();
  const values = Array.from({ length: 10_000 }, (_, i) => 3 + i * i * 0.37);
  for (const value of values) histogram.record(value);
  for (const share of [0, 0.01, 0.5, 0.9, 0.99, 0.999, 1]) {
    const exact = values[Math.max(1, Math.ceil(share * values.length)) - 1];
    const found = histogram.percentile(share);
    assert.ok(found >= exact - 0.5 && found <= exact * 1.016 + 0.5, `${share}: ${found} for ${exact}`);
  }
  const summary = histogram.summary();
  assert.equal(summary.min, 3);
  assert.equal(summary.max, Math.round(values.at(-1)));
});

test('buckets hold every value, below their bound, and are few', () => {
  const histogram = new Histogram();
  const values = Array.from({ length: 5_000 }, (_, i) => 1.01 ** (i / 2.8));
  for (const value of values) histogram.record(value);
  const buckets = histogram.buckets();
  assert.ok(buckets.length <= 200, String(buckets.length));
  let below = 0;
  for (const [upper, count] of buckets) {
    below += count;
    const least = values.filter((value) => value < upper * 0.999).length;
    assert.ok(below >= least, `${upper}: ${below} of ${least}`);
  }
  assert.equal(below, values.length);
});

test('nothing recorded, and values below a microsecond', () => {
  const histogram = new Histogram();
  assert.equal(histogram.percentile(0.5), null);
  assert.deepEqual(histogram.buckets(), []);
  assert.equal(histogram.summary().max, 0);
  histogram.record(0);
  assert.equal(histogram.percentile(0.5), 0);
});
