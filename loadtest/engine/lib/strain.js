'use strict';
// Whether a thread was the limit of what it measured.

const { monitorEventLoopDelay, performance } = require('node:perf_hooks');

const LAG_RESOLUTION_MS = 5;
/** Share of its time that an event loop may be at work before its own delay is part of what is measured. */
const BUSY_MAX = 0.9;
/** Lag at p99 that is never a limit: the timer that finds it is not more exact. */
const LAG_P99_MAX_US = 2_000;
/** Share that lag at p99 may have of the p99 of any class. */
const LAG_SHARE_MAX = 0.1;

/** Watches the event loop of the thread that makes it. */
class Strain {
  constructor() {
    this.from = performance.eventLoopUtilization();
    this.delay = monitorEventLoopDelay({ resolution: LAG_RESOLUTION_MS });
    this.delay.enable();
  }

  /** So far: share of the time at work, and how late the loop was. */
  read() {
    const us = (ns) => Math.max(0, Math.round(ns / 1000 - LAG_RESOLUTION_MS * 1000));
    return {
      busy: performance.eventLoopUtilization(this.from).utilization,
      lagP99Us: us(this.delay.percentile(99)),
      lagMaxUs: us(this.delay.max),
    };
  }
}

/**
 * How it shows that figures are the generator's own: a sentence, or null. `strain` is of a thread, `classes` the results
 * of what it called, `who` its event loop.
 */
function limit({ busy, lagP99Us }, classes, who) {
  if (busy > BUSY_MAX) return `${who} was at work ${Math.round(busy * 100)} % of the time`;
  const least = Math.min(...classes.filter(({ ok }) => ok > 0).map(({ latency_us: { p99 } }) => p99));
  if (lagP99Us <= LAG_P99_MAX_US || lagP99Us <= least * LAG_SHARE_MAX) return null;
  return `${who} was late by ${lagP99Us} us (p99), where the p99 of a class is ${least} us`;
}

module.exports = { Strain, limit };
