"""OpenStack Swift with its S3 API in one process: a real object store for tests.

    SERVERS/bin/python swift_server.py FOLDER PORT

Run by the interpreter of scripts/test-servers' environment, which has `swift`. Serves at
127.0.0.1:PORT, keeps its data below FOLDER and prints "ready" when it answers. Access key
test:builder, secret open-sesame-4711.
"""

import sys
from array import array
from pathlib import Path

import eventlet

eventlet.monkey_patch()

from swift.account.server import AccountController  # noqa: E402
from swift.common import utils, wsgi  # noqa: E402
from swift.common.ring import RingData  # noqa: E402
from swift.common.storage_policy import reload_storage_policies  # noqa: E402
from swift.container.server import ContainerController  # noqa: E402
from swift.obj.server import ObjectController  # noqa: E402

PROXY = """\
[DEFAULT]
swift_dir = {folder}
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
[pipeline:main]
pipeline = catch_errors s3api tempauth bulk slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
node_timeout = {timeout}
conn_timeout = {timeout}
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:s3api]
use = egg:swift#s3api
auth_pipeline_check = false
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_builder = open-sesame-4711 .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
"""
# Of a connection and of an answer between the servers. Past its own, of a second or less, an object
# is stored all the same and a listing learns of it later, as no test expects: a machine may stall
# that long.
TIMEOUT_SECONDS = 60
CONTROLLERS = {"account": AccountController, "container": ContainerController}
SERVERS = CONTROLLERS | {"object": ObjectController}


def main() -> None:
    """Starts the three back ends on free ports and the proxy in front of them."""
    folder, port = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    (folder / "devices/disk").mkdir(parents=True, exist_ok=True)
    (folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = tests\n")
    proxy = PROXY.format(folder=folder, port=port, timeout=TIMEOUT_SECONDS)
    (folder / "proxy.conf").write_text(proxy)
    utils.SWIFT_CONF_FILE = str(folder / "swift.conf")
    utils.validate_hash_conf()
    reload_storage_policies()
    conf = {"devices": str(folder / "devices"), "mount_check": "false", "swift_dir": str(folder)}
    conf |= {"bind_ip": "127.0.0.1", "fallocate_reserve": "0", "disable_fallocate": "true"}
    timeouts = "container_update_timeout", "node_timeout", "conn_timeout"
    conf |= dict.fromkeys(timeouts, str(TIMEOUT_SECONDS))
    logger = utils.get_logger({"log_name": "swift"})
    for name, server in SERVERS.items():
        listener = eventlet.listen(("127.0.0.1", 0))
        write_ring(folder / f"{name}.ring.gz", listener.getsockname()[1])
        app = server(conf, logger)
        eventlet.spawn(eventlet.wsgi.server, listener, app, logger, protocol=wsgi.SwiftHttpProtocol)
    proxy = wsgi.loadapp(str(folder / "proxy.conf"), global_conf={"log_name": "proxy"})
    listener = eventlet.listen(("127.0.0.1", port), backlog=256)
    print("ready", flush=True)
    eventlet.wsgi.server(listener, proxy, logger, protocol=wsgi.SwiftHttpProtocol)


def write_ring(path: Path, port: int) -> None:
    """A ring of one replica, one partition and one device."""
    device = {"id": 0, "region": 1, "zone": 1, "weight": 1.0, "device": "disk", "meta": ""}
    device |= {"ip": "127.0.0.1", "port": port}
    device |= {"replication_ip": "127.0.0.1", "replication_port": port}
    RingData([array("H", [0])], [device], 32).save(str(path))


if __name__ == "__main__":
    main()
