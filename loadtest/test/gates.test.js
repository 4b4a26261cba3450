'use strict';
// Every way in which a gate could stand open without anybody noticing.
const test = require('node:test');
const assert = require('node:assert/strict');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const yaml = require('js-yaml');
const { check } = require('../lib/gates');

const OK = 'sealwire.founding-p256.fields-30.ok';
const SCENARIOS = path.join(__dirname, '../scenarios');

test('the scenarios pass, and each has a short form', () => {
  for (const name of fs.readdirSync(SCENARIOS)) {
    const { script } = check(path.join(SCENARIOS, name));
    assert.ok(script.config.environments.smoke, name);
    assert.equal(script.scenarios[0].name, path.basename(name, '.yml'));
  }
});

test('a file that does not say what it seems to say is refused', (t) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sealwire-gates-'));
  t.after(() => fs.rmSync(folder, { recursive: true }));
  const good = fs.readFileSync(path.join(SCENARIOS, 'founding-p256.yml'), 'utf8');
  const rows = [
    ['a gate section', (s) => rename(s.config, 'ensure', 'ensures'), /no key ensures/],
    ['a gate', (s) => rename(s.config.ensure, 'maxErrorRate', 'maxErorRate'), /no key maxErorRate/],
    ['no error rate', (s) => delete s.config.ensure.maxErrorRate, /maxErrorRate must be 0/],
    ['a lenient error rate', (s) => (s.config.ensure.maxErrorRate = 5), /maxErrorRate must be 0/],
    ['a list of gates', (s) => rename(s.config.ensure, 'thresholds', 'treshholds'), /no key treshholds/],
    [
      'a metric',
      (s) => (s.config.ensure.thresholds = [{ 'sealwire.founding-p256.fields-30.us.p98': 1 }]),
      /nothing is called/,
    ],
    [
      'a class',
      (s) => (s.config.ensure.conditions[0].expression = 'sealwire.founding-p256.fields-31.ok > 1'),
      /nothing is called/,
    ],
    [
      'p999, which Artillery reads as p99',
      (s) => (s.config.ensure.thresholds = [{ 'sealwire.founding-p256.fields-30.us.p999': 1 }]),
      /nothing is called/,
    ],
    ['a gate that may fail', (s) => (s.config.ensure.conditions[0].strict = false), /no key strict/],
    ['a gate on nothing', (s) => (s.config.ensure.conditions[0].expression = '1 > 0'), /names no metric/],
    ['a gate that holds at once', (s) => gate(s, `${OK} >= 0`), /holds where nothing has happened/],
    ['a gate beside one that holds', (s) => gate(s, `${OK} > 5 or 1 > 0`), /holds where nothing has happened/],
    ['a negation', (s) => gate(s, `not (${OK} == 3.5)`), /holds where nothing has happened/],
    ['a gate that is no expression', (s) => gate(s, `${OK} >`), /Parse error/],
    ['a limit without end', (s) => (s.config.ensure.thresholds = [{ [OK]: Infinity }]), /one metric: number/],
    ['a limit that is no number', (s) => (s.config.ensure.thresholds = [{ [OK]: NaN }]), /one metric: number/],
    ['no gate', (s) => (s.config.ensure.conditions = []), /must say what/],
    ['no plugin', (s) => delete s.config.plugins, /must have ensure/],
    ['a step', (s) => (s.scenarios[0].flow[0] = { sent: {} }), /no step is called sent/],
    ['too few for a meeting', (s) => s.scenarios[0].flow.push({ meet: { users: 7 } }), /7 users meet, and \d+ come/],
    [
      'too few in an environment',
      (s) => {
        s.config.phases = [{ arrivalCount: 8, duration: 1 }];
        s.scenarios[0].flow.push({ loop: [{ meet: { users: 8 } }], count: 2 });
        s.config.environments.smoke.phases = [{ arrivalCount: 4, duration: 1 }];
      },
      /environment smoke: 8 users meet, and 4 come/,
    ],
    [
      'too few beside',
      (s) => {
        const send = { name: 'call' };
        const beside = { name: 'beside', users: 3, flow: [{ send }, { meet: { users: 2 } }] };
        s.config.engines.sealwire.beside = [beside];
      },
      /2 users meet, and 3 come/,
    ],
    ['another engine', (s) => (s.scenarios[0].engine = 'http'), /engine must be sealwire/],
    ['another phase', (s) => (s.config.phases = [{ arrivalRate: 2, duration: 60 }]), /no key arrivalRate/],
    ['a setting', (s) => (s.config.engines.sealwire.conections = 2), /no key conections/],
    [
      'a gate of an environment',
      (s) => rename(s.config.environments.smoke.ensure, 'conditions', 'condition'),
      /no key condition/,
    ],
    ['an environment', (s) => rename(s.config.environments.smoke, 'ensure', 'insure'), /no key insure/],
  ];
  for (const [name, change, why] of rows) {
    const script = yaml.load(good);
    change(script);
    const file = path.join(folder, 'changed.yml');
    fs.writeFileSync(file, yaml.dump(script));
    assert.throws(() => check(file), why, name);
  }
});

function gate(script, expression) {
  script.config.ensure.conditions = [{ expression }];
}

function rename(object, from, to) {
  object[to] = object[from];
  delete object[from];
}
