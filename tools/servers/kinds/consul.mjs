// Consul, as Debian had it last.
import { answers } from "../launcher.mjs";
import { bringDeb, onPath, unpacked } from "../programs.mjs";

export const consul = {
  name: "Consul",
  program: "consul",
  cure: "install Consul, so that consul is on the PATH",
  ports: 3,
  find: (env) => onPath("consul", env),
  brought: () => unpacked("consul-bullseye", "usr/bin/consul"),
  bring: () => bringDeb("consul", "usr/bin/consul", "bullseye"),

  async start({ launcher, program, ports: [port, server, gossip], flags }) {
    const command = [
      ...[program, "agent", "-server", "-bootstrap-expect=1", `-data-dir=${launcher.in("data")}`],
      ...["-node=tests", "-bind=127.0.0.1", "-client=127.0.0.1", `-http-port=${port}`],
      ...[`-server-port=${server}`, `-serf-lan-port=${gossip}`, "-serf-wan-port=-1"],
      ...["-dns-port=-1", "-grpc-port=-1", "-hcl=performance { raft_multiplier = 1 }"],
      ...["-hcl=disable_update_check = true", ...flags],
    ];
    const url = `http://127.0.0.1:${port}`;
    // It elects itself, and then answers those who ask for what is agreed upon.
    const ready = () => answers(`${url}/v1/kv/none?consistent`, 404);
    await launcher.start("server", { command, ready });
    return { told: { url } };
  },
};
