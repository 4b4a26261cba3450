// Seals fields to a public key of an app with @hpke/core: the recipe of proto/envelope.md, "Sealing outside".
//
//     node seal.mjs <folder with node_modules>
//
// Reads a JSON object per line and answers with one, as seal.py does.

import { createHash, createPublicKey, verify } from "node:crypto";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { createInterface } from "node:readline";

const hpke = createRequire(resolve(process.argv[2], "index.js"))("@hpke/core");
const suite = new hpke.CipherSuite({
    kem: new hpke.DhkemP256HkdfSha256(),
    kdf: new hpke.HkdfSha256(),
    aead: new hpke.Aes256Gcm(),
});

// The key to seal to. Nothing of the text is read before its signature holds.
function checkedKey({ signed, signer, app, min_generation, now }) {
    const x = Buffer.from(signer, "base64").toString("base64url");
    const pinned = createPublicKey({ format: "jwk", key: { kty: "OKP", crv: "Ed25519", x } });
    const message = Buffer.from("sealwire/keys/1\0" + signed.keys);
    if (!verify(null, message, pinned, Buffer.from(signed.signature, "base64"))) throw new Error("signature");
    const text = JSON.parse(signed.keys);
    if (text.version !== 1 || text.app !== app || text.generation < min_generation || text.expires_unix_s <= now) {
        throw new Error("another version or app, or too old");
    }
    const key = text.keys.find((key) => key.suite === "p256");
    const point = Buffer.from(key.public_key, "base64");
    const digest = createHash("sha256").update("sealwire/key-id/1\x01").update(point).digest("hex");
    if (digest.slice(0, 10) !== key.key_id) throw new Error("the key has another id");
    return { key, point };
}

async function seal({ key, point }, context, fields) {
    const recipientPublicKey = await suite.kem.deserializePublicKey(new Uint8Array(point).buffer);
    const sender = await suite.createSenderContext({ recipientPublicKey, info: new TextEncoder().encode(key.info).buffer });
    const enc = new Uint8Array(sender.enc);
    const header = [1, ...Buffer.from(key.key_id, "hex"), 2 | (enc[64] & 1), ...enc.slice(1, 33)];
    // All at once: the library takes them in order, one sequence number each.
    return Promise.all(
        fields.map(async ({ datatype, plaintext }, sequence) => {
            const aad = new Uint8Array([datatype, ...context]).buffer;
            const sealed = await sender.seal(new Uint8Array(Buffer.from(plaintext, "hex")).buffer, aad);
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
