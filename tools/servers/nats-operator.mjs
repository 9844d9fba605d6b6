// What an operator of NATS hands out: keys, and tokens (JWTs) that say what an account and its users may do, in a
// file of credentials for a user. The server is given the operator's and the account's token, and no password.
import { createPrivateKey, createPublicKey, randomBytes, sign } from "node:crypto";
import { writeFileSync } from "node:fs";

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/** What their keys begin with, as five bits before three of padding. */
const KINDS = { operator: 14 << 3, account: 0, user: 20 << 3 };
const SEED = 18 << 3;
/** What stands before the 32 bytes of a key in PKCS #8. */
const PKCS8 = Buffer.from("302e020100300506032b657004220420", "hex");

class Key {
  constructor(kind) {
    this.kind = kind;
    this.seed = randomBytes(32);
    const key = Buffer.concat([PKCS8, this.seed]);
    this.private = createPrivateKey({ key, format: "der", type: "pkcs8" });
  }

  get public() {
    const { x } = createPublicKey(this.private).export({ format: "jwk" });
    return written(Buffer.from([KINDS[this.kind]]), Buffer.from(x, "base64url"));
  }

  get secret() {
    const kind = KINDS[this.kind];
    return written(Buffer.from([SEED | (kind >> 5), (kind & 31) << 3]), this.seed);
  }

  /** A token about somebody. */
  says(of, claims) {
    const nats = { ...claims, type: of.kind, version: 2 };
    const iat = Math.floor(Date.now() / 1_000);
    const claim = { jti: "tests", iat, iss: this.public, name: "tests", sub: of.public, nats };
    const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
    const text = `${part({ typ: "JWT", alg: "ed25519-nkey" })}.${part(claim)}`;
    return `${text}.${sign(null, Buffer.from(text), this.private).toString("base64url")}`;
  }
}

/** Writes the user's file. Returns the settings of the server. */
export function operatorWith(file) {
  const kinds = ["operator", "account", "account", "user"];
  const [operator, system, account, user] = kinds.map((kind) => new Key(kind));
  const few = ["subs", "data", "payload", "imports", "exports", "conn", "leaf"];
  const stored = ["mem_storage", "disk_storage", "streams", "consumer"];
  const limits = Object.fromEntries([...few, ...stored].map((name) => [name, -1]));
  const ofUser = account.says(user, { subs: -1, data: -1, payload: -1 });
  const frame = (name, text) => `-----BEGIN ${name}-----\n${text}\n------END ${name}------\n\n`;
  const text = frame("NATS USER JWT", ofUser) + frame("USER NKEY SEED", user.secret);
  writeFileSync(file, text, { mode: 0o600 });
  return {
    operator: operator.says(operator, {}),
    // The server's own, without which it keeps nothing.
    system_account: system.public,
    resolver: "MEMORY",
    resolver_preload: {
      [system.public]: operator.says(system, {}),
      [account.public]: operator.says(account, { limits: { ...limits, wildcards: true } }),
    },
  };
}

function written(prefix, key) {
  const body = Buffer.concat([prefix, key]);
  const checksum = Buffer.alloc(2);
  checksum.writeUInt16LE(crc16(body));
  let [text, buffer, bits] = ["", 0, 0];
  for (const byte of Buffer.concat([body, checksum])) {
    buffer = (buffer << 8) | byte;
    for (bits += 8; bits >= 5; bits -= 5) text += ALPHABET[(buffer >> (bits - 5)) & 31];
    buffer &= 31;
  }
  return bits > 0 ? text + ALPHABET[(buffer << (5 - bits)) & 31] : text;
}

/** CRC-16/XMODEM. */
function crc16(bytes) {
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
    crc &= 0xffff;
  }
  return crc;
}
