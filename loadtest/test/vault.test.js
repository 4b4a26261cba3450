'use strict';
// The options of vault-mix, and runs that must be rejected before anything starts. `loadtest/run smoke` runs the load.
const test = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const os = require('node:os');
const path = require('node:path');
const vault = require('../lib/vault');

const RUN = path.join(__dirname, '../run');

test('options have defaults, and the rate is that of the machine', () => {
  const chosen = vault.settings({});
  assert.deepEqual([chosen.state, chosen.engines, chosen.rows, chosen.seconds], ['postgres', 3, 1_000_000, 60]);
  assert.equal(chosen.rate, vault.RATE_PER_CORE * os.availableParallelism());
  assert.equal(chosen.killAfter, 20);
  const given = { state: 'postgres', engines: '2', rows: '10000000', rate: '0.5', seconds: '9', 'kill-after': '0' };
  assert.deepEqual(vault.settings(given), {
    ...vault.settings({}),
    engines: 2,
    rows: 10_000_000,
    rate: 0.5,
    seconds: 9,
    killAfter: 0,
  });
  assert.equal(vault.settings({ seconds: '10' }).killAfter, 3);
});

test('the figures state a delay before the state', () => {
  assert.equal(vault.describe(vault.settings({})), 'postgres');
  const said = vault.describe(vault.settings({ 'state-delay': '0.5' }));
  assert.equal(said, 'postgres, each round trip delayed by 0.5 ms');
});

test('invalid options are named', () => {
  for (const [given, why] of [
    [{ state: 'embedded' }, /--state must be postgres/],
    [{ engines: '0' }, /--engines is a whole number from 1 to 16/],
    [{ engines: '1.5' }, /--engines is a whole number/],
    [{ rows: '-1' }, /--rows is a whole number/],
    [{ rows: 'many' }, /--rows is a whole number/],
    [{ rate: '0' }, /--rate is a number from 0.1/],
    [{ rate: '' }, /--rate is a number/],
    [{ seconds: '0' }, /--seconds is a whole number/],
    [{ 'state-delay': '-1' }, /--state-delay is a number from 0 to 60000/],
    [{ seconds: '10', 'kill-after': '10' }, /--kill-after is a number from 0 to 9/],
  ]) {
    assert.throws(() => vault.settings(given), why, JSON.stringify(given));
  }
});

test('a run with invalid options starts nothing', () => {
  for (const [args, why] of [
    [['vault-mix', '--engines', 'two'], /--engines is a whole number/],
    [['vault-mix', '--state', 'embedded'], /--state must be postgres/],
    [['vault-mix', '--server', '127.0.0.1:1'], /starts its own engines/],
    [['founding-p256', '--rows', '5'], /--rows is an option of vault-mix and scale alone/],
    [['smoke', '--rate', '5'], /--rate is an option of vault-mix alone/],
  ]) {
    const { status, stderr } = spawnSync(process.execPath, [RUN, ...args], { encoding: 'utf8' });
    assert.equal(status, 2, stderr);
    assert.match(stderr, why);
  }
});

test('the help names every option with its default', () => {
  const { status, stdout } = spawnSync(process.execPath, [RUN, '--help'], { encoding: 'utf8' });
  assert.equal(status, 0);
  for (const option of ['--engines N', '--rows N', '--rate N', '--seconds N', '--kill-after S', '--state-delay MS', '--state KIND']) {
    assert.ok(stdout.includes(option), option);
  }
  assert.match(stdout, /Scenarios: .*vault-mix/);
});
