#!/usr/bin/env bash
# Kafka 4.1.0: a killed broker that is alone is not let in again before its own session has ended.
#
# Expected: where one process is broker and controller, its restart knows that the broker before it is gone, so that
# broker.session.timeout.ms, which one raises for machines that sleep or stall, costs nothing.
# What happens: after kill -9 the controller of the new process refuses the new broker as a duplicate of the old one until the old session has
# run out. With 45 s instead of the 9 s of the default, a restart takes as much longer. A broker that is asked to end says goodbye, and restarts at once.
# Whom it matters to: whoever raises the setting for a laptop or a small machine, and waits for Kafka after every crash.
set -euo pipefail
folder=$(mktemp -d); broker=""
trap '[ -z "$broker" ] || kill -9 "$broker" 2> /dev/null || true; rm -rf "$folder"' EXIT
cat >"$folder/pom.xml" <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>a</groupId><artifactId>b</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.1.0</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>2.24.3</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.24.3</version></dependency>
  </dependencies>
</project>
XML
mvn -B -q -Dstyle.color=never -f "$folder/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory="$folder/jars"
printf '%s\n' 'appender.out.type = Console' 'appender.out.name = out' 'appender.out.layout.type = PatternLayout' 'rootLogger.level = info' \
  'rootLogger.appenderRef.out.ref = out' >"$folder/log4j2.properties"
run() { exec java -Xmx256m -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile="$folder/log4j2.properties" -cp "$folder/jars/*" "$@"; }

# restart SESSION_MS SIGNAL: seconds from the second start until it serves, after the first was ended by the signal
restart() {
  local home="$folder/$1-$2" began
  mkdir -p "$home"
  cat >"$home/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
listeners=CLIENT://127.0.0.1:39092,CONTROLLER://127.0.0.1:39093
advertised.listeners=CLIENT://127.0.0.1:39092
listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:39093
log.dirs=$home/data
broker.session.timeout.ms=$1
PROPERTIES
  (run kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAA -c "$home/server.properties") >/dev/null 2>&1
  for log in first second; do
    began=$SECONDS
    run kafka.Kafka "$home/server.properties" >"$home/$log" 2>&1 & broker=$!
    until grep -q "Kafka Server started" "$home/$log"; do sleep 0.2; kill -0 "$broker"; done
    [ "$log" = second ] || { sleep 2; kill "-$2" "$broker"; wait "$broker" 2>/dev/null || true; }
  done
  seconds=$((SECONDS - began))
  kill -9 "$broker"; wait "$broker" 2>/dev/null || true; broker=""
}

restart 45000 TERM; asked=$seconds
restart 9000 KILL; default=$seconds
restart 45000 KILL; raised=$seconds
echo "Kafka 4.1.0, seconds until a restart serves: session of 45 s, asked to end: $asked; of 9 s, killed: $default; of 45 s, killed: $raised"
[ "$raised" -ge 40 ] && [ "$asked" -lt 40 ] && [ "$default" -lt 40 ] || { echo "the behaviour has changed"; exit 1; }
