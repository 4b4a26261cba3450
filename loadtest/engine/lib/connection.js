'use strict';
// One mTLS connection: calls out, answers in, in any order. What happens to it fails the calls that it has.

const net = require('node:net');
const tls = require('node:tls');
const { performance } = require('node:perf_hooks');
const { Replies, cancel } = require('sealwire-native');
const { Failure } = require('./failure');
const settings = require('./settings');

const { connectFailed, connectionLost, contractBroken, timeout } = Failure.OWN;
const CONNECT_MS_MAX = 60_000;
const SWEEP_MS = 250;

class Connection {
  /** Resolves with a connection whose handshake is done. `to`: {host, port, serverName, ca, cert, key}. */
  static open(to) {
    return new Promise((resolve, reject) => {
      // A socket of its own beneath TLS counts what is on the wire.
      const wire = net.connect({ host: to.host, port: to.port, noDelay: true });
      const socket = tls.connect({
        socket: wire,
        servername: to.serverName,
        ca: to.ca,
        cert: to.cert,
        key: to.key,
        minVersion: 'TLSv1.3',
      });
      // TLS tells the same.
      wire.on('error', () => {});
      const fail = (error) => {
        socket.destroy();
        wire.destroy();
        reject(new Failure(connectFailed, error.message));
      };
      socket.setTimeout(CONNECT_MS_MAX, () => fail(new Error(`no handshake in ${CONNECT_MS_MAX} ms`)));
      socket.once('error', fail);
      socket.once('secureConnect', () => {
        socket.setTimeout(0);
        socket.off('error', fail);
        resolve(new Connection(socket, wire));
      });
    });
  }

  constructor(socket, wire) {
    this.socket = socket;
    this.wire = wire;
    this.replies = new Replies();
    this.waiting = new Map();
    this.next = 0;
    this.bytesPerSecond = 0;
    this.lost = null;
    socket.on('data', (chunk) => this.read(chunk));
    // A refused client certificate shows here too: under TLS 1.3 the server says so after the handshake.
    socket.on('error', (error) => this.lose(new Failure(connectionLost, error.message)));
    socket.on('close', () => this.lose(new Failure(connectionLost, 'the engine closed the connection')));
    this.sweep = setInterval(() => {
      // A loop that is late reads first what has come.
      const now = performance.now();
      setImmediate(() => this.expire(now));
    }, SWEEP_MS).unref();
  }

  /** Such as `TLSv1.3 TLS_AES_256_GCM_SHA384 X25519`. */
  suite() {
    const { socket } = this;
    const group = socket.getEphemeralKeyInfo();
    return [socket.getProtocol(), socket.getCipher().standardName, group.name ?? group.type].filter(Boolean).join(' ');
  }

  /** What TCP has carried for it, handshake included. */
  bytes() {
    return { out: this.wire.bytesWritten, in: this.wire.bytesRead };
  }

  /**
   * Sends what `build` makes for a msgid. Resolves with {reply, sent, arrived}, times of `performance.now()`; rejects
   * with a Failure where there is no answer. An answer that is an error resolves.
   */
  call(build, timeoutMs, cancelAfterMs) {
    return new Promise((resolve, reject) => {
      if (this.lost) return reject(this.lost);
      const msgid = this.msgid();
      const frame = build(msgid);
      const sent = performance.now();
      this.waiting.set(msgid, { resolve, reject, sent, until: sent + timeoutMs });
      this.write(frame);
      if (cancelAfterMs === undefined) return undefined;
      const stop = () => this.waiting.has(msgid) && this.write(cancel(msgid));
      if (cancelAfterMs === 0) stop();
      else setTimeout(stop, cancelAfterMs);
      return undefined;
    });
  }

  /** From now on reads nothing, and later at most that many bytes a second. */
  async hold(ms, bytesPerSecond) {
    this.socket.pause();
    await new Promise((resolve) => setTimeout(resolve, ms));
    this.bytesPerSecond = bytesPerSecond;
    this.socket.resume();
  }

