'use strict';
// An Artillery engine that calls Sealwire. Artillery finds it by its package's name, makes one in its worker thread,
// and gives it the virtual users; `loadtest/README.md` lists the steps that a flow may have.

const fs = require('node:fs');
const native = require('sealwire-native');
const flow = require('./lib/flow');
const settings = require('./lib/settings');
const beside = require('./lib/beside');
const { Calls } = require('./lib/calls');
const { Failure } = require('./lib/failure');
const { Pools } = require('./lib/connection');
const { Recorder } = require('./lib/recorder');
const { Walker } = require('./lib/walk');

const TOOL = `artillery-engine-sealwire ${require('./package.json').version}`;

class SealwireEngine {
  constructor(script, ee) {
    this.script = script;
    this.run = settings.fromRun(process.env);
    this.settings = settings.read(script.config, new Map());
    this.pools = new Pools(this.settings);
    this.recorder = new Recorder({ serverPid: this.run.serverPid });
    this.calls = new Calls(this.settings, this.recorder, this.pools);
    /** What is measured: full class name to what records it. */
    this.entries = new Map();
    this.walker = new Walker(this.calls, this.entries, this.settings.shorten);
    /** Threads with load beside the virtual users, and the last that each told. */
    this.threads = [];
    this.told = [];
    this.stopped = false;
    /** Virtual users that are to come, and that have ended. */
    this.users = script.config.phases.reduce((sum, { arrivalCount = 0 }) => sum + arrivalCount, 0);
    this.left = 0;
    // Artillery's last event in this thread: all virtual users have ended.
    ee.on('done', () => this.stop());
  }

  createScenario(spec, ee) {
    const classes = new Map();
    const steps = flow.read(spec.flow, spec.name, classes);
    const emit = (...event) => ee.emit(...event);
    for (const [name, what] of classes) this.entries.set(name, this.recorder.class(name, what, emit));
    const user = { identity: this.settings.identity };
    return (context, callback) => {
      ee.emit('started');
      this.begin(ee)
        .then(() => this.walker.walk(steps, user))
        .finally(() => this.leave())
        .then(() => {
          if (this.walker.broken) throw this.walker.broken;
        })
        .then(
          () => callback(null, context),
          (failure) => {
            // The first says what happened; Artillery counts codes alone.
            if (!this.walker.failed) console.error(failure.code === undefined ? failure : failure.message);
            this.walker.lose(failure);
            callback(failure, context);
          },
        );
    };
  }

  /** Connects, once; then starts what runs beside the virtual users, and waits until it runs. */
  begin(ee) {
    this.began ??= (async () => {
      try {
        const connection = await this.pools.of(this.settings.identity).warm();
        this.conditions = await this.ask(connection);
      } catch (failure) {
        ee.emit('error', failure.code ?? failure.message);
        throw failure;
      }
      this.threads = this.settings.beside.map((_, index) =>
        beside.start(this.script.config, index, (told) => this.hear(index, told, ee)),
      );
      await Promise.all(this.threads.map((thread) => thread.begun));
    })();
    return this.began;
  }

  async ask(connection) {
    const { reply } = await connection.call((msgid) => native.info(msgid), this.settings.timeoutMs);
    const info = native.readInfo(reply.result);
    const { remoteAddress } = connection.wire;
    return { version: info.version, tls: connection.suite(), sameMachine: settings.isHere(remoteAddress) };
  }

  /** A user has ended. The last brings home what came of the load beside, and fails with it. */
  async leave() {
    this.left += 1;
    if (this.left === this.users) await Promise.all(this.threads.map((thread) => thread.finish()));
  }

  /** What came of load beside the users since it last told. */
  hear(index, told, ee) {
    if (this.stopped) return;
    for (const event of told.events) ee.emit(...event);
    if (told.failure) this.walker.broken ??= new Failure(told.failure.code, told.failure.message);
    if (told.classes) this.told[index] = told;
  }

  /** Writes the result, closes the connections. */
  stop() {
    if (this.stopped) return;
    this.stopped = true;
    if (this.run.output) fs.writeFileSync(this.run.output, `${JSON.stringify(this.result())}\n`);
    this.pools.close();
    this.calls.close();
    for (const thread of this.threads) thread.terminate();
  }

  /** All flows as they were written. */
  flows() {
    return [...this.script.scenarios, ...this.settings.beside].map(({ flow: steps }) => steps);
  }

  result() {
    const { config, scenarios } = this.script;
    const machine = settings.machine();
    const { host, port, connections } = this.settings;
    const aside = this.told.filter(Boolean);
    const sameMachine = this.conditions?.sameMachine ?? Boolean(this.run.serverPid);
    const seconds = config.phases.reduce((total, { duration = 0 }) => total + duration, 0);
    const closed = scenarios.some(({ flow: steps }) => steps.some((step) => 'loop' in step));
    // Artillery draws the scenario of each user.
    const flows = scenarios.map(({ flow: steps, name }) => flow.read(steps, name, new Map()));
    const calls = flows.reduce((total, steps) => total + flow.callsIn(steps), 0) / flows.length;
    const offeredPerS = closed ? null : Number(((this.users * calls) / seconds).toFixed(3));
    return this.recorder.result({
      name: scenarios.map(({ name }) => name).join(', '),
      tool: TOOL,
      aside,
      bytes: sum(this.pools.bytes(), this.calls.bytes()),
      fieldsServed: this.calls.fieldsServed,
      offeredPerS,
      conditions: {
        engine: {
          version: this.conditions?.version ?? 'unknown',
          address: `${host}:${port}`,
          cores: sameMachine ? machine.cores : null,
          state: this.run.state,
          suite: used(this.flows(), 'suite', 'p256'),
          scope: used(this.flows(), 'keyScope', 'request'),
        },
        machine,
        tls: this.conditions?.tls ?? 'unknown',
        same_machine: sameMachine,
        connections: connections * (1 + this.settings.beside.length),
        processes: 1,
        mode: closed ? 'closed' : 'open',
        offered_per_s: offeredPerS,
        callers: closed ? this.users : null,
      },
    });
  }
}

const sum = (one, other) => ({ out: one.out + other.out, in: one.in + other.in });

/** The values of an option in the flows, for the conditions of a result. */
function used(flows, key, otherwise) {
  const found = new Set();
  const look = (value) => {
    if (Array.isArray(value)) return value.forEach(look);
    if (value === null || typeof value !== 'object') return undefined;
    for (const action of ['send', 'decrypt', 'slowRead']) {
      if (action in value) found.add(value[action]?.[key] ?? otherwise);
    }
    return Object.values(value).forEach(look);
  };
  look(flows);
  return found.size === 0 ? null : [...found].join('+');
}

module.exports = SealwireEngine;
