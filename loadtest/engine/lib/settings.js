'use strict';
// `config.engines.sealwire` and `config.target` of a scenario file, read whole before anything runs.

const fs = require('node:fs');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');
const { Failure } = require('./failure');
const flow = require('./flow');

const { whole, named } = flow.rules;
const text = (value) => (typeof value === 'string' && value !== '' ? null : 'text');
const address = (value) => (/^(?:\[[^\]]+\]|[^:/]+):\d+$/.test(value) ? null : 'host:port');
const list = (value) => (Array.isArray(value) ? null : 'a list');

const KEYS = {
  /** The folder of `sealwire dev`: `ca.pem`, and `NAME.pem` with `NAME-key.pem` of each identity. */
  folder: [text, 'sealwire-dev'],
  /** The name that the engine's certificate carries. */
  serverName: [text, 'localhost'],
  /** Who virtual users are. */
  identity: [named, 'client'],
  /** Kept connections of each identity. */
  connections: [whole(1, 256), 4],
  /** Of each class one right answer in so many is decrypted or detokenized again, and compared. */
  checkEvery: [whole(1, 1_000_000), 20],
  /** How long a call may take before it counts as lost. */
  timeoutMs: [whole(1, 3_600_000), 120_000],
  /** A relay for `post` and `get`, host:port. `loadtest/run` starts one. */
  relay: [address, undefined],
  /** Loops run so many times less, or less long: for short forms of a scenario. */
  shorten: [whole(1, 1_000_000), 1],
  /** Load beside the virtual users, from the first of them to the last: [{name, identity, users, flow}]. */
  beside: [list, []],
};
const BESIDE = {
  name: [named, undefined],
  identity: [named, 'client'],
  users: [whole(1, 256), 1],
  flow: [list, undefined],
};

/** The settings of a script, and the flows beside it; `classes` as in `flow.read`. */
function read(config, classes) {
  const options = flow.readKeys(config.engines?.sealwire ?? {}, KEYS, 'config.engines.sealwire');
  const target = /^(?:sealwire:\/\/)?(\[[^\]]+\]|[^:/]+):(\d+)$/.exec(config.target ?? '');
  if (!target) throw new Error('config.target must be sealwire://host:port');
  const beside = options.beside.map((given) => {
    const entry = flow.readKeys(given, BESIDE, 'beside');
    if (!entry.name) throw new Error('beside: name is missing');
    return { ...entry, steps: flow.read(entry.flow, entry.name, classes) };
  });
  return { ...options, host: target[1].replace(/^\[|\]$/g, ''), port: Number(target[2]), beside };
}

/** What `Connection.open` needs of an identity. */
function identity(settings, name) {
  const file = (base) => {
    const full = path.join(settings.folder, base);
    try {
      return fs.readFileSync(full);
    } catch (error) {
      const hint = '`sealwire dev` makes such a folder, loadtest/run one of its own';
      throw new Failure(Failure.OWN.noCertificate, `${full}: ${error.code}; ${hint}`);
    }
  };
  const { host, port, serverName } = settings;
  return { host, port, serverName, ca: file('ca.pem'), cert: file(`${name}.pem`), key: file(`${name}-key.pem`) };
}

/** What `loadtest/run` tells through the environment. */
function fromRun(env) {
  return {
    output: env.SEALWIRE_LOADTEST_OUTPUT || undefined,
    serverPid: Number(env.SEALWIRE_LOADTEST_SERVER_PID) || undefined,
    state: env.SEALWIRE_LOADTEST_STATE || null,
  };
}

/** This machine, for the conditions of a result. */
function machine() {
  return { cores: os.availableParallelism(), cpu: os.cpus()[0]?.model ?? '', os: `${os.type()} ${os.release()}` };
}

/** Whether an address is one of this machine's. */
function isHere(address) {
  const plain = address.replace(/^::ffff:/, '');
  const own = Object.values(os.networkInterfaces()).flat();
  return net.isIP(plain) !== 0 && (plain.startsWith('127.') || own.some((one) => one.address === plain));
}

module.exports = { read, identity, fromRun, machine, isHere, KEYS };
