'use strict';
// Load beside the virtual users, in a thread of its own: what it does to Node's event loop is then not in the times of
// the users. Tells the engine at once that it has begun, every now and then what came of it, and a last time when it is
// asked to finish.

const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');
const settings = require('./settings');
const { Calls } = require('./calls');
const { Pools } = require('./connection');
const { Recorder } = require('./recorder');
const { Walker, pause } = require('./walk');

const TELL_MS = 100;
/** Pause after a failure. */
const FAILED_MS = 100;
/** Ends the users' walks, and is no failure. */
const FINISHED = new Error('the virtual users have ended');

/**
 * Starts entry `index` of `beside` in `config`. `tell` gets {events, classes, limit, fieldsServed, bytes, failure}.
 * Gives {begun, finish, terminate}: `begun` resolves when its users have set out; `finish` lets the calls that are out
 * have their answers, and resolves when all has been told.
 */
function start({ target, engines }, index, tell) {
  const worker = new Worker(__filename, { workerData: { beside: { config: { target, engines }, index } } });
  // Also where the thread ends before it has told anything.
  const begun = new Promise((resolve) => {
    worker.once('message', resolve);
    worker.once('exit', resolve);
  });
  const told = new Promise((resolve) => {
    worker.on('message', (message) => {
      tell(message);
      if (message.last) resolve();
    });
    worker.on('error', (error) => tell({ events: [], failure: { code: 'beside_failed', message: error.message } }));
    worker.once('exit', resolve);
  });
  const finish = () => {
    worker.postMessage('finish');
    return told;
  };
  return { begun, finish, terminate: () => worker.terminate() };
}

/** In the thread. */
function main({ config, index }) {
  const classes = new Map();
  const options = settings.read(config, classes);
  const { identity, users, steps, name } = options.beside[index];
  const pools = new Pools(options);
  const recorder = new Recorder();
  const calls = new Calls(options, recorder, pools);
  let events = [];
  const emit = (...event) => events.push(event);
  const own = [...classes].filter(([full]) => full.startsWith(`sealwire.${name}.`));
  const entries = new Map(own.map(([full, what]) => [full, recorder.class(full, what, emit)]));
  const walker = new Walker(calls, entries, options.shorten);
  let failure = null;
  const user = async () => {
    while (!walker.broken) {
      try {
        await walker.walk(steps, { identity });
      } catch (error) {
        if (error === FINISHED) return;
        failure ??= { code: error.code ?? 'beside_failed', message: error.why ?? error.message };
        await pause(FAILED_MS);
      }
    }
  };
  for (let number = 0; number < users; number += 1) user();
  const tell = (last) => {
    const { fieldsServed } = calls;
    const classes = recorder.classResults();
    const limit = recorder.limit(classes, `the event loop of ${name}`);
    parentPort.postMessage({ events, classes, limit, fieldsServed, bytes: sum(pools.bytes(), calls.bytes()), failure, last });
    events = [];
  };
  tell(false);
  const telling = setInterval(tell, TELL_MS, false);
  parentPort.once('message', async () => {
    walker.broken = FINISHED;
    await calls.idle();
    clearInterval(telling);
    tell(true);
  });
}

const sum = (one, other) => ({ out: one.out + other.out, in: one.in + other.in });

// Artillery runs the engine in a thread too, which is not this one.
if (!isMainThread && workerData?.beside) main(workerData.beside);

module.exports = { start };
