'use strict';
// What each call sends, and what has to come back.

const { randomBytes, randomInt } = require('node:crypto');
const { performance } = require('node:perf_hooks');
const native = require('sealwire-native');
const { Failure } = require('./failure');
const { RelayClient, document } = require('./http');

const { connectFailed, wrongReply } = Failure.OWN;
/** Longest wait after `overloaded`. */
const RETRY_MS_MAX = 1_000;
/** Token documents that are remembered for each collection and size. */
const REMEMBERED_MAX = 100_000;
/** Documents of `post` whose ids are remembered for each size. */
const POSTED_MAX = 1_000;
/** Documents tokenized first where a look-up comes before any. */
const FIRST_TOKENS = 64;

class Calls {
  constructor(settings, recorder, pools) {
    this.settings = settings;
    this.recorder = recorder;
    this.pools = pools;
    this.prepared = new Map();
    this.remembered = new Map();
    /** Connections to a relay, for `post` and `get`. */
    this.relay = settings.relay ? new RelayClient(settings) : null;
    this.posted = 0;
    /** Fields that the engine worked on, measured or not. */
    this.fieldsServed = 0;
    /** Steps that wait for answers. */
    this.running = new Set();
  }

  /** Bytes of the connections to a relay. */
  bytes() {
    return this.relay?.bytes() ?? { out: 0, in: 0 };
  }

  close() {
    this.relay?.close();
  }

  /** Runs one step of kind `call` for `user` {identity}. Resolves when all its calls have their answers. */
  async run(step, entry, user) {
    const done = this.answers(step, entry, user);
    this.running.add(done);
    return done.finally(() => this.running.delete(done));
  }

  /** Resolves when no call waits for an answer, once nobody runs new ones. */
  async idle() {
    await Promise.allSettled(this.running);
    // Failures have been noted by then too.
    await new Promise((resolve) => setImmediate(resolve));
  }

  async answers(step, entry, user) {
    const { calls } = step.options;
    if (step.needsRelay && !this.relay) this.fail(entry, new Failure(connectFailed, 'config.engines.sealwire.relay is missing'));
    const pool = this.pools.of(user.identity);
    if (step.action === 'slowRead') return this.slowRead(step, entry, pool);
    const one = () => this[step.action](step.options, entry, pool);
    if (calls === 1) return one();
    // All of them end before the first failure is told: nothing is left behind.
    const ended = await Promise.allSettled(Array.from({ length: calls }, one));
    const failed = ended.find(({ status }) => status === 'rejected');
    if (failed) throw failed.reason;
    return undefined;
  }

  async send(options, entry, pool) {
    const seed = randomInt(2 ** 31);
    const asked = performance.now();
    const connection = await this.lease(pool, entry);
    const answer = await this.measured(connection, options, entry, encryptFrame(options, seed));
    if (!answer) return;
    const { reply, sent, arrived } = answer;
    this.judge(reply, { ...options, holds: 'envelopes', seed }, entry);
    entry.ok(options.fields, asked, sent, arrived);
    const opened = { ...options, holds: 'values', seed };
    if (this.isSample(entry)) await this.compare(connection, decryptFrame(options, reply.payload), opened, entry);
  }

  async decrypt(options, entry, pool) {
    const { seed, payload } = pick(await this.documents(options, entry, pool));
    const asked = performance.now();
    const connection = await this.lease(pool, entry);
    const answer = await this.measured(connection, options, entry, decryptFrame(options, payload));
    if (!answer) return;
    // Each answer is compared: it costs no call.
    this.judge(answer.reply, { ...options, holds: 'values', seed }, entry);
    entry.ok(options.fields, asked, answer.sent, answer.arrived);
    entry.checked();
  }

  async tokenize(options, entry, pool) {
    const known = options.again ? pick(await this.tokens(options, entry, pool)) : null;
    const seed = known?.seed ?? randomInt(2 ** 31);
    const asked = performance.now();
    const connection = await this.lease(pool, entry);
    const answer = await this.measured(connection, options, entry, tokenizeFrame(options, seed));
    if (!answer) return;
    const { reply, sent, arrived } = answer;
    this.judge(reply, { ...options, holds: 'tokens', seed }, entry);
    if (known && !known.payload.equals(reply.payload)) {
      this.fail(entry, new Failure(wrongReply, 'a value that had its token got another'));
    }
    entry.ok(options.fields, asked, sent, arrived);
    if (!known) this.remember(options, { seed, payload: reply.payload });
    const kept = { ...options, holds: 'values', seed };
    if (this.isSample(entry)) await this.compare(connection, detokenizeFrame(options, reply.payload), kept, entry);
  }

