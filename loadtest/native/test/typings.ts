// What the typings allow and what they refuse; read by the compiler in `typings.test.js`, never run.
import { check, document, encrypt, Replies, tokenize } from '..';

const frame: Buffer = encrypt(1, { app: 'demo', fields: 30, fieldBytes: 16, suite: 'secp256k1', keyScope: 'field' });
encrypt(1, { app: 'demo', payload: document(1, 2) });
// @ts-expect-error: one of both
encrypt(1, { app: 'demo', payload: document(1, 2), fields: 3 });
// @ts-expect-error: neither
encrypt(1, { app: 'demo' });
// @ts-expect-error: no such suite
encrypt(1, { app: 'demo', fields: 3, suite: 'p521' });
// @ts-expect-error: the collection is missing
tokenize(1, { app: 'demo', fields: 3 });

const reply = new Replies().push(frame)[0];
export const code: string | undefined = reply?.code;
export const wrong: string | null = check(frame, { holds: 'tokens', fields: 1, fieldBytes: 2 });
