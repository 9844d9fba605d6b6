// Kafka: one process that is broker and controller. It holds no leases; an example consumes what is in it.
import { readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { bold, run } from "../../run.mjs";
import { aptInstall, mayInstall, must, onPath, unpack, unpacked } from "../programs.mjs";

const VERSION = "3.9.1";
const WHAT = `kafka-${VERSION}`;
const JAR = `kafka_2.13-${VERSION}.jar`;

/** Its jars with all that they need, and with something that writes its log to the standard error. */
const POM = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>${VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
`;

export const kafka = {
  name: "Kafka",
  program: JAR,
  cure: "install Java and Maven, so that npm test brings it",
  store: false,
  ports: 2,
  find: () => undefined,
  brought: () => (onPath("java") ? unpacked(WHAT, JAR) : undefined),

  async bring() {
    if (!onPath("java") || !onPath("mvn")) {
      if (!mayInstall) return;
      await aptInstall("default-jre-headless", "maven");
    }
    console.log(`Bringing ${bold(WHAT)} ...`);
    await unpack(WHAT, async (aside) => {
      writeFileSync(join(aside, "pom.xml"), POM);
      const copy = ["--quiet", "--batch-mode", "dependency:copy-dependencies"];
      await must(run(["mvn", ...copy, `-DoutputDirectory=${aside}`], { cwd: aside }));
      rmSync(join(aside, "pom.xml"));
    });
    return kafka.brought();
  },

  async start({ launcher, program, ports: [port, controller] }) {
    const lines = {
      "process.roles": "broker,controller",
      "node.id": 1,
      "controller.quorum.voters": `1@127.0.0.1:${controller}`,
      listeners: `PLAINTEXT://127.0.0.1:${port},CONTROLLER://127.0.0.1:${controller}`,
      "advertised.listeners": `PLAINTEXT://127.0.0.1:${port}`,
      "controller.listener.names": "CONTROLLER",
      "log.dirs": launcher.in("data"),
      "offsets.topic.replication.factor": 1,
      "transaction.state.log.replication.factor": 1,
      "transaction.state.log.min.isr": 1,
    };
    const settings = launcher.in("server.properties");
    writeFileSync(
      settings,
      Object.entries(lines)
        .map(([name, value]) => `${name}=${value}\n`)
        .join(""),
    );
    const folder = dirname(program);
    const jars = readdirSync(folder).map((name) => join(folder, name));
    // As small and as quick to start as it gets.
    const frugal = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"];
    const java = ["java", ...frugal, "-cp", jars.join(":")];
    const id = ["-t", "MkU3OEVBNTcwNTJENDM2Qg"];
    await launcher.once("format", {
      command: [...java, "kafka.tools.StorageTool", "format", ...id, "-c", settings],
    });
    const command = [...java, "kafka.Kafka", settings];
    await launcher.start("server", { command, ready: /Kafka Server started/ });
    return { told: { url: `127.0.0.1:${port}` } };
  },
};
