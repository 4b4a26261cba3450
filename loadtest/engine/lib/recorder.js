'use strict';
// What happened, by class of calls: for Artillery's metrics as it happens, and as `sealwire.load/1` at the end.

const fs = require('node:fs');
const { performance } = require('node:perf_hooks');
const { Histogram } = require('./histogram');
const { Strain, limit } = require('./strain');

const SLICE_MS = 500;
/** Counters of each class; each is there from the start, at 0, so that gates can name it. */
const COUNTERS = ['sent', 'ok', 'cancelled', 'refused', 'errors', 'checked', 'fields'];

class Recorder {
  constructor({ serverPid } = {}) {
    this.classes = new Map();
    this.serverPid = serverPid;
    this.started = null;
  }

  /** The class of that name, made when first asked for. `what`: {method, fields, fieldBytes, weight}. */
  class(name, what, emit) {
    let entry = this.classes.get(name);
    if (!entry) {
      entry = new Class(name, what, emit, this);
      this.classes.set(name, entry);
    }
    return entry;
  }

  /** The first call is about to be sent. */
  start() {
    if (this.started !== null) return;
    this.started = performance.now();
    this.ended = this.started;
    this.date = new Date();
    this.cpu = process.cpuUsage();
    this.strain = new Strain();
    this.serverCpu = serverCpuUs(this.serverPid);
  }

  slice() {
    return Math.floor((performance.now() - this.started) / SLICE_MS);
  }

  classResults() {
    return [...this.classes.values()].map((entry) => entry.result());
  }

  /** Why the figures, `classes`, are this thread's own; null if they are not. `who` is its event loop. */
  limit(classes, who) {
    return this.strain ? limit(this.strain.read(), classes, who) : null;
  }

  /**
   * All of it. `offeredPerS` is how many calls the clock was to make for the users, null if answers decide. `fieldsServed`
   * counts also the fields of calls that are not measured; `bytes` is {out, in}; `aside` is the same of other threads,
   * each with its classes and its limit.
   */
  result({ name, tool, conditions, offeredPerS, bytes, fieldsServed, aside }) {
    this.start();
    const seconds = Math.max((this.ended - this.started) / 1000, 0.001);
    const own = this.classResults();
    const classes = [...own, ...aside.flatMap((one) => one.classes)];
    const sum = (list, of) => list.reduce((total, entry) => total + of(entry), 0);
    const bySent = (entry) => entry.sent;
    const sent = sum(classes, bySent);
    // What is beside the users is a closed loop: it offers what it sends.
    const sentBeside = sent - sum(own, bySent);
    const served = fieldsServed + sum(aside, (one) => one.fieldsServed);
    const cpu = process.cpuUsage(this.cpu);
    const cpuUs = cpu.user + cpu.system;
    const strain = this.strain.read();
    const limits = [this.limit(own, "Node's event loop"), ...aside.map((one) => one.limit)].filter(Boolean);
    const serverUs = serverCpuUs(this.serverPid) - this.serverCpu;
    const rounded = (number) => Number(number.toFixed(1));
    const perSecond = (count) => rounded(count / seconds);
    return {
      schema: 'sealwire.load/1',
      tool,
      name,
      started: this.date.toISOString(),
      conditions: { ...conditions, duration_s: Number(seconds.toFixed(3)), warm_up_s: 0 },
      classes,
      totals: {
        offered_per_s: rounded((offeredPerS ?? sum(own, bySent) / seconds) + sentBeside / seconds),
        sent_per_s: perSecond(sent),
        ok_per_s: perSecond(sum(classes, ({ ok }) => ok)),
        fields_per_s: perSecond(sum(classes, ({ ok, fields }) => ok * fields)),
        errors: sum(
          classes.flatMap(({ errors }) => Object.values(errors)),
          (count) => count,
        ),
        bytes_out_per_s: perSecond(bytes.out + sum(aside, (one) => one.bytes.out)),
        bytes_in_per_s: perSecond(bytes.in + sum(aside, (one) => one.bytes.in)),
      },
      server_cpu:
        Number.isFinite(serverUs) && served > 0
          ? {
              us_per_field: Number((serverUs / served).toFixed(3)),
              cores: Number((serverUs / 1e6 / seconds).toFixed(2)),
            }
          : null,
      generator: {
        cpu_cores: Number((cpuUs / 1e6 / seconds).toFixed(2)),
        us_per_call: Number((cpuUs / Math.max(1, sent)).toFixed(1)),
        lag_p99_us: strain.lagP99Us,
        lag_max_us: strain.lagMaxUs,
        was_bottleneck: limits.length > 0,
        why: limits.length > 0 ? limits.join('; ') : null,
      },
    };
  }
}

