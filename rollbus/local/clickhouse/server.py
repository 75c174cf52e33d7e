"""A real ClickHouse server as a service, if a `clickhouse` binary is on PATH; `rollbus up` then starts that.

It gets the port and the two users of the local endpoint, with the same limits. Its data are in the folder `server`
within the endpoint's: the two do not read each other's tables.
"""

import shutil
from hashlib import sha256
from pathlib import Path
from xml.sax.saxutils import escape

from rollbus.local.clickhouse.reader_role import (
    READONLY_AT_ONCE,
    READONLY_GRANT,
    READONLY_LIMITS,
    READONLY_SETTINGS,
    READONLY_USER,
)
from rollbus.local.clickhouse.service import is_healthy
from rollbus.local.process.service import Service
from rollbus.runtime.credentials import PASSWORD, READONLY_PASSWORD, make_secrets, read_secret
from rollbus.stack_settings import HOST

CONFIG = """<clickhouse>
  <logger><console>1</console><level>warning</level></logger>
  <listen_host>{host}</listen_host>
  <http_port>{port}</http_port>
  <path>{data}/</path>
  <tmp_path>{data}/tmp/</tmp_path>
  <user_files_path>{data}/user_files/</user_files_path>
  <format_schema_path>{data}/format_schemas/</format_schema_path>
  <timezone>UTC</timezone>
  <default_profile>default</default_profile>
  <default_database>default</default_database>
  <users_config>{users}</users_config>
  <access_control_improvements>
    <settings_constraints_replace_previous>true</settings_constraints_replace_previous>
  </access_control_improvements>
</clickhouse>
"""
"""No native ports, and no logs about itself in tables, which would outgrow the data."""
USERS = """<clickhouse>
  <profiles>
    <default/>
    <rollbus_readonly>
      {limits}<readonly>1</readonly>
      <constraints>{open_to_clients}</constraints>
    </rollbus_readonly>
  </profiles>
  <quotas><default/></quotas>
  <users>{users}
  </users>
</clickhouse>
"""
USER = """
    <{name}>{password}<networks><ip>{host}</ip></networks><profile>{profile}</profile><quota>default</quota>{grants}</{name}>"""


def find_server() -> str | None:
    """The path of the binary, or None."""
    return shutil.which("clickhouse")


def server_service(*, binary: str, folder: Path, port: int, secrets: Path | None = None) -> Service:
    """The server with its configuration and data in `folder`, its passwords in `secrets`; None for no passwords."""
    return Service(
        name="clickhouse",
        command=lambda: prepare(binary, folder, port=port, secrets=secrets),
        is_healthy=lambda: is_healthy(port),
        address=f"http://{HOST}:{port}",
        ports={"clickhouse_port": port},
    )


def prepare(binary: str, folder: Path, *, port: int, secrets: Path | None) -> list[str]:
    """Write the configuration and return the command that runs the server with it."""
    data = (folder / "data").resolve()
    data.mkdir(parents=True, exist_ok=True)
    config, users = folder / "config.xml", folder / "users.xml"
    paths = {"data": escape(str(data)), "users": escape(str(users.resolve()))}
    config.write_text(CONFIG.format(host=HOST, port=port, **paths), encoding="utf-8")
    if secrets is not None:
        make_secrets(secrets)
    users.write_text(users_xml(secrets), encoding="ascii")
    return [binary, "server", f"--config-file={config.resolve()}"]


def users_xml(secrets: Path | None) -> str:
    """The two users; a password is written as its hash."""
    limits = READONLY_LIMITS | {"max_concurrent_queries_for_user": str(READONLY_AT_ONCE)}
    grants = f"<grants><query>{READONLY_GRANT.format(tables='*.*')}</query></grants>"
    accounts = (
        ("default", PASSWORD, "default", ""),
        (READONLY_USER, READONLY_PASSWORD, "rollbus_readonly", grants),
    )
    return USERS.format(
        limits="".join(f"<{name}>{value}</{name}>" for name, value in limits.items()),
        open_to_clients="".join(
            f"<{name}>{'' if largest is None else f'<max>{largest}</max>'}<changeable_in_readonly/></{name}>"
            for name, largest in (READONLY_LIMITS | dict(READONLY_SETTINGS)).items()
        ),
        users="".join(
            USER.format(
                name=user,
                password=_password(secrets and read_secret(secrets, name)),
                host=HOST,
                profile=profile,
                grants=account_grants,
            )
            for user, name, profile, account_grants in accounts
        ),
    )


def _password(password: Path | str | None) -> str:
    if not password:
        return "<password></password>"
    return f"<password_sha256_hex>{sha256(str(password).encode()).hexdigest()}</password_sha256_hex>"
