// Seals fields to a public key of an app with @hpke/core, or of suite p256-mlkem768 with hpke: the recipe of
// proto/envelope.md, "Sealing outside".
//
//     node seal.mjs <folder with node_modules>
//
// Reads a JSON object per line and answers with one, as seal.py does.

import { createHash, createPublicKey, verify } from "node:crypto";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const folder = resolve(process.argv[2]);
const core = createRequire(resolve(folder, "index.js"))("@hpke/core");
const load = (name) => import(pathToFileURL(resolve(folder, "node_modules", name, "index.js")));
const [hpke, noble] = await Promise.all([load("hpke"), load("@panva/hpke-noble")]);

// The first byte of a header and the sender of each suite.
const suites = {
    p256: { byte: 1, senderTo: senderOfCore },
    "p256-mlkem768": { byte: 4, senderTo: senderOfHpke },
};

async function senderOfCore(publicKey, info) {
    const [kem, kdf, aead] = [new core.DhkemP256HkdfSha256(), new core.HkdfSha256(), new core.Aes256Gcm()];
    const suite = new core.CipherSuite({ kem, kdf, aead });
    const recipientPublicKey = await suite.kem.deserializePublicKey(new Uint8Array(publicKey).buffer);
    const sender = await suite.createSenderContext({ recipientPublicKey, info: info.buffer });
    return { enc: new Uint8Array(sender.enc), seal: (plaintext, aad) => sender.seal(plaintext.buffer, aad.buffer) };
}

async function senderOfHpke(publicKey, info) {
    const suite = new hpke.CipherSuite(noble.KEM_MLKEM768_P256, hpke.KDF_HKDF_SHA256, hpke.AEAD_AES_256_GCM);
    const recipient = await suite.DeserializePublicKey(new Uint8Array(publicKey));
    const { encapsulatedSecret, ctx } = await suite.SetupSender(recipient, { info });
    return { enc: encapsulatedSecret, seal: (plaintext, aad) => ctx.Seal(plaintext, aad) };
}

// The key to seal to. Nothing of the text is read before its signature holds.
function checkedKey({ signed, signer, app, suite, min_generation, now }) {
    const x = Buffer.from(signer, "base64").toString("base64url");
    const pinned = createPublicKey({ format: "jwk", key: { kty: "OKP", crv: "Ed25519", x } });
    const message = Buffer.from("sealwire/keys/1\0" + signed.keys);
    if (!verify(null, message, pinned, Buffer.from(signed.signature, "base64"))) throw new Error("signature");
    const text = JSON.parse(signed.keys);
    if (text.version !== 1 || text.app !== app || text.generation < min_generation || text.expires_unix_s <= now) {
        throw new Error("another version or app, or too old");
    }
    const key = text.keys.find((key) => key.suite === suite);
    const publicKey = Buffer.from(key.public_key, "base64");
    const label = Buffer.from([...Buffer.from("sealwire/key-id/1"), suites[suite].byte]);
    const digest = createHash("sha256").update(label).update(publicKey).digest("hex");
    if (digest.slice(0, 10) !== key.key_id) throw new Error("the key has another id");
    return { key, publicKey };
}

// Returns the bytes before the body of every envelope of an encapsulation.
function headerOf(key, enc) {
    const named = Buffer.from([suites[key.suite].byte, ...Buffer.from(key.key_id, "hex")]);
    if (key.suite === "p256") return Buffer.from([...named, 2 | (enc[64] & 1), ...enc.slice(1, 33)]);
    const digest = createHash("sha256").update("sealwire/header/1").update(named).update(enc).digest();
    return Buffer.from([...named, ...digest.subarray(0, 20), 1, ...enc, 0, 0]);
}

async function seal({ key, publicKey }, context, fields) {
    const sender = await suites[key.suite].senderTo(publicKey, new TextEncoder().encode(key.info));
    const header = headerOf(key, sender.enc);
    // All at once: the library takes them in order, one sequence number each.
    return Promise.all(
        fields.map(async ({ datatype, plaintext }, sequence) => {
            const aad = new Uint8Array([datatype, ...context]);
            const sealed = await sender.seal(new Uint8Array(Buffer.from(plaintext, "hex")), aad);
            const number = Buffer.alloc(4);
            number.writeUInt32BE(sequence);
            const envelope = Buffer.concat([Buffer.from([...header, datatype]), number, Buffer.from(sealed)]);
            return "sw1:" + envelope.toString("base64url");
        }),
    );
}

async function answer(ask) {
    let checked;
    try {
        checked = checkedKey(ask);
    } catch (error) {
        return { refused: String(error) };
    }
    return { envelopes: await seal(checked, Buffer.from(ask.context, "hex"), ask.fields) };
}

for await (const line of createInterface({ input: process.stdin })) {
    process.stdout.write(JSON.stringify(await answer(JSON.parse(line))) + "\n");
}
