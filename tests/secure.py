"""A real Kafka with SASL and TLS, and a real Valkey with users behind TLS, as a company has them."""

import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from redis import Redis

from tests.doubles import START_S, started
from tests.servers import DURABLE, a_valkey, unavailable
from tools.kafka.broker import HOST, Cluster, Login, missing

USER = "pointsman"
# What a company's own administrator leaves an application: everything but what is for administrators.
RIGHTS = ("on", "~*", "&*", "+@all", "-@admin", "-@dangerous")


@dataclass(frozen=True, slots=True)
class SecureStores:
    """Both know `USER` by one password; `ca_file` is who signed their certificates. `plain_kafka` is the back door."""

    ca_file: Path
    password: str
    kafka: str  # host:port
    redis: str  # host:port
    plain_kafka: str


@contextmanager
def secure_stores(folder: Path) -> Generator[SecureStores]:
    """Started for the caller alone."""
    if why := missing():
        unavailable(f"there is no Kafka to test on: {why}")
    authority, password = trustme.CA(), secrets.token_hex(16)
    certificate = _pem(authority.issue_cert(HOST, "localhost"), folder / "server.pem")
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    cluster = Cluster(folder / "kafka", login=Login(certificate, USER, password))
    with a_valkey(config=DURABLE) as valkey:
        with Redis.from_url(valkey.connection_url) as redis:
            redis.execute_command("ACL", "SETUSER", USER, f">{password}", *RIGHTS)
            redis.execute_command(
                "ACL", "SETUSER", "default", "resetkeys", "resetchannels", "-@all", "+ping", "+shutdown"
            )
            redis_port = str(redis.connection_pool.connection_kwargs["port"])
        try:
            cluster.start()
            with started(
                [sys.executable, "-m", "tests.tls_front", str(certificate), redis_port], within=START_S
            ) as line:
                redis_place = line.split()[-1]
                yield SecureStores(
                    folder / "ca.crt", password, cluster.secure_bootstrap, redis_place, cluster.bootstrap
                )
        finally:
            cluster.stop(hard=True)


def _pem(certificate: trustme.LeafCert, path: Path) -> Path:
    """Its key as Kafka reads one, then the chain."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
    kind = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    path.write_bytes(pem + b"".join(each.bytes() for each in certificate.cert_chain_pems))
    return path
