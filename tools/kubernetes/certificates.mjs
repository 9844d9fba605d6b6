// What a Kubernetes API server needs to know its callers: an authority, a certificate of its own, one of an
// administrator, and the keys that sign tokens. All of it is thrown away with the server.
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";

const DAYS = "30";
const KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
/** The second address is the one that the server gives its own service. */
const SERVER_NAMES = "IP:127.0.0.1,IP:::1,IP:10.0.0.1,DNS:localhost,DNS:kubernetes.default.svc";

/** Writes ca, apiserver and admin as .crt and .key, and accounts.key with accounts.pub. */
export function makeCertificates(folder) {
  const openssl = (...args) => {
    try {
      execFileSync("openssl", args, { cwd: folder, stdio: ["ignore", "ignore", "pipe"] });
    } catch (error) {
      throw new Error(`openssl ${args[0]}: ${error.stderr || error.message}`);
    }
  };
  // As files, since not every openssl takes extensions as arguments.
  const file = (name, ...lines) => {
    writeFileSync(join(folder, name), `${lines.join("\n")}\n`);
    return name;
  };
  const config = file(
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
  openssl("req", "-config", config, "-x509", ...KEY, "-subj", "/CN=whenleader-tests", ...ca);

  const leaf = (name, subject, ...extensions) => {
    const extfile = file(`${name}.conf`, "authorityKeyIdentifier = keyid", ...extensions);
    const request = ["-keyout", `${name}.key`, "-out", `${name}.csr`];
    openssl("req", "-config", config, "-new", ...KEY, "-subj", subject, ...request);
    const signer = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", DAYS];
    const result = ["-extfile", extfile, "-in", `${name}.csr`, "-out", `${name}.crt`];
    openssl("x509", "-req", ...signer, ...result);
  };
  const names = `subjectAltName = ${SERVER_NAMES}`;
  leaf("apiserver", "/CN=kube-apiserver", "extendedKeyUsage = serverAuth", names);
  leaf("admin", "/O=system:masters/CN=certificate-admin", "extendedKeyUsage = clientAuth");

  openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "accounts.key");
  openssl("ec", "-in", "accounts.key", "-pubout", "-out", "accounts.pub");
}
