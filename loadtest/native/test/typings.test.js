'use strict';
const test = require('node:test');
const assert = require('node:assert/strict');
const { spawnSync } = require('node:child_process');
const path = require('node:path');

test('the typings allow what the binding takes, and refuse what it refuses', () => {
  const modules = path.join(__dirname, '../../node_modules');
  const compiler = path.join(modules, 'typescript/bin/tsc');
  const types = ['--typeRoots', path.join(modules, '@types'), '--types', 'node'];
  const how = ['--noEmit', '--strict', '--target', 'es2022', '--module', 'node16', '--moduleResolution', 'node16'];
  const file = path.join(__dirname, 'typings.ts');
  const { status, stdout } = spawnSync(process.execPath, [compiler, ...how, ...types, file], { encoding: 'utf8' });
  assert.equal(status, 0, stdout);
});
