'use strict';
// Takes virtual users through the steps of a flow.

const { performance } = require('node:perf_hooks');

class Walker {
  /** `entries`: full class name to what records it. `shorten`: loops run so many times less. */
  constructor(calls, entries, shorten) {
    this.calls = calls;
    this.entries = entries;
    this.shorten = shorten;
    /** What went wrong beside the users: each ends with it. */
    this.broken = null;
    /** The first failure of a user: nobody waits for that user at a meeting. */
    this.failed = null;
    this.absent = [];
  }

  /** Resolves when `user` {identity} has done all steps; rejects with the first failure. */
  async walk(steps, user) {
    for (const step of steps) {
      if (this.broken) throw this.broken;
      await this.take(step, user);
    }
  }

  async take(step, user) {
    switch (step.kind) {
      case 'call':
        return this.calls.run(step, this.entries.get(step.className), user);
      case 'think':
        return pause(step.ms);
      case 'mix':
        if (step.deck.length === 0) step.deck = shuffled(step.cards);
        return this.take(step.deck.pop(), user);
      case 'loop': {
        const until = performance.now() + ((step.seconds ?? Infinity) * 1000) / this.shorten;
        const count = Math.ceil((step.count ?? Infinity) / this.shorten);
        for (let turn = 0; turn < count && performance.now() < until; turn += 1) await this.walk(step.steps, user);
        return undefined;
      }
      case 'meet':
        return this.meet(step);
      default:
        throw new Error(`no step of kind ${step.kind}`);
    }
  }

  /** Waits for the other users. */
  meet(step) {
    if (this.failed) throw this.failed;
    step.here += 1;
    if (step.here % step.users === 0) {
      for (const go of step.waiting.splice(0)) go();
      return undefined;
    }
    return new Promise((resolve, reject) => {
      step.waiting.push(resolve);
      this.absent.push(reject);
    });
  }

  /** A user has failed and comes to no meeting. */
  lose(failure) {
    this.failed ??= failure;
    for (const tell of this.absent.splice(0)) tell(failure);
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function shuffled(cards) {
  const deck = [...cards];
  for (let last = deck.length - 1; last > 0; last -= 1) {
    const other = Math.floor(Math.random() * (last + 1));
    [deck[last], deck[other]] = [deck[other], deck[last]];
  }
  return deck;
}

module.exports = { Walker, pause };
