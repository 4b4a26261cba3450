/** Sealwire's wire contract for Node: calls become frames, bytes become replies. See `proto/README.md`. */

export type Suite = 'p256' | 'secp256k1' | 'xaes' | 'p256-psk';
export type KeyScope = 'request' | 'field' | 'epoch';
export type Format = 'native' | 'evervault' | 'evervault-bare';
export type Encoding = 'text' | 'binary';

/** A document that exists already: exactly one MessagePack value. */
export interface Given {
  payload: Uint8Array;
  fields?: undefined;
}

/** A document that is made: one map of strings. Equal numbers give equal bytes. */
export interface Made {
  payload?: undefined;
  /** At most 1,000,000. */
  fields: number;
  /** Bytes of each field; 16 if absent. */
  fieldBytes?: number;
  /** Which document of that size; 0 if absent. */
  seed?: number;
}

export interface Common {
  app: string;
  /** Paths such as `$.card.number`. */
  select?: string[];
  context?: Uint8Array;
  /** Milliseconds that the engine has. */
  deadlineMs?: number;
}

export type Encrypt = Common &
  (Given | Made) & { suite?: Suite; keyScope?: KeyScope; format?: Format; encoding?: Encoding };
export type Decrypt = Common & (Given | Made);
export type Tokenize = Common & (Given | Made) & { collection: string; idempotencyKey?: Uint8Array; expiresS?: number };
export type Detokenize = Common & (Given | Made) & { collection: string };

/** One answer, or the engine's last word before it closes the connection. */
export interface Reply {
  /** The call it answers; absent where no call is to blame. */
  msgid?: number;
  /** Whether there is a result. */
  ok: boolean;
  /** Bytes of the whole message. */
  bytes: number;
  /** Code of the error, such as `overloaded`. */
  code?: string;
  message?: string;
  reason?: string;
  retryAfterMs?: number;
  /** The document in the result, one MessagePack value. */
  payload?: Buffer;
  /** Scalars in it that are not keys. */
  fields?: number;
  /** The result, where it is no document. */
  result?: Buffer;
}

/** What an engine says of itself. */
export interface Info {
  name: string;
  version: string;
  protocol: number;
  methods: string[];
  keyScopes: string[];
}

/** What the payload of a reply should be. */
export interface Expected {
  holds: 'envelopes' | 'tokens' | 'values';
  /** The document that was sent first. */
  fields: number;
  fieldBytes: number;
  seed?: number;
  /** Of envelopes: `p256` and `request` if absent. */
  suite?: Suite;
  keyScope?: KeyScope;
}

/** Frames of calls. `msgid`: 0 to 4294967295. Each throws on an argument that makes no frame. */
export function encrypt(msgid: number, call: Encrypt): Buffer;
export function decrypt(msgid: number, call: Decrypt): Buffer;
export function tokenize(msgid: number, call: Tokenize): Buffer;
export function detokenize(msgid: number, call: Detokenize): Buffer;
export function info(msgid: number): Buffer;
/** The frame that stops a call. It gets no answer of its own. */
export function cancel(msgid: number): Buffer;

/** Reads the `result` of an `info` reply. */
export function readInfo(result: Uint8Array): Info;
/** The document that a call with these numbers sends. */
export function document(fields: number, fieldBytes: number, seed?: number): Buffer;
/** What is wrong with the payload of a reply, as a sentence; null if nothing is. */
export function check(payload: Uint8Array, expected: Expected): string | null;
/** Panics inside; throws. For the tests. */
export function panicForTest(): never;

/** Reads the replies of one connection. */
export class Replies {
  constructor();
  /** Takes the next bytes, gives the replies that are whole now. Throws where the engine breaks the contract. */
  push(chunk: Uint8Array): Reply[];
  /** Bytes of a reply that has not ended. */
  readonly pending: number;
}
