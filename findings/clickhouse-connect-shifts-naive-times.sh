#!/usr/bin/env bash
# clickhouse-connect 1.12.0: a datetime without a zone comes back as another one, shifted by the zone of the client's machine.
#
# Expected: what is inserted into a column of DateTime64(3, 'UTC') is read back as it was, or a value without a zone is refused.
# What happens: on insert a naive datetime is a time of the machine's zone; on reading, the same column gives naive datetimes in UTC. In
# India midnight becomes 18:30 of the day before, and on a machine in UTC, as CI mostly is, nothing shows. With tz_mode="aware" what is read names its zone, and
# aware datetimes are kept.
# Whom it matters to: whoever writes and reads times with it on a laptop, or moves a job between machines.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check clickhouse-connect==1.12.0 chdb==4.4.0
cat >"$folder/try.py" <<'PY'
import sys
from datetime import UTC, datetime
import clickhouse_connect

client = clickhouse_connect.get_client(interface="chdb", path=sys.argv[1])
client.command("CREATE TABLE t (at DateTime64(3, 'UTC')) ENGINE = MergeTree ORDER BY at")
client.insert("t", [[datetime(2026, 1, 2)]], column_names=["at"])
naive = client.query("SELECT at FROM t").result_rows[0][0]
client.command("TRUNCATE TABLE t")
client.insert("t", [[datetime(2026, 1, 2, tzinfo=UTC)]], column_names=["at"])
aware = client.query("SELECT at FROM t", tz_mode="aware").result_rows[0][0]
print(naive.isoformat(), aware.isoformat())
PY
for zone in UTC Asia/Kolkata America/New_York; do
  seen=$(TZ=$zone "$folder/venv/bin/python" "$folder/try.py" "$folder/${zone#*/}" 2> /dev/null | tail -1)
  echo "clickhouse-connect 1.12.0, TZ=$zone: 2026-01-02T00:00:00 and 2026-01-02T00:00:00+00:00 come back as $seen"
  case "$zone" in
    UTC) expected="2026-01-02T00:00:00" ;;
    Asia/Kolkata) expected="2026-01-01T18:30:00" ;;
    *) expected="2026-01-02T05:00:00" ;;
  esac
  [ "$seen" = "$expected 2026-01-02T00:00:00+00:00" ] || { echo "the behaviour has changed"; exit 1; }
done
