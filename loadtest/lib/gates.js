'use strict';
// Whether a scenario file says what it seems to say, before it runs. Artillery passes over keys that it does not know,
// so a misspelt gate would be a gate that is always open.

const fs = require('node:fs');
const { createRequire } = require('node:module');
const yaml = require('js-yaml');
const { hashString, replaceMetricsWithHashes } = require('artillery-plugin-ensure/utils');
const flow = require('../engine/lib/flow');
const settings = require('../engine/lib/settings');
const { COUNTERS } = require('../engine/lib/recorder');

/** As Artillery reads a gate: there is another release of it among the packages. */
const { compileExpression } = createRequire(require.resolve('artillery-plugin-ensure'))('filtrex');

const CONFIG = ['target', 'engines', 'plugins', 'phases', 'ensure', 'environments'];
const ENVIRONMENT = ['engines', 'phases', 'ensure'];
const ENSURE = ['maxErrorRate', 'thresholds', 'conditions'];
const PHASE = ['name', 'arrivalCount', 'duration'];
/** What Artillery makes of a histogram and a gate can name. Not `p999`: its expressions take it for `p99` and a 9. */
const AGGREGATIONS = ['min', 'max', 'mean', 'p50', 'p75', 'p90', 'p95', 'p99'];
const USERS = ['vusers.created', 'vusers.completed', 'vusers.failed'];

/** Reads and checks a scenario file; throws with what is wrong. Gives the script and what it measures. */
function check(file) {
  const script = yaml.load(fs.readFileSync(file, 'utf8'));
  flow.only(Object.keys(script), ['config', 'scenarios'], file);
  const { config, scenarios } = script;
  flow.only(Object.keys(config), CONFIG, `${file}: config`);
  flow.only(Object.keys(config.engines ?? {}), ['sealwire'], `${file}: config.engines`);
  flow.only(Object.keys(config.plugins ?? {}), ['ensure'], `${file}: config.plugins`);
  if (!config.plugins?.ensure) throw new Error(`${file}: config.plugins must have ensure: {}, or no gate is looked at`);

  const classes = new Map();
  const { beside } = settings.read(config, classes);
  const flows = [];
  for (const scenario of scenarios) {
    flow.only(Object.keys(scenario), ['name', 'engine', 'flow'], `${file}: scenario`);
    if (scenario.engine !== 'sealwire') throw new Error(`${file}: engine must be sealwire`);
    if (flow.rules.named(scenario.name)) throw new Error(`${file}: a scenario has a name of letters, digits, _ and -`);
    flows.push(flow.read(scenario.flow, scenario.name, classes));
  }

  const metrics = new Set(USERS);
  for (const name of classes.keys()) {
    for (const counter of COUNTERS) metrics.add(`${name}.${counter}`);
    for (const aggregation of AGGREGATIONS) metrics.add(`${name}.us.${aggregation}`);
  }
  checkGates(config, metrics, `${file}: config`);
  checkMeetings(config, flows, beside, `${file}: config`);
  for (const [name, environment] of Object.entries(config.environments ?? {})) {
    const where = `${file}: environment ${name}`;
    flow.only(Object.keys(environment), ENVIRONMENT, where);
    const chosen = choose(config, name);
    const read = settings.read(chosen, new Map());
    checkGates(chosen, metrics, where);
    checkMeetings(chosen, flows, read.beside, where);
  }
  const needsRelay = [...flows, ...beside.map(({ steps }) => steps)].some(flow.needsRelay);
  return { script, classes, needsRelay };
}

/**
 * The configuration in an environment: its phases and gates instead of the others, its settings over the others.
 * Artillery itself would merge lists of gates entry by entry.
 */
function choose({ environments, ...config }, environment) {
  const chosen = environments?.[environment];
  if (!chosen) throw new Error(`there is no environment ${environment}`);
  return { ...config, ...chosen, engines: { sealwire: { ...config.engines?.sealwire, ...chosen.engines?.sealwire } } };
}

function checkGates({ ensure, phases }, metrics, where) {
  if (!ensure) throw new Error(`${where}: ensure is missing`);
  flow.only(Object.keys(ensure), ENSURE, `${where}: ensure`);
  // Without it Artillery ends well when the engine is down.
  if (ensure.maxErrorRate !== 0) throw new Error(`${where}: ensure.maxErrorRate must be 0`);
  if (!Array.isArray(ensure.conditions) || ensure.conditions.length === 0) {
    throw new Error(`${where}: ensure.conditions must say what has to have happened`);
  }
  for (const threshold of ensure.thresholds ?? []) {
    const [[metric, limit], ...rest] = Object.entries(threshold);
    if (rest.length > 0 || !Number.isFinite(limit)) throw new Error(`${where}: a threshold is one metric: number`);
    known(metric, metrics, where);
  }
  for (const condition of ensure.conditions) {
    flow.only(Object.keys(condition), ['expression'], `${where}: a condition`);
    const named = String(condition.expression).match(/[A-Za-z_][\w.-]*/g) ?? [];
    const read = named.filter((word) => !['and', 'or', 'not'].includes(word));
    if (read.length === 0) throw new Error(`${where}: "${condition.expression}" names no metric`);
    for (const metric of read) known(metric, metrics, where);
    if (holds(condition.expression, read)) {
      const better = 'add what has to have happened with `and`; an upper limit is a threshold';
      throw new Error(`${where}: "${condition.expression}" holds where nothing has happened: ${better}`);
    }
  }
  if (!Array.isArray(phases) || phases.length === 0) throw new Error(`${where}: phases is missing`);
  for (const phase of phases) {
    flow.only(Object.keys(phase), PHASE, `${where}: a phase`);
    // Artillery runs phases of this kind in one worker; others it divides, and with them what users share.
    if (!(phase.arrivalCount > 0 && phase.duration > 0)) {
      throw new Error(`${where}: a phase has arrivalCount and duration`);
    }
  }
}

/** Refuses meetings that not all who are needed come to. */
function checkMeetings({ phases }, flows, beside, where) {
  const arrivals = phases.reduce((sum, { arrivalCount }) => sum + arrivalCount, 0);
  // Artillery draws the scenario of each user.
  const meets = (steps) => flow.unmet(steps, NaN) !== null;
  if (flows.length > 1 && flows.some(meets)) throw new Error(`${where}: users meet where there is one scenario`);
  const wrong = [
    ...flows.map((steps) => flow.unmet(steps, arrivals)),
    ...beside.map(({ steps, users }) => flow.unmet(steps, users)),
  ].find(Boolean);
  if (wrong) throw new Error(`${where}: ${wrong}`);
}

/** Whether a condition on these metrics holds when all of them are 0. */
function holds(expression, metrics) {
  const nothing = Object.fromEntries(metrics.map((metric) => [hashString(metric), 0]));
  return Boolean(compileExpression(replaceMetricsWithHashes(metrics, expression))(nothing));
}

function known(metric, metrics, where) {
  if (metrics.has(metric)) return;
  const near = [...metrics].filter((name) => name.split('.').at(-1) === metric.split('.').at(-1)).slice(0, 6);
  throw new Error(`${where}: nothing is called ${metric}${near.length > 0 ? `; there are ${near.join(', ')}` : ''}`);
}

module.exports = { check, choose };
