'use strict';
// Loads the binding that `loadtest/run` builds.
const { resolve } = require('node:path');

const file = process.env.SEALWIRE_NATIVE || resolve(__dirname, '../../target/loadtest-native/native.node');
try {
  module.exports = require(file);
} catch (error) {
  if (error.code !== 'MODULE_NOT_FOUND') throw error;
  throw new Error(`${file} is not built yet: loadtest/run --build makes it`);
}
