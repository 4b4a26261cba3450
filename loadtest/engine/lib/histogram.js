'use strict';
// Times in microseconds in buckets of at most 1.6 % of their value, as HDR histograms have them.

const SUB_BITS = 6;
const SUB = 1 << SUB_BITS;
/** Of the buckets in a result: four to each doubling. */
const COARSE = SUB / 4;

class Histogram {
  constructor() {
    this.counts = new Map();
    this.count = 0;
    this.sum = 0;
    this.min = Infinity;
    this.max = 0;
  }

  record(us) {
    const index = indexOf(us);
    this.counts.set(index, (this.counts.get(index) ?? 0) + 1);
    this.count += 1;
    this.sum += us;
    if (us < this.min) this.min = us;
    if (us > this.max) this.max = us;
  }

  /** The value that this share (0 to 1) of all values does not exceed; null without values. */
  percentile(share) {
    return this.percentiles([share])[0];
  }

  /** Several, ascending. */
  percentiles(shares) {
    if (this.count === 0) return shares.map(() => null);
    const sorted = [...this.counts].sort(([a], [b]) => a - b);
    let [at, seen] = [0, sorted[0][1]];
    return shares.map((share) => {
      const rank = Math.max(1, Math.ceil(share * this.count));
      while (seen < rank) {
        at += 1;
        seen += sorted[at][1];
      }
      return Math.round(Math.min(upperOf(sorted[at][0]), this.max));
    });
  }

  summary() {
    if (this.count === 0) return { min: 0, p50: 0, p90: 0, p99: 0, p999: 0, max: 0, mean: 0 };
    const [p50, p90, p99, p999] = this.percentiles([0.5, 0.9, 0.99, 0.999]);
    const round = Math.round;
    return { min: round(this.min), p50, p90, p99, p999, max: round(this.max), mean: round(this.sum / this.count) };
  }

  /** [upper bound in us, count] of what is not empty, at most 200. */
  buckets() {
    const coarse = new Map();
    for (const [index, count] of this.counts) {
      // Whole microseconds: below 4 several buckets have one bound.
      const upper = Math.ceil(upperOf(index - (index % COARSE) + COARSE - 1));
      coarse.set(upper, (coarse.get(upper) ?? 0) + count);
    }
    return [...coarse].sort(([a], [b]) => a - b);
  }
}

/** Bucket of a value: the position of its highest bit, then the next bits. */
function indexOf(us) {
  const value = Math.max(1, us);
  const octave = Math.floor(Math.log2(value));
  const within = Math.min(SUB - 1, Math.floor((value / 2 ** octave - 1) * SUB));
  return octave * SUB + within;
}

function upperOf(index) {
  const octave = Math.floor(index / SUB);
  return 2 ** octave * (1 + ((index % SUB) + 1) / SUB);
}

module.exports = { Histogram };
