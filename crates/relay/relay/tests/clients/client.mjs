// Posts a document twice with a client of Node, with a length and in chunks, and prints both responses.
//
//     node client.mjs <folder with node_modules> axios|undici|fetch DOCUMENT URL

import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { Readable } from 'node:stream';

const [folder, name, document, url] = process.argv.slice(2);
const load = createRequire(resolve(folder, 'index.js'));
const headers = { 'content-type': 'application/json' };
const halves = () => [document.slice(0, 9), document.slice(9)].map((half) => Buffer.from(half));

const clients = {
  async axios(body) {
    const { data } = await load('axios').post(url, body, { headers, responseType: 'text', transformResponse: (text) => text });
    return data;
  },
  async undici(body) {
    const response = await load('undici').request(url, { method: 'POST', headers, body });
    if (response.statusCode !== 200) throw new Error(`status ${response.statusCode}`);
    return response.body.text();
  },
  async fetch(body) {
    const response = await fetch(url, { method: 'POST', headers, body, duplex: 'half' });
    if (!response.ok) throw new Error(`status ${response.status}`);
    return response.text();
  },
};

for (const body of [document, Readable.from(halves())]) {
  process.stdout.write(`${await clients[name](body)}\n`);
}
process.exit(0);
