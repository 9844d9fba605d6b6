// Dynalite, which answers as DynamoDB does: it is one process that takes one write of an item after the other, so
// that of those who write on one condition exactly one meets it. (Moto checks and writes in several threads.)
import { bringNpm, unpacked } from "../programs.mjs";

const PACKAGE = "dynalite@4.0.0";

export const dynamodb = {
  name: "DynamoDB",
  program: "dynalite",
  cure: "npm, so that npm test brings it",
  brought: () => unpacked(PACKAGE, ".bin/dynalite"),
  bring: () => bringNpm(PACKAGE, ".bin/dynalite"),

  async start({ launcher, program, ports: [port], flags }) {
    const command = [process.execPath, program, "--host", "127.0.0.1", "--port", port];
    // No table takes longer to appear than it must.
    const settings = ["--path", launcher.in("data"), "--createTableMs", 0, "--deleteTableMs", 0];
    await launcher.start("server", {
      command: [...command, ...settings, ...flags],
      ready: /[Ll]istening/,
    });
    return {
      told: {
        url: `http://127.0.0.1:${port}`,
        // It asks for a signature, and takes any.
        accessKey: "tests",
        secretKey: "tests",
        region: "us-east-1",
      },
    };
  },
};
