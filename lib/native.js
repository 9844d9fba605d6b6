// The door to native.js, which the napi CLI generates. It is opened at the first need, never at import:
// loading the addon costs more than everything else here.

const { LoadError } = require("./errors.js");

/** @typedef {import("./native-types").RawNative} RawNative */

/** @type {RawNative | null} */
let loaded = null;

/** @returns {RawNative} */
function loadNative() {
  if (loaded === null) {
    try {
      // A name that the type checker does not follow: the file exists only after a build.
      const file = "../native.js";
      loaded = /** @type {RawNative} */ (require(file));
    } catch (error) {
      throw new LoadError(explain(), { cause: error });
    }
  }
  return loaded;
}

function explain() {
  const platform = platformName();
  return (
    `the native part of whenleader could not be loaded on ${platform}: ` +
    `the package @whenleader/binding-${platform} is missing or does not fit. ` +
    "Usually optional dependencies were left out (npm --omit=optional, yarn --ignore-optional), " +
    "or node_modules or the lock file came from another platform: " +
    "delete node_modules and install again on this platform. " +
    "In a checkout, build it: npm run build (needs Rust)."
  );
}

/** As npm packages of native code are named: platform, processor and, on Linux, the C library. */
function platformName() {
  const { platform, arch } = process;
  if (platform === "linux") return `${platform}-${arch}-${isMusl() ? "musl" : "gnu"}`;
  if (platform === "win32") return `${platform}-${arch}-msvc`;
  return `${platform}-${arch}`;
}

function isMusl() {
  try {
    const { report } = process;
    Object.assign(report, { excludeNetwork: true }); // Else it may wait for a name server.
    const { header } = /** @type {{ header?: { glibcVersionRuntime?: string } }} */ (
      report.getReport()
    );
    return header?.glibcVersionRuntime === undefined;
  } catch {
    return false;
  }
}

module.exports = { loadNative };
