// `npm run build`: the set-up with the addon built for release, `npm run build:debug`: without.
import { setup } from "./setup.mjs";

await setup({ release: process.argv.includes("--release") });
