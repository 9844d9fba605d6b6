// What a Kubernetes API server needs to know its callers: an authority, a certificate of its own, one of an
// administrator, and the keys that sign tokens. All of it is thrown away with the server.
import { Authority, LOOPBACK } from "../servers/certificates.mjs";

/** The address is the one that the server gives its own service. */
const SERVER_NAMES = `${LOOPBACK},IP:10.0.0.1,DNS:kubernetes.default.svc`;

/** Writes ca, apiserver and admin as .crt and .key, and accounts.key with accounts.pub. */
export function makeCertificates(folder) {
  const authority = new Authority(folder);
  authority.signServer("apiserver", "/CN=kube-apiserver", { names: SERVER_NAMES });
  authority.signClient("admin", "/O=system:masters/CN=certificate-admin");

  const key = ["-name", "prime256v1", "-genkey", "-noout", "-out", "accounts.key"];
  authority.openssl("ecparam", ...key);
  authority.openssl("ec", "-in", "accounts.key", "-pubout", "-out", "accounts.pub");
}
