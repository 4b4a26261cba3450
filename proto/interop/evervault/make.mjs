// Encrypts with the published Node client, as told on stdin: one JSON object per line, one answer per line.
//
//     node make.mjs <folder with node_modules> <package name>
//
// {"key": API key, "curve": "r1"|"k1", "steps": [{"role": .., "value": ..} | {"role": .., "file": hex}]}
// gives {"results": [{"value": ..} | {"file": hex} | {"error": ..}]}; one client serves the steps of one line.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { resolve } from "node:path";

const [folder, name] = process.argv.slice(2);
const Evervault = createRequire(resolve(folder, "index.js"))(name);
const CURVES = { r1: "prime256v1", k1: "secp256k1" };

async function step(client, { role, value, file }) {
    try {
        if (file === undefined) return { value: await client.encrypt(value, role) };
        return { file: (await client.encrypt(Buffer.from(file, "hex"), role)).toString("hex") };
    } catch (error) {
        return { error: String(error) };
    }
}

for await (const line of createInterface({ input: process.stdin })) {
    const { key, curve, steps } = JSON.parse(line);
    const client = new Evervault("app_0123456789ab", key, { curve: CURVES[curve] });
    const results = [];
    for (const each of steps) results.push(await step(client, each));
    process.stdout.write(JSON.stringify({ results }) + "\n");
}
