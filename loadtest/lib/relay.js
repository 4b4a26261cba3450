'use strict';
// A throw-away relay in front of a small service, for scenarios with `post` and `get`.

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const http = require('node:http');
const os = require('node:os');
const path = require('node:path');
const { freeAddresses, ready } = require('./engine');
const { owe } = require('./leftovers');

/** Starts in all, where somebody else takes a port that was free. */
const START_TRIES = 3;
/** How long a relay may take to end before it is ended: more than `limits.drain_ms`. */
const STOP_MS_MAX = 30_000;
/** Longer than any pause of a busy machine. */
const PATIENCE_MS = 3_600_000;

/** Values of a document that are not encrypted. */
function plaintext(body) {
  const { items } = JSON.parse(body);
  return items.filter(({ value }) => !value.startsWith('sw1:'));
}

/**
 * Starts the service. It keeps documents as it receives them and returns them: by POST and by GET of /orders/ID. It refuses
 * one with a value that is not encrypted, which fails the request. Resolves with {address, kept, close}.
 */
async function service() {
  const kept = new Map();
  const server = http.createServer({ keepAliveTimeout: PATIENCE_MS }, (request, response) => {
    const chunks = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', () => {
      if (request.method === 'POST') kept.set(request.url, Buffer.concat(chunks));
      const body = kept.get(request.url);
      const status = !body ? 404 : plaintext(body).length > 0 ? 409 : 200;
      const sent = status === 200 ? body : Buffer.from('{}');
      response.writeHead(status, { 'content-type': 'application/json', 'content-length': sent.length });
      response.end(sent);
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => {
    server.close();
    server.closeAllConnections();
  };
  return { address: `127.0.0.1:${server.address().port}`, kept, close };
}

const SELECTED = 'select = ["$.items[*].value"]\nrequired = true\n';

const route = (name, method) => `[[route]]
name = "${name}"
listen = "public"
path = "/orders/{id}"
methods = ["${method}"]
upstream = "service"
app = "demo"
deadline_ms = ${PATIENCE_MS}
`;

/** The relay's configuration. Its limits on time are those of a machine without any. */
function config({ address, folder }, listen, admin, upstream) {
  const file = (name) => JSON.stringify(path.join(folder, name));
  return `[engine]
endpoints = ["${address}"]
server_name = "localhost"
ca = ${file('ca.pem')}
certificate = ${file('client.pem')}
key = ${file('client-key.pem')}
deadline_ms = ${PATIENCE_MS}

[limits]
header_timeout_ms = ${PATIENCE_MS}
body_idle_timeout_ms = ${PATIENCE_MS}
idle_timeout_ms = ${PATIENCE_MS}

[log]
level = "warn"

[admin]
address = "${admin}"

[listen.public]
address = "${listen}"
clients = "open"

[upstream.service]
url = "http://${upstream}"
addresses = ["127.0.0.0/8"]
connect_timeout_ms = ${PATIENCE_MS}
first_byte_timeout_ms = ${PATIENCE_MS}
body_idle_timeout_ms = ${PATIENCE_MS}

${route('write', 'POST')}
[[route.request]]
action = "encrypt"
unneeded = "deny"
${SELECTED}
[[route.response]]
action = "decrypt"
${SELECTED}
${route('read', 'GET')}
[[route.response]]
action = "decrypt"
${SELECTED}
`;
}

/** Starts a relay on free ports for `engine` {address, folder}. Resolves with {address, service, pid, stop}. */
async function start(program, engine, tries = START_TRIES) {
  const behind = await service();
  const [listen, admin] = await freeAddresses(2);
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sealwire-loadtest-relay-'));
  const file = path.join(folder, 'relay.toml');
  fs.writeFileSync(file, config(engine, listen, admin, behind.address));
  const child = spawn(program, ['serve', '--config', file], { stdio: ['ignore', 'ignore', 'pipe'] });
  let said = '';
  child.stderr.on('data', (text) => {
    said = (said + text).slice(-4_000);
  });
  const ended = new Promise((resolve) => child.once('close', resolve));
  const remove = () => fs.rmSync(folder, { recursive: true, force: true });
  const paid = owe(() => {
    child.kill('SIGKILL');
    remove();
  });
  const stop = async () => {
    const late = setTimeout(() => child.kill('SIGKILL'), STOP_MS_MAX);
    if (child.exitCode === null && child.signalCode === null) child.kill('SIGTERM');
    await ended;
    clearTimeout(late);
    behind.close();
    paid();
    remove();
  };
  try {
    await ready(admin, child, () => said);
  } catch (error) {
    await stop();
    if (tries > 1 && said.includes('cannot listen on')) return start(program, engine, tries - 1);
    throw error;
  }
  return { address: listen, service: behind, pid: child.pid, stop };
}

module.exports = { start };
