// Seals and opens envelopes of suite p256-psk with @hpke/core, for proto/interop/check.py.
//
//     node psk.mjs <folder with node_modules>
//
// Reads a JSON object per line and answers with one, as psk/main.go does.

import { createHash, createHmac, ECDH } from "node:crypto";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { createInterface } from "node:readline";

const core = createRequire(resolve(process.argv[2], "index.js"))("@hpke/core");
const [kem, kdf, aead] = [new core.DhkemP256HkdfSha256(), new core.HkdfSha256(), new core.Aes256Gcm()];
const suite = new core.CipherSuite({ kem, kdf, aead });
const PREFIX = Buffer.from("SW\x01\x05", "latin1");
const HEADER = 3 + 39;

const bytes = (hex) => new Uint8Array(Buffer.from(hex, "hex"));
const hex = (data) => Buffer.from(data).toString("hex");

// HKDF-Expand alone: the seed is the pseudorandom key. One block is 32 bytes.
function expand(seed, label) {
    const info = Buffer.concat([Buffer.from(label), Buffer.from([5, 1])]);
    return new Uint8Array(createHmac("sha256", seed).update(info).digest());
}

async function keyOf(seed) {
    const pair = await suite.kem.deriveKeyPair(expand(seed, "sealwire/psk-key/1").buffer);
    const point = Buffer.from(await suite.kem.serializePublicKey(pair.publicKey));
    const id = createHash("sha256").update("sealwire/key-id/1\x05").update(point).digest().subarray(0, 5);
    const pskId = new Uint8Array(Buffer.concat([Buffer.from("sealwire/psk-id/1"), id]));
    return { pair, id, psk: { key: expand(seed, "sealwire/psk/1").buffer, id: pskId.buffer } };
}

const infoOf = (app) => new TextEncoder().encode(`sealwire/1${app}`).buffer;
const aadOf = (datatype, context) => new Uint8Array([datatype, ...context]).buffer;

async function seal({ app, context, fields }, { pair, id, psk }) {
    const sender = await suite.createSenderContext({ recipientPublicKey: pair.publicKey, info: infoOf(app), psk });
    const enc = new Uint8Array(sender.enc);
    const header = Buffer.from([...PREFIX, ...id, 2 | (enc[64] & 1), ...enc.slice(1, 33)]);
    const envelopes = [];
    for (const [sequence, { datatype, plaintext }] of fields.entries()) {
        const sealed = await sender.seal(bytes(plaintext).buffer, aadOf(datatype, bytes(context)));
        const number = Buffer.alloc(4);
        number.writeUInt32BE(sequence);
        envelopes.push(hex(Buffer.concat([header, Buffer.from([datatype]), number, Buffer.from(sealed)])));
    }
    return { envelopes };
}

async function open({ app, context, envelopes }, { pair, id, psk }) {
    const all = envelopes.map((envelope) => Buffer.from(envelope, "hex"));
    const header = all[0].subarray(0, HEADER);
    const isOfKey = header.length === HEADER && header.subarray(0, 4).equals(PREFIX) && header.subarray(4, 9).equals(id);
    if (!isOfKey) throw new Error("no envelope of this key");
    const enc = ECDH.convertKey(header.subarray(9), "prime256v1", undefined, undefined, "uncompressed");
    const recipient = await suite.createRecipientContext({
        recipientKey: pair, enc: new Uint8Array(enc).buffer, info: infoOf(app), psk,
    });
    const fields = [];
    for (const [number, envelope] of all.entries()) {
        const isNext = envelope.subarray(0, HEADER).equals(header) && envelope.length >= HEADER + 5;
        if (!isNext || envelope.readUInt32BE(HEADER + 1) !== number) {
            throw new Error("@hpke/core opens the fields of one request in order");
        }
        const datatype = envelope[HEADER];
        const sealed = new Uint8Array(envelope.subarray(HEADER + 5)).buffer;
        fields.push({ datatype, plaintext: hex(await recipient.open(sealed, aadOf(datatype, bytes(context)))) });
    }
    return { fields };
}

for await (const line of createInterface({ input: process.stdin })) {
    const ask = JSON.parse(line);
    const key = await keyOf(bytes(ask.key));
    const answer = await (ask.op === "seal" ? seal : open)(ask, key).catch((error) => ({ refused: String(error) }));
    process.stdout.write(JSON.stringify(answer) + "\n");
}
