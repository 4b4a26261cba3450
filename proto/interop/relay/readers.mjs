// What Node's readers find under the selected names: `node readers.mjs FOLDER`, where the packages are in the folder. Lines as for
// readers.py.
import { createRequire } from 'node:module';
import querystring from 'node:querystring';
import readline from 'node:readline';

const require = createRequire(`${process.argv[2]}/`);
const busboy = require('busboy');
const qs = require('qs');

const FIELDS = ['ssn', 'token', 'card_number', 'user[ssn]', 'items[0]', 'card[number]'];

function texts(value) {
    if (value === null || value === undefined) return [];
    return typeof value === 'object' ? Object.values(value).flatMap(texts) : [String(value)];
}

function selected(fields) {
    return texts([...FIELDS.map((name) => fields[name]), fields.user?.ssn, fields.items?.[0], fields.card?.number]);
}

function readMultipart(type, text) {
    return new Promise((resolve) => {
        const found = [];
        const done = () => resolve({ busboy: found });
        try {
            const parser = busboy({ headers: { 'content-type': type } });
            parser.on('field', (name, value) => FIELDS.includes(name) && found.push(value));
            parser.on('file', (name, stream) => stream.on('data', (data) => FIELDS.includes(name) && found.push(data.toString('latin1'))));
            parser.on('close', done).on('error', done);
            parser.end(text);
        } catch {
            done();
        }
    });
}

async function read({ kind, type, text }) {
    const bytes = Buffer.from(text, 'base64');
    if (kind === 'multipart') return readMultipart(type, bytes);
    if (kind === 'json') {
        const document = JSON.parse(bytes.toString());
        return { 'JSON.parse': selected(document ?? {}) };
    }
    const form = bytes.toString();
    return {
        querystring: selected(querystring.parse(form)),
        URLSearchParams: texts(FIELDS.map((name) => new URLSearchParams(form).getAll(name))),
        qs: selected(qs.parse(form)),
        'qs, semicolons': selected(qs.parse(form, { delimiter: /[&;]/ })),
        'qs, dots': selected(qs.parse(form, { allowDots: true, ignoreQueryPrefix: true })),
    };
}

for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await read(JSON.parse(line)).catch(() => ({}))));
}
