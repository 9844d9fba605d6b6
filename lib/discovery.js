// Where a configuration is looked for when none is given to startCluster(). What it says is judged by
// the native side; here it is only found.
//
// A file of our own must hold a cluster. package.json and webda.config.json belong to others as well, so
// one that has none for us is passed over.

const fs = require("node:fs");
const path = require("node:path");
const { ConfigError } = require("./errors.js");
const { parseJson, toJson } = require("./json.js");

/**
 * @typedef {object} Found
 * @property {string} json
 * @property {string} source   names it in errors
 * @property {string} baseDir  where its relative paths start
 * @property {boolean} [shared]  others use the file as well
 */

/**
 * @param {{ env: Record<string, string | undefined>, cwd: string }} process
 * @returns {Generator<Found, void, void>}  the first one that holds a cluster counts
 */
function* discover({ env, cwd }) {
  const given = env.WHENLEADER_CONFIG?.trim();
  if (given) {
    yield fromEnvironment(given, cwd);
    return;
  }
  for (const folder of foldersToSearch(cwd)) {
    for (const look of [fromOwnFile, fromPackageJson, fromWebdaConfig]) {
      const found = look(folder);
      if (found !== null) yield found;
    }
  }
}

/** Of what was put into the variable instead of a path: a URL, or JSON of another kind. */
const MAYBE_SECRET = /:\/\/|[@["]/;

/**
 * @param {string} given
 * @param {string} cwd
 * @returns {Found}
 */
function fromEnvironment(given, cwd) {
  if (given.startsWith("{")) {
    parseJson(given, "WHENLEADER_CONFIG");
    return { json: given, source: "WHENLEADER_CONFIG", baseDir: cwd };
  }
  const file = path.resolve(cwd, given);
  if (MAYBE_SECRET.test(given) && !fs.existsSync(file)) {
    throw new ConfigError(
      "WHENLEADER_CONFIG is neither a JSON object nor the path of a file (its text is not shown, since " +
        'it may hold a password): a store is named as {"cluster":{"store":"redis://..."}}',
    );
  }
  const text = read(file);
  if (text === null) {
    throw new ConfigError(
      `WHENLEADER_CONFIG names the file ${file}, which does not exist: ` +
        "correct the path, or put the JSON itself into the variable",
    );
  }
  parseJson(text, file);
  return { json: text, source: file, baseDir: path.dirname(file) };
}

/**
 * The working directory, then the nearest folder upwards that is the root of a package.
 *
 * @param {string} cwd
 * @returns {string[]}
 */
function foldersToSearch(cwd) {
  for (let folder = cwd; ; folder = path.dirname(folder)) {
    if (fs.existsSync(path.join(folder, "package.json"))) {
      return folder === cwd ? [cwd] : [cwd, folder];
    }
    if (folder === path.dirname(folder)) return [cwd];
  }
}

/**
 * @param {string} folder
 * @returns {Found | null}
 */
function fromOwnFile(folder) {
  const file = path.join(folder, "whenleader.config.json");
  const text = read(file);
  if (text === null) return null;
  parseJson(text, file);
  return { json: text, source: file, baseDir: folder };
}

/**
 * @param {string} folder
 * @returns {Found | null}
 */
function fromPackageJson(folder) {
  const file = path.join(folder, "package.json");
  const text = read(file);
  if (text === null) return null;
  const own = asObject(parseJson(text, file))?.whenleader;
  // Whatever stands there was meant for us, so a slip in it must be an error, not silence.
  if (own === undefined || own === null || Object.keys(Object(own)).length === 0) return null;
  return {
    json: toJson(own),
    source: `"whenleader" in ${file}`,
    baseDir: folder,
    shared: true,
  };
}

/**
 * @param {string} folder
 * @returns {Found | null}
 */
function fromWebdaConfig(folder) {
  const file = path.join(folder, "webda.config.json");
  const text = read(file);
  if (text === null) return null;
  if (!namesCluster(parseJson(text, file))) return null;
  return { json: text, source: file, baseDir: folder, shared: true };
}

/**
 * Whether a file that is not ours alone has a service for us. A slip in its type is for the native
 * side to refuse.
 *
 * @param {unknown} config
 * @returns {boolean}
 */
function namesCluster(config) {
  const top = asObject(config);
  return [top, asObject(top?.services)].some((services) =>
    Object.values(services ?? {}).some(isCluster),
  );
}

/** Whether a service is a cluster of ours. @param {unknown} service */
function isOurs(service) {
  const type = asObject(service)?.type;
  return (
    typeof type === "string" && /^(Webda\/)?(Store|Kubernetes|LeaderApi|Local)Cluster/.test(type)
  );
}

/** Whether a service is, or is surely meant to be, a cluster of ours. @param {unknown} service */
function isCluster(service) {
  const type = asObject(service)?.type;
  return typeof type === "string" && /cluster/i.test(type);
}

/**
 * @param {unknown} value
 * @returns {Record<string, unknown> | null}
 */
function asObject(value) {
  return typeof value === "object" && value !== null
    ? /** @type {Record<string, unknown>} */ (value)
    : null;
}

/**
 * @param {string} file
 * @returns {string | null}  null: there is no such file
 */
function read(file) {
  try {
    return fs.readFileSync(file, "utf8").replace(/^\uFEFF/, "");
  } catch (error) {
    const { code, message } = /** @type {NodeJS.ErrnoException} */ (error);
    if (code === "ENOENT" || code === "ENOTDIR") return null;
    throw new ConfigError(`the configuration ${file} cannot be read: ${message}`, { cause: error });
  }
}

/**
 * What suggests that this process is one of several.
 *
 * @param {Record<string, string | undefined>} env
 * @param {() => boolean} isClusterWorker
 * @returns {string | null}
 */
function signOfSeveralInstances(env, isClusterWorker) {
  if (env.KUBERNETES_SERVICE_HOST) return "it runs in Kubernetes (KUBERNETES_SERVICE_HOST is set)";
  if (env.NODE_UNIQUE_ID || isClusterWorker()) return "it is a worker of node:cluster";
  if (env.NODE_APP_INSTANCE) return "it runs under PM2 (NODE_APP_INSTANCE is set)";
  return null;
}

module.exports = { discover, isCluster, isOurs, signOfSeveralInstances };