class Class {
  constructor(name, what, emit, recorder) {
    this.name = name;
    this.what = what;
    this.emit = emit;
    this.recorder = recorder;
    this.counts = Object.fromEntries(COUNTERS.map((counter) => [counter, 0]));
    this.codes = {};
    this.latency = new Histogram();
    this.service = new Histogram();
    this.slices = [];
    for (const counter of COUNTERS) emit('counter', `${name}.${counter}`, 0);
  }

  count(counter, by = 1) {
    this.counts[counter] += by;
    this.emit('counter', `${this.name}.${counter}`, by);
  }

  sent() {
    this.recorder.start();
    this.count('sent');
  }

  /** A right answer; times in milliseconds of `performance.now()`. */
  ok(fields, asked, sent, arrived) {
    const us = (arrived - asked) * 1000;
    this.latency.record(us);
    this.service.record((arrived - sent) * 1000);
    this.emit('histogram', `${this.name}.us`, us);
    this.count('ok');
    this.count('fields', fields);
    const slice = this.slice();
    slice.ok += 1;
    slice.fields += fields;
    slice.latency.record(us);
  }

  /** An answer that the scenario allows: cancelled, or refused with one of the codes it expects. */
  allowed(counter, code) {
    this.codes[code] = (this.codes[code] ?? 0) + 1;
    this.count(counter);
    this.slice();
  }

  error(code) {
    this.codes[code] = (this.codes[code] ?? 0) + 1;
    this.count('errors');
    this.emit('error', code);
    this.slice().errors += 1;
  }

  checked() {
    this.count('checked');
  }

  slice() {
    this.recorder.start();
    this.recorder.ended = performance.now();
    const at = this.recorder.slice();
    this.slices[at] ??= { ok: 0, errors: 0, fields: 0, latency: new Histogram() };
    return this.slices[at];
  }

  result() {
    const { method, fields, fieldBytes, weight } = this.what;
    return {
      name: this.name.split('.').at(-1),
      method,
      fields,
      field_bytes: fieldBytes,
      weight,
      sent: this.counts.sent,
      ok: this.counts.ok,
      errors: this.codes,
      late: 0,
      checked: this.counts.checked,
      latency_us: this.latency.summary(),
      service_us: this.service.summary(),
      histogram_us: this.latency.buckets(),
      over_time: [...this.slices.keys()].flatMap((at) => {
        const slice = this.slices[at];
        if (!slice) return [];
        const [p50, p99] = slice.latency.percentiles([0.5, 0.99]);
        return [
          {
            t_s: ((at + 1) * SLICE_MS) / 1000,
            ok: slice.ok,
            errors: slice.errors,
            p50_us: p50 ?? 0,
            p99_us: p99 ?? 0,
            fields_per_s: (slice.fields * 1000) / SLICE_MS,
          },
        ];
      }),
    };
  }
}

/** CPU time that a process of this machine has used, in microseconds; NaN if it cannot be read. */
function serverCpuUs(pid) {
  if (!pid) return NaN;
  try {
    const stat = fs.readFileSync(`/proc/${pid}/stat`, 'utf8');
    const [user, system] = stat
      .slice(stat.lastIndexOf(')') + 2)
      .split(' ')
      .slice(11, 13);
    // In ticks of 1/100 s, which Linux has fixed for programs.
    return (Number(user) + Number(system)) * 10_000;
  } catch {
    return NaN;
  }
}

module.exports = { Recorder, COUNTERS };
