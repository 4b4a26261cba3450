'use strict';
// Makes what a run needs: packages, binding, program. Quick when all of it is there.

const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const HERE = path.resolve(__dirname, '..');
const ROOT = path.resolve(HERE, '..');
const NODE_MIN = 20;

function setUp() {
  const [major] = process.versions.node.split('.').map(Number);
  if (major < NODE_MIN) throw new Error(`Node ${process.versions.node} is too old; ${NODE_MIN} is needed`);
  packages();
  must(path.join(HERE, 'native/build'), [], HERE);
}

/** `npm ci` where the lock file is not the one that was last installed. No install script is run. */
function packages() {
  const lock = path.join(HERE, 'package-lock.json');
  const stamp = path.join(HERE, 'node_modules/.installed-lock.json');
  if (fs.existsSync(stamp) && fs.readFileSync(stamp).equals(fs.readFileSync(lock))) return;
  process.stderr.write('Installing the packages of loadtest/package-lock.json\n');
  must('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error', '--fetch-retries=5'], HERE);
  fs.copyFileSync(lock, stamp);
}

/** The package of each program. */
const PACKAGES = {
  sealwire: 'sealwire-cli',
  'sealwire-relay': 'sealwire-relay',
};

/** A program, by default `sealwire`: as given, or of this repository, built if it is missing. */
function program(given, name = 'sealwire') {
  const profile = process.env.SEALWIRE_PROFILE ?? 'release';
  const folder = profile === 'dev' ? 'debug' : profile;
  const built = path.resolve(ROOT, process.env.CARGO_TARGET_DIR ?? 'target', folder, name);
  const file = given ? path.resolve(given) : built;
  if (fs.existsSync(file)) return file;
  if (given) throw new Error(`${given} is not there`);
  must('cargo', ['build', '--profile', profile, '--package', PACKAGES[name]], ROOT);
  return file;
}

function must(command, args, cwd) {
  const { status, error, stdout, stderr } = spawnSync(command, args, { cwd, encoding: 'utf8', maxBuffer: 64 << 20 });
  if (error) throw new Error(`${command}: ${error.message}`);
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} failed:\n${stdout}${stderr}`);
}

module.exports = { HERE, ROOT, setUp, program };
