// `whenleader serve` on every store: two servers agree, and a restart loses nothing.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import apiServer from "./support/api-server.js";
import { isMissing, Server, serverProgram } from "./support/servers.mjs";
import { NEEDED, nameOf, STORES } from "./support/stores.mjs";

const { ApiServer } = apiServer;
const RESOURCE = "krn:app:x";
/** Long enough for any store to hold, and short enough to be waited for; an object store takes its time. */
const leaseOf = (kind) => ({ s3: 8, etcd: 6 })[kind] ?? 3;
/** In milliseconds: less than half of it. */
const shortLeaseOf = (kind) => (kind === "s3" ? 4_000 : (STORES[kind].shortest ?? 500));

const kinds = Object.keys(STORES).filter((kind) => NEEDED.includes(kind) || serverProgram(kind));

describe("whenleader serve", { concurrency: 2 }, () => {
  for (const kind of kinds) {
    test(`on ${nameOf(kind)}, two servers agree, and one that is killed loses nothing`, async (t) => {
      if (isMissing(kind, `whenleader serve on ${nameOf(kind)}`)) return;
      const store = await Server.start(kind);
      t.after(() => store.stop());
      const lease = leaseOf(kind);
      const url = STORES[kind].url(store, store.port);
      const args = ["--store", url, "--lease", `${lease}s`];
      const first = await ApiServer.start(t, { args });
      const second = await ApiServer.start(t, { args });
      const a = await first.checkIn("a", RESOURCE);
      assert.equal(a.leader, true);
      for (let round = 0; round < 4; round++) {
        const [one, other] = round % 2 === 0 ? [second, first] : [first, second];
        const denied = await one.checkIn("b", RESOURCE);
        assert.deepEqual(
          [denied.leader, denied.current_leader, denied.token],
          [false, "a", a.token],
        );
        const renewed = await other.checkIn("a", RESOURCE);
        assert.deepEqual([renewed.leader, renewed.token], [true, a.token]);
      }
      await first.kill();
      await first.restart();
      assert.equal((await first.checkIn("b", RESOURCE)).leader, false);
      const renewed = await first.checkIn("a", RESOURCE);
      assert.deepEqual([renewed.leader, renewed.token], [true, a.token], "the same term");

      const release = { id: "a", resources: [RESOURCE] };
      const { body } = await second.post("/leader/release", release);
      assert.deepEqual(body.resources, [{ resource: RESOURCE, released: true }]);
      const b = await first.checkIn("b", RESOURCE);
      assert.ok(b.leader && b.token > a.token);
      assert.equal((await second.checkIn("a", RESOURCE)).leader, false);

      // A server that lends shorter leases, as after a change of --lease, shortens none that was lent, however it
      // is asked: whatever it remembers, by whoever has a session, and by whoever has none.
      const short = await ApiServer.start(t, {
        args: ["--store", url, "--lease", `${shortLeaseOf(kind)}ms`],
      });
      const [old, own] = ["krn:app:old", "krn:app:own"];
      assert.equal((await short.checkIn("b", old)).leader, true);
      await second.post("/leader/release", { id: "b", resources: [old] });
      const plain = await first.checkIn("a", old);
      const session = await first.checkIn("a", own, { session: "s", after: 0 });
      assert.deepEqual([plain.leader, session.leader], [true, true]);
      const before = performance.now();
      // Of these answers nobody hears.
      assert.equal((await short.checkIn("b", RESOURCE)).leader, true);
      assert.equal((await short.checkIn("a", old)).token, plain.token, "one term goes on");
      assert.ok((await short.checkIn("a", own, { session: "s" })).token > session.token);
      while (performance.now() - before < lease * 600) {
        for (const resource of [RESOURCE, old, own]) {
          const { leader } = await short.checkIn("c", resource);
          assert.equal(leader, false, `its leader was told more before: ${resource}`);
        }
        await sleep(100);
      }
      assert.equal((await first.checkIn("b", RESOURCE)).leader, true);

      // Whoever does not check in is followed, by either server, and not before its lease has ended.
      const begun = performance.now();
      let next = await second.checkIn("a", RESOURCE);
      while (!next.leader && performance.now() - begun < 30_000) {
        await sleep(100);
        next = await second.checkIn("a", RESOURCE);
      }
      assert.ok(next.leader && next.token > b.token);
      assert.ok(performance.now() - begun > lease * 800);
    });
  }
});