  async detokenize(options, entry, pool) {
    const { seed, payload } = pick(await this.tokens(options, entry, pool));
    const asked = performance.now();
    const connection = await this.lease(pool, entry);
    const answer = await this.measured(connection, options, entry, detokenizeFrame(options, payload));
    if (!answer) return;
    this.judge(answer.reply, { ...options, holds: 'values', seed }, entry);
    entry.ok(options.fields, asked, answer.sent, answer.arrived);
    entry.checked();
  }

  /** Posts a new document through the relay; the service behind it returns what it received. */
  async post(options, entry) {
    const seed = randomInt(2 ** 31);
    const body = document(seed, options);
    const id = this.nextId();
    const asked = performance.now();
    entry.sent();
    const answer = await this.exchange('POST', id, body, options, entry);
    if (!answer) return;
    this.same(answer.body, body, entry);
    this.fieldsServed += 2 * options.fields;
    entry.ok(options.fields, asked, answer.sent, answer.arrived);
    entry.checked();
    const known = this.remembered.get(postedKey(options)) ?? [];
    if (known.length < POSTED_MAX) known.push({ id, seed });
    this.remembered.set(postedKey(options), known);
  }

  /** Gets one of the documents of this run, which the service keeps encrypted. */
  async get(options, entry) {
    const { id, seed } = pick(await this.stored(options, entry));
    const asked = performance.now();
    entry.sent();
    const answer = await this.exchange('GET', id, undefined, options, entry);
    if (!answer) return;
    this.same(answer.body, document(seed, options), entry);
    this.fieldsServed += options.fields;
    entry.ok(options.fields, asked, answer.sent, answer.arrived);
    entry.checked();
  }

  /** Documents of `post` of this size: those of this run, or some that are posted now. */
  async stored(options, entry) {
    const key = postedKey(options);
    if (!this.remembered.has(key)) {
      await this.once(key, async () => {
        const made = [];
        while (made.length < options.documents) {
          const [seed, id] = [randomInt(2 ** 31), this.nextId()];
          const body = document(seed, options);
          const answer = await this.exchange('POST', id, body, options, entry);
          if (!answer) continue;
          this.same(answer.body, body, entry);
          this.fieldsServed += 2 * options.fields;
          made.push({ id, seed });
        }
        this.remembered.set(key, [...made, ...(this.remembered.get(key) ?? [])]);
      });
    }
    return this.remembered.get(key);
  }

  nextId() {
    this.posted += 1;
    return `${this.posted}-${randomInt(2 ** 31)}`;
  }

  /** An HTTP exchange. Resolves with the response, or null where the scenario allows that there is none. */
  async exchange(method, id, body, options, entry) {
    const timeoutMs = options.timeoutMs ?? this.settings.timeoutMs;
    const answer = await this.relay
      .send(method, id, body, { timeoutMs, expect: options.expect })
      .catch((failure) => this.fail(entry, failure));
    if (!answer.refused) return answer;
    entry.allowed('refused', answer.refused);
    await backOff(answer);
    return null;
  }

  /** Fails the call unless the relay's response is the document that was sent, byte for byte. */
  same(body, expected, entry) {
    if (body !== expected) this.fail(entry, new Failure(wrongReply, `the document came back as ${body.slice(0, 200)}`));
  }

  async slowRead(step, entry, pool) {
    const { options } = step;
    const connection = await pool.open().catch((failure) => this.fail(entry, failure));
    try {
      const held = connection.hold(options.holdMs, options.bytesPerSecond);
      const one = async () => {
        const seed = randomInt(2 ** 31);
        const asked = performance.now();
        const answer = await this.measured(connection, options, entry, encryptFrame(options, seed));
        if (!answer) return;
        this.judge(answer.reply, { ...options, holds: 'envelopes', seed }, entry);
        entry.ok(options.fields, asked, answer.sent, answer.arrived);
      };
      const ended = await Promise.allSettled([held, ...Array.from({ length: options.calls }, one)]);
      const failed = ended.find(({ status }) => status === 'rejected');
      if (failed) throw failed.reason;
    } finally {
      connection.close();
    }
  }

  async lease(pool, entry) {
    try {
      return await pool.lease();
    } catch (failure) {
      entry.sent();
      return this.fail(entry, failure);
    }
  }

  /** A call that counts. Resolves with the answer, or null where the scenario allows that there is none. */
  async measured(connection, options, entry, build) {
    entry.sent();
    const timeoutMs = options.timeoutMs ?? this.settings.timeoutMs;
    const answer = await connection
      .call(build, timeoutMs, options.cancelAfterMs)
      .catch((failure) => this.fail(entry, failure));
    const { reply } = answer;
    if (reply.ok) {
      this.fieldsServed += options.fields;
      return answer;
    }
    if (reply.code === 'cancelled' && options.cancelAfterMs !== undefined) {
      entry.allowed('cancelled', reply.code);
      return null;
    }
    if (options.expect.includes(reply.code)) {
      entry.allowed('refused', reply.code);
      await backOff(reply);
      return null;
    }
    return this.fail(entry, new Failure(reply.code, reply.message));
  }

