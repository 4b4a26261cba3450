'use strict';
// Documents that go through a relay, as HTTP requests. The service behind the relay keeps each document as it received it.

const http = require('node:http');
const net = require('node:net');
const { performance } = require('node:perf_hooks');
const { Failure } = require('./failure');

const { connectionLost, timeout, wrongReply } = Failure.OWN;
/** Bytes of text beside each value. */
const FILLER = 'x'.repeat(80);
/** Header in which the relay names the reason of a failure. */
const REASON = 'sealwire-relay-error';

/** A document with `fields` values in `$.items[*].value`, of `fieldBytes` each. The same seed makes the same bytes. */
function document(seed, { fields, fieldBytes }) {
  const item = (at) => {
    const value = `${seed.toString(16)}-${at.toString(16)}-`.padEnd(fieldBytes, '0').slice(0, fieldBytes);
    return `{"n":${at}.50,"value":"${value}","text":"${FILLER}"}`;
  };
  return `{ "seed": ${seed}, "items": [${Array.from({ length: fields }, (_, at) => item(at)).join(', ')}] }\n`;
}

/** Kept connections to a relay. */
class RelayClient {
  constructor({ relay, connections }) {
    const [, host, port] = /^(.+):(\d+)$/.exec(relay);
    this.address = { host: host.replace(/^\[|\]$/g, ''), port: Number(port) };
    this.sockets = new Set();
    this.carried = { out: 0, in: 0 };
    this.agent = new http.Agent({ keepAlive: true, maxSockets: connections });
    this.agent.createConnection = (options) => this.connect(options);
  }

  connect(options) {
    const socket = net.connect(options).setNoDelay(true);
    this.sockets.add(socket);
    socket.once('close', () => {
      this.sockets.delete(socket);
      this.carried = added(this.carried, socket);
    });
    return socket;
  }

  bytes() {
    return [...this.sockets].reduce(added, this.carried);
  }

  close() {
    this.agent.destroy();
  }

  /**
   * Sends a request. Resolves with {body, sent, arrived} of a response of status 200, and with {refused, retryAfterMs} of one
   * whose reason is expected; rejects with a `Failure` else.
   */
  send(method, id, body, { timeoutMs, expect }) {
    return new Promise((resolve, reject) => {
      const fail = (code, message) => reject(new Failure(code, message));
      const headers = body === undefined ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) };
      const options = { ...this.address, agent: this.agent, method, path: `/orders/${id}`, headers };
      let sent = performance.now();
      let late = null;
      const request = http.request(options, (response) => {
        const chunks = [];
        response.on('data', (chunk) => chunks.push(chunk));
        response.once('error', (error) => fail(connectionLost, error.message));
        response.once('close', () => {
          clearTimeout(late);
          const arrived = performance.now();
          if (!response.complete) return fail(connectionLost, 'the response broke off');
          const text = Buffer.concat(chunks).toString();
          if (response.statusCode === 200) return resolve({ body: text, sent, arrived });
          const reason = response.headers[REASON];
          if (expect.includes(reason)) {
            return resolve({ refused: reason, retryAfterMs: 1_000 * Number(response.headers['retry-after'] ?? 0) });
          }
          return fail(reason ?? wrongReply, `status ${response.statusCode}: ${text.slice(0, 200)}`);
        });
      });
      late = setTimeout(() => {
        fail(timeout, `no response within ${timeoutMs} ms`);
        request.destroy();
      }, timeoutMs);
      request.once('error', (error) => {
        clearTimeout(late);
        fail(connectionLost, error.message);
      });
      request.once('socket', () => {
        sent = performance.now();
      });
      request.end(body);
    });
  }
}

const added = ({ out, in: received }, { bytesWritten, bytesRead }) => ({ out: out + bytesWritten, in: received + bytesRead });

module.exports = { RelayClient, document };
