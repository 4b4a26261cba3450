'use strict';

/** Why a call did not do what it should. `code` is one of the contract's, or one of those below. */
class Failure extends Error {
  constructor(code, message) {
    super(`${code}: ${message}`);
    this.code = code;
    this.why = message;
  }
}

/** Codes that are not an engine's answer but what the caller found. */
Failure.OWN = {
  connectFailed: 'connect_failed',
  connectionLost: 'connection_lost',
  contractBroken: 'contract_broken',
  noCertificate: 'no_certificate',
  timeout: 'timeout',
  wrongReply: 'wrong_reply',
};

module.exports = { Failure };