  /** A call for the test's own sake. Resolves with the payload, judged; null if refused as the scenario expects. */
  async unmeasured(connection, build, expected, entry) {
    const { reply } = await connection
      .call(build, this.settings.timeoutMs)
      .catch((failure) => this.fail(entry, failure));
    if (!reply.ok && expected.expect.includes(reply.code)) {
      await backOff(reply);
      return null;
    }
    if (!reply.ok) this.fail(entry, new Failure(reply.code, reply.message));
    this.fieldsServed += expected.fields;
    this.judge(reply, expected, entry);
    return reply.payload;
  }

  /** Opens what a call has made, and compares it with what was sent. */
  async compare(connection, build, expected, entry) {
    if (await this.unmeasured(connection, build, expected, entry)) entry.checked();
  }

  /** Fails the call unless the reply is a document that is what it should be. */
  judge(reply, { holds, fields, fieldBytes, seed, suite, keyScope }, entry) {
    if (!reply.payload) this.fail(entry, new Failure(wrongReply, 'the result is no document'));
    const wrong = native.check(reply.payload, { holds, fields, fieldBytes, seed, suite, keyScope });
    if (wrong) this.fail(entry, new Failure(wrongReply, wrong));
  }

  fail(entry, failure) {
    entry.error(failure.code);
    throw failure;
  }

  /** The first of each class, then one in so many. */
  isSample(entry) {
    return entry.counts.ok % this.settings.checkEvery === 1 || this.settings.checkEvery === 1;
  }

  /** Encrypted documents to decrypt, made once for all virtual users. */
  documents(options, entry, pool) {
    const { app, fields, fieldBytes, suite, keyScope, documents } = options;
    return this.once(JSON.stringify([pool.to.port, app, fields, fieldBytes, suite, keyScope, documents]), async () => {
      const made = [];
      while (made.length < documents) {
        const connection = await this.lease(pool, entry);
        const seed = randomInt(2 ** 31);
        const expected = { ...options, holds: 'envelopes', seed };
        const payload = await this.unmeasured(connection, encryptFrame(options, seed), expected, entry);
        if (payload) made.push({ seed, payload });
      }
      return made;
    });
  }

  /** Tokenized documents of this size and collection: those that this run has made, else some made now. */
  async tokens(options, entry, pool) {
    const key = tokensKey(options);
    if (!this.remembered.has(key)) {
      await this.once(key, async () => {
        for (let made = 0; made < FIRST_TOKENS;) {
          const connection = await this.lease(pool, entry);
          const seed = randomInt(2 ** 31);
          const expected = { ...options, holds: 'tokens', seed };
          const payload = await this.unmeasured(connection, tokenizeFrame(options, seed), expected, entry);
          if (!payload) continue;
          this.remember(options, { seed, payload });
          made += 1;
        }
      });
    }
    return this.remembered.get(key);
  }

  remember(options, document) {
    const key = tokensKey(options);
    const known = this.remembered.get(key) ?? [];
    if (known.length < REMEMBERED_MAX) known.push(document);
    this.remembered.set(key, known);
  }

  once(key, make) {
    if (!this.prepared.has(key)) this.prepared.set(key, make());
    return this.prepared.get(key);
  }
}

const postedKey = ({ fields, fieldBytes }) => JSON.stringify(['post', fields, fieldBytes]);
const tokensKey = ({ app, collection, fields, fieldBytes }) => JSON.stringify([app, collection, fields, fieldBytes]);

/** Waits as an `overloaded` engine asks. */
function backOff({ retryAfterMs }) {
  return new Promise((resolve) => setTimeout(resolve, Math.min(retryAfterMs ?? 0, RETRY_MS_MAX)));
}

const pick = (list) => list[randomInt(list.length)];

function encryptFrame({ app, fields, fieldBytes, suite, keyScope, deadlineMs }, seed) {
  return (msgid) => native.encrypt(msgid, { app, fields, fieldBytes, seed, suite, keyScope, deadlineMs });
}

function decryptFrame({ app, deadlineMs }, payload) {
  return (msgid) => native.decrypt(msgid, { app, deadlineMs, payload });
}

function tokenizeFrame({ app, fields, fieldBytes, collection, deadlineMs, idempotent }, seed) {
  const idempotencyKey = idempotent ? randomBytes(16) : undefined;
  return (msgid) => native.tokenize(msgid, { app, fields, fieldBytes, seed, collection, deadlineMs, idempotencyKey });
}

function detokenizeFrame({ app, collection, deadlineMs }, payload) {
  return (msgid) => native.detokenize(msgid, { app, collection, deadlineMs, payload });
}

module.exports = { Calls };
