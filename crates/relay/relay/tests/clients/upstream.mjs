// An upstream of Node. It prints its address, and serves until its standard input ends.
//
//     node upstream.mjs http1|http2
//
// It returns each document in the way that the end of the path names: /chunked, /gzip, /trailers, else with a length. GET
// and HEAD return the last document.

import http from 'node:http';
import http2 from 'node:http2';
import { gzipSync } from 'node:zlib';

const isHttp2 = process.argv[2] === 'http2';
let last = Buffer.alloc(0);
let expected = false;

async function answer(request, response) {
  const chunks = [];
  try {
    for await (const chunk of request) chunks.push(chunk);
  } catch {
    return response.destroy();
  }
  if (request.method === 'POST') {
    last = Buffer.concat(chunks);
    expected = 'expect' in request.headers;
  }
  response.setHeader('content-type', 'application/json');
  response.setHeader('x-protocol', `HTTP/${request.httpVersion}`);
  if (expected) response.setHeader('x-expected', '1');
  const way = request.url.split('/').at(-1);
  if (way === 'chunked') {
    response.write(last.subarray(0, 9));
    return response.end(last.subarray(9));
  }
  if (way === 'gzip') {
    response.setHeader('content-encoding', 'gzip');
    return response.end(gzipSync(last));
  }
  if (way === 'trailers') {
    response.setHeader('trailer', 'x-checksum');
    response.write(last);
    if (isHttp2) response.setTrailer('x-checksum', String(last.length));
    else response.addTrailers({ 'x-checksum': String(last.length) });
    return response.end();
  }
  response.setHeader('content-length', last.length);
  return response.end(last);
}

const server = isHttp2 ? http2.createServer(answer) : http.createServer(answer);
server.on('checkContinue', (request, response) => {
  response.writeContinue();
  answer(request, response);
});
server.listen(0, '127.0.0.1', () => {
  const { address, port } = server.address();
  console.log(`${address}:${port}`);
});
process.stdin.resume().on('end', () => process.exit(0));
