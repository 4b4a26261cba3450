'use strict';
// Runs virtual users of the Artillery engine without Artillery.

const { EventEmitter } = require('node:events');
const SealwireEngine = require('artillery-engine-sealwire');

/** Runs `users` virtual users; resolves with {counters, errors, failures, result}. */
async function drive(address, flow, { users = 2, folder, settings = {} }) {
  const top = new EventEmitter();
  const phases = [{ arrivalCount: users, duration: 1 }];
  const sealwire = { folder, connections: 2, ...settings };
  const config = { target: address, phases, engines: { sealwire } };
  const scenarios = [{ name: 's', engine: 'sealwire', flow }];
  const made = new SealwireEngine({ config, scenarios }, top);
  const ee = new EventEmitter();
  const counters = {};
  const errors = {};
  ee.on(
    'counter',
    (name, by) => (counters[name.replace('sealwire.s.', '')] = (counters[name.replace('sealwire.s.', '')] ?? 0) + by),
  );
  ee.on('error', (code) => (errors[code] = (errors[code] ?? 0) + 1));
  const run = made.createScenario(scenarios[0], ee);
  const failures = await Promise.all(
    Array.from(
      { length: users },
      () =>
        new Promise((resolve) =>
          run({ vars: {} }, (failure) => resolve(failure ? (failure.code ?? failure.message) : null)),
        ),
    ),
  );
  top.emit('done');
  return { counters, errors, failures, result: made.result() };
}

module.exports = { drive };