  close() {
    this.lose(new Failure(connectionLost, 'closed here'));
  }

  msgid() {
    while (this.waiting.has(this.next)) this.next = (this.next + 1) >>> 0;
    const msgid = this.next;
    this.next = (this.next + 1) >>> 0;
    return msgid;
  }

  write(frame) {
    this.socket.write(frame);
  }

  read(chunk) {
    const arrived = performance.now();
    if (this.bytesPerSecond > 0 && !this.lost) {
      this.socket.pause();
      setTimeout(() => this.socket.resume(), (chunk.length / this.bytesPerSecond) * 1000);
    }
    let replies;
    try {
      replies = this.replies.push(chunk);
    } catch (error) {
      return this.lose(new Failure(contractBroken, error.message));
    }
    for (const reply of replies) {
      if (reply.msgid === undefined) return this.lose(new Failure(reply.code, reply.message));
      const call = this.waiting.get(reply.msgid);
      if (!call) return this.lose(new Failure(contractBroken, `an answer to ${reply.msgid}, which was not asked`));
      this.waiting.delete(reply.msgid);
      call.resolve({ reply, sent: call.sent, arrived });
    }
    return undefined;
  }

  /** Calls that had had their time by `now` fail; the connection goes, since nobody knows what it still holds. */
  expire(now) {
    for (const call of this.waiting.values()) {
      if (call.until < now) return this.lose(new Failure(timeout, 'no answer in time'));
    }
    return undefined;
  }

  lose(failure) {
    if (this.lost) return;
    this.lost = failure;
    clearInterval(this.sweep);
    this.socket.destroy();
    for (const call of this.waiting.values()) call.reject(failure);
    this.waiting.clear();
  }
}

/** Connections of one identity, kept and shared by all virtual users of this worker. */
class Pool {
  /** `open` makes a connection to `to`. */
  constructor(to, size, open) {
    this.to = to;
    this.open = () => open(to);
    this.slots = new Array(size).fill(null);
    this.turn = 0;
  }

  /** The next connection in turn, opened if it is not there. */
  lease() {
    const slot = this.turn;
    this.turn = (this.turn + 1) % this.slots.length;
    const there = this.slots[slot];
    if (there && !there.connection?.lost) return there.opening;
    const entry = { connection: null, opening: null };
    entry.opening = this.open().then(
      (connection) => {
        entry.connection = connection;
        return connection;
      },
      (failure) => {
        if (this.slots[slot] === entry) this.slots[slot] = null;
        throw failure;
      },
    );
    this.slots[slot] = entry;
    return entry.opening;
  }

  /** All of them, open: so that no call waits for a handshake. */
  async warm() {
    const all = await Promise.all(this.slots.map(() => this.lease()));
    return all[0];
  }

  close() {
    for (const slot of this.slots) slot?.connection?.close();
  }
}

/** The connections of each identity. */
class Pools {
  constructor(options) {
    this.settings = options;
    this.pools = new Map();
    this.connections = new Set();
    /** What connections that are closed have carried. */
    this.carried = { out: 0, in: 0 };
  }

  of(name) {
    let pool = this.pools.get(name);
    if (!pool) {
      pool = new Pool(settings.identity(this.settings, name), this.settings.connections, (to) => this.open(to));
      this.pools.set(name, pool);
    }
    return pool;
  }

  /** Opens a connection, whose bytes count from then on. */
  async open(to) {
    const connection = await Connection.open(to);
    this.connections.add(connection);
    connection.wire.once('close', () => {
      this.connections.delete(connection);
      this.carried = added(this.carried, connection.bytes());
    });
    return connection;
  }

  /** What all connections have carried, also those that are closed. */
  bytes() {
    return [...this.connections].reduce((sum, connection) => added(sum, connection.bytes()), this.carried);
  }

  close() {
    for (const pool of this.pools.values()) pool.close();
  }
}

const added = (one, other) => ({ out: one.out + other.out, in: one.in + other.in });

module.exports = { Connection, Pools };
