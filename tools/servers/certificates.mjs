// Certificates for servers in tests, thrown away with them.
import { execFileSync, spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";

const DAYS = "30";
const KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
/** Where servers in tests are. */
export const LOOPBACK = "IP:127.0.0.1,IP:::1,DNS:localhost";

export const hasOpenssl = () => !spawnSync("openssl", ["version"]).error;

/** Signs in a folder, where its own certificate is ca.crt. */
export class Authority {
  constructor(folder) {
    this.folder = folder;
    this.config = this.#file(
      "openssl.conf",
      "[req]",
      "distinguished_name = names",
      "x509_extensions = authority",
      "[names]",
      "[authority]",
      "basicConstraints = critical, CA:TRUE",
      "keyUsage = critical, keyCertSign",
      "subjectKeyIdentifier = hash",
    );
    const ca = ["-keyout", "ca.key", "-out", "ca.crt", "-days", DAYS];
    const subject = ["-subj", "/CN=whenleader-tests"];
    this.openssl("req", "-config", this.config, "-x509", ...KEY, ...subject, ...ca);
  }

  /** Writes <name>.crt and <name>.key. */
  sign(name, subject, ...extensions) {
    const extfile = this.#file(`${name}.conf`, "authorityKeyIdentifier = keyid", ...extensions);
    const request = ["-keyout", `${name}.key`, "-out", `${name}.csr`];
    this.openssl("req", "-config", this.config, "-new", ...KEY, "-subj", subject, ...request);
    const signer = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", DAYS];
    const result = ["-extfile", extfile, "-in", `${name}.csr`, "-out", `${name}.crt`];
    this.openssl("x509", "-req", ...signer, ...result);
  }

  /** @param {{ names?: string, usage?: string }} [how] */
  signServer(name, subject, { names = LOOPBACK, usage = "serverAuth" } = {}) {
    this.sign(name, subject, `extendedKeyUsage = ${usage}`, `subjectAltName = ${names}`);
  }

  signClient(name, subject) {
    this.sign(name, subject, "extendedKeyUsage = clientAuth");
  }

  openssl(...args) {
    try {
      execFileSync("openssl", args, { cwd: this.folder, stdio: ["ignore", "ignore", "pipe"] });
    } catch (error) {
      throw new Error(`openssl ${args[0]}: ${error.stderr || error.message}`);
    }
  }

  /** As files, since not every openssl takes extensions as arguments. */
  #file(name, ...lines) {
    writeFileSync(join(this.folder, name), `${lines.join("\n")}\n`);
    return name;
  }
}
