// Stands in for native.js where a test wants to say itself who leads, and when.

const { EventEmitter } = require("node:events");
const { Environment } = require("../lib/environment.js");

class FakeElection {
  settledTokens = [];
  steppedDown = [];
  token = 0;
  leads = false;
  stopped = false;

  constructor(native, name) {
    this.native = native;
    this.name = name;
  }

  isLeader = () => this.leads;

  guard() {
    return null;
  }

  remaining(token) {
    return this.leads && token === this.token ? 1000 : 0;
  }

  leader() {
    return this.token === 0 ? null : { instanceId: this.native.info.instanceId, token: this.token };
  }

  settled(token) {
    this.settledTokens.push(token);
    this.onSettled?.(token);
  }

  stepDown(pause) {
    this.steppedDown.push(pause);
    if (this.leads) setImmediate(() => this.demote("steppedDown"));
  }

  /** As the real one: demotes, keeps the lease until settled() or stopTimeout, then resolves. */
  stop() {
    this.stopped = true;
    return new Promise((resolve) => {
      setImmediate(() => {
        if (!this.leads) return resolve();
        const timer = setTimeout(resolve, this.native.info.stopTimeout);
        this.onSettled = () => {
          clearTimeout(timer);
          this.native.log.push(`released ${this.name}`);
          resolve();
        };
        this.demote("stopped");
      });
    });
  }

  promote(token = this.token + 1) {
    this.token = token;
    this.leads = true;
    this.native.dispatch({ type: "promoted", election: this.name, token, traceId: "ab" });
  }

  /** The term was over before the news of it was delivered. */
  promoteLate(token = this.token + 1) {
    this.token = token;
    this.native.dispatch({ type: "promoted", election: this.name, token, traceId: "ab" });
  }

  demote(reason = "taken") {
    this.leads = false;
    this.native.dispatch({ type: "demoted", election: this.name, token: this.token, reason });
  }
}

class FakeNative {
  elections = new Map();
  log = [];
  attached = 0;
  running = null;
  /** What startCluster() waits for, or rejects with. */
  startGate = Promise.resolve();
  info = {
    type: "StoreCluster",
    instanceId: "fake-1",
    leaseName: "leader",
    leaseDuration: 1500,
    renewInterval: 500,
    stopTimeout: 300,
    signals: true,
    candidate: true,
    store: "fake://store",
    warnings: [],
  };

  attach(dispatch, logLevel) {
    this.attached += 1;
    this.dispatch = dispatch;
    this.logLevel = logLevel;
  }

  setLogLevel(level) {
    this.logLevel = level;
  }

  checkConfig(json, source) {
    this.checked = { json, source };
    if (this.configError !== undefined) {
      throw Object.assign(new Error(this.configError), { code: "WHENLEADER_CONFIG" });
    }
    return this.info;
  }

  async startCluster(json) {
    await this.startGate;
    if (this.running !== null && this.running !== json) {
      throw Object.assign(new Error("another configuration"), { code: "WHENLEADER_CONFIG" });
    }
    this.running = json;
    return this.info;
  }

  runningCluster() {
    return this.running === null ? null : this.info;
  }

  checkRun(options) {
    if (JSON.parse(options).leaseDuration === 1) {
      throw Object.assign(new Error("leaseDuration must be longer"), { code: "WHENLEADER_CONFIG" });
    }
  }

  joinElection(name, run) {
    if (name === "refused") {
      throw Object.assign(new Error("no such name"), { code: "WHENLEADER_CONFIG" });
    }
    const election = new FakeElection(this, name);
    election.options = run;
    this.elections.set(name, election);
    return election;
  }

  releaseAllNow() {
    this.log.push("releaseAllNow");
    return true;
  }

  async stopCluster() {
    this.log.push("stopCluster");
    this.running = null;
  }

  defaultInstanceId() {
    return "fake-default";
  }
}

/** A logger that remembers, and an environment that touches nothing real. */
function fakeWorld(overrides = {}) {
  const native = new FakeNative();
  const lines = [];
  const logger = Object.fromEntries(
    ["error", "warn", "info", "debug"].map((level) => [
      level,
      (text) => lines.push(`${level} ${text}`),
    ]),
  );
  const environment = new Environment({
    loadNative: () => native,
    env: {},
    cwd: () => "/",
    isMainThread: true,
    isClusterWorker: () => false,
    remindAfter: 20,
    watchExit: () => () => {},
    ...overrides,
  });
  return { native, environment, logger, lines };
}

const CONFIG = { cluster: { type: "StoreCluster", store: "fake://store" } };

/** An environment whose cluster runs; the default election follows. */
async function startedWorld(overrides) {
  const world = fakeWorld(overrides);
  const cluster = await world.environment.startCluster(CONFIG, world.logger);
  return { ...world, cluster, election: world.native.elections.get("leader") };
}

/** Lets everything run that needs no timer. */
const settle = () => new Promise((resolve) => setImmediate(() => setImmediate(resolve)));

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** A promise, and what settles it. */
function gate() {
  const emitter = new EventEmitter();
  const promise = new Promise((resolve, reject) => {
    emitter.once("open", resolve);
    emitter.once("fail", reject);
  });
  return {
    promise,
    open: (value) => emitter.emit("open", value),
    fail: (error) => emitter.emit("fail", error),
  };
}

module.exports = { FakeNative, fakeWorld, startedWorld, CONFIG, settle, sleep, gate };
