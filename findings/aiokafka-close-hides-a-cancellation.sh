#!/usr/bin/env bash
# aiokafka 0.14.0: a task that is cancelled while it closes a client is not told so, and goes on.
#
# Expected: `task.cancel()` makes a CancelledError come out of the `await` at which the task stands, so that a loop of
# "open a client, work, close it, sleep" ends when it is cancelled, wherever it is.
# What happens: `close` cancels the client's own metadata task and awaits it under a `suppress(CancelledError)`, which also
# takes the cancellation of whoever closes. `close` returns, and the loop runs for ever; its owner, who awaits it, hangs.
# Whom it matters to: whoever cancels a task that opens clients for a moment, such as a heartbeat or a look at a lag. Compare
# `asyncio.current_task().cancelling()` before and after the close, and raise if it has grown.
set -euo pipefail
folder=$(mktemp -d); broker=""
trap '[ -z "$broker" ] || { kill -9 "$broker"; wait "$broker"; } 2> /dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" -q install aiokafka==0.14.0
cat >"$folder/pom.xml" <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>a</groupId><artifactId>b</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.1.0</version></dependency>
  </dependencies>
</project>
XML
mvn -B -q -Dstyle.color=never -f "$folder/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory="$folder/jars"
cat >"$folder/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
listeners=CLIENT://127.0.0.1:39192,CONTROLLER://127.0.0.1:39193
advertised.listeners=CLIENT://127.0.0.1:39192
listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:39193
log.dirs=$folder/data
PROPERTIES
run() { exec java -Xmx256m -XX:TieredStopAtLevel=1 -cp "$folder/jars/*" "$@"; }
(run kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAA -c "$folder/server.properties") >/dev/null 2>&1
run kafka.Kafka "$folder/server.properties" >"$folder/log" 2>&1 & broker=$!

cat >"$folder/close.py" <<'PY'
import asyncio
import contextlib
import socket
import sys
import time

from aiokafka.admin import AIOKafkaAdminClient

BROKER = "127.0.0.1:39192"


async def goes_on(turns):
    """Say whether a task that closes a client, and is cancelled after some turns of the loop, comes to its next line."""
    client = AIOKafkaAdminClient(bootstrap_servers=BROKER)
    await client.start()
    closing = asyncio.create_task(client.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    if not closing.cancel():  # it has ended before
        return False
    with contextlib.suppress(asyncio.CancelledError):
        await closing
        return True
    await client.close()
    return False


async def main():
    hidden = [turns for turns in range(6) if await goes_on(turns)]
    print("aiokafka 0.14.0: cancelled after so many turns of the loop, close returned as if it were not:", hidden)
    if not hidden:
        sys.exit("the behaviour has changed")


for _ in range(240):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", 39192), 1):
        break
    time.sleep(0.25)
asyncio.run(main())
PY
"$folder/venv/bin/python" "$folder/close.py"
