'use strict';
// The options of scale, and its configuration of HAProxy. `loadtest/run smoke` runs the loads.
const test = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const path = require('node:path');
const scale = require('../lib/scale');

const RUN = path.join(__dirname, '../run');

test('options have defaults', () => {
  const load = { connectionAge: 1_800, clients: 8, warmUp: 1.5 };
  assert.deepEqual(scale.settings({}), { engines: 4, rows: 1_000_000, seconds: 5, rounds: 3, fields: 30, ...load });
  const given = { engines: '2', rows: '0', seconds: '9', rounds: '1', fields: '100' };
  assert.deepEqual(scale.settings(given), { engines: 2, rows: 0, seconds: 9, rounds: 1, fields: 100, ...load });
});

test('the numbers of engines are doubled up to all of them', () => {
  for (const [engines, expected] of [
    [1, [1]],
    [2, [1, 2]],
    [4, [1, 2, 4]],
    [5, [1, 2, 4, 5]],
  ]) {
    assert.deepEqual(scale.counts(engines), expected);
  }
});

test('invalid options are named, and start nothing', () => {
  for (const [args, why] of [
    [['scale', '--engines', '0'], /--engines is a whole number from 1 to 16/],
    [['scale', '--engines', '1.5'], /--engines is a whole number/],
    [['scale', '--rounds', ''], /--rounds is a whole number/],
    [['scale', '--rate', '5'], /--rate is an option of vault-mix alone/],
    [['vault-mix', '--rounds', '5'], /--rounds is an option of scale alone/],
    [['scale', '--server', '127.0.0.1:1'], /scale starts its own engines/],
  ]) {
    const { status, stderr } = spawnSync(process.execPath, [RUN, ...args], { encoding: 'utf8' });
    assert.equal(status, 2, stderr);
    assert.match(stderr, why);
  }
});

test('HAProxy has a frontend for each number of engines, with the settings of the file for operators', () => {
  const engines = [1, 2].map((number) => ({ address: `127.0.0.1:1${number}`, admin: `127.0.0.1:2${number}` }));
  const text = scale.configuration(engines, [1, 2], ['127.0.0.1:31', '127.0.0.1:32']);
  for (const [what, times] of [
    ['balance leastconn', 4],
    ['bind 127.0.0.1:31', 1],
    ['bind 127.0.0.1:32', 1],
    ['use_backend engines_2 if { nbsrv(engines_2) gt 0 }', 1],
    ['default_backend engines_without_database_2\n', 1],
    ['backend engines_1\n', 1],
    ['backend engines_without_database_1\n', 2],
    ['server engine1 127.0.0.1:11 addr 127.0.0.1 port 21', 4],
    ['server engine2 127.0.0.1:12 addr 127.0.0.1 port 22', 2],
    ['internal', 0],
    [':7443', 0],
  ]) {
    assert.equal(text.split(what).length - 1, times, `${what}\n${text}`);
  }
});
