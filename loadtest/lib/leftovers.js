'use strict';
// What this process has to take away when it ends, however it ends: programs that it started, folders that hold keys.

const os = require('node:os');

const SIGNALS = ['SIGHUP', 'SIGINT', 'SIGTERM'];
const owed = new Set();
let watched = false;

/** Has `end` run when the process ends before the given function is called. `end` cannot wait. */
function owe(end) {
  if (!watched) watch();
  owed.add(end);
  return () => owed.delete(end);
}

function watch() {
  watched = true;
  process.once('exit', () => owed.forEach((end) => end()));
  // Without a handler a signal ends the process and nothing is taken away.
  for (const signal of SIGNALS) process.once(signal, () => process.exit(128 + os.constants.signals[signal]));
}

module.exports = { owe };
