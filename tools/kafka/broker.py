"""Gets, starts and stops a real Apache Kafka on 127.0.0.1. Needs Java 17 (and Maven once); no Python packages."""

import argparse
import base64
import contextlib
import ctypes
import itertools
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import again

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / ".tools" / "kafka"
LIB = HOME / "lib"
FETCHED = HOME / ".fetched"
RUNNING = HOME / "run"

HOST = "127.0.0.1"
FIRST_PORT = 9092
# No kernel gives these to whoever names none; 10,000 above each is as free, where a cluster of Valkey has its bus.
FIRST_FREE, LAST_FREE, TRIES = 12_000, 21_999, 10_000
START_S = 90.0  # three brokers on two busy cores have taken 30
STOP_S = 15.0
JAVA = ("java", "-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class KafkaToolError(Exception):
    """Kafka cannot be had or does not start; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Login:
    """A second door, with TLS and a password. `certificate` is PEM: the key as PKCS 8, then its chain."""

    certificate: Path
    username: str
    password: str


@dataclass(slots=True)
class Broker:
    """One node of a cluster: broker and controller in one process."""

    node: int
    port: int
    controller_port: int
    directory: Path
    secure_port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the process printed."""
        return self.directory / "broker.log"

    @property
    def data(self) -> Path:
        """Where its topics lie."""
        return self.directory / "data"


class Cluster:
    """One broker or three, with their data in `directory`.

    Its processes end with this one, where the main thread started them.
    """

    def __init__(
        self, directory: Path, *, brokers: int = 1, port: int = 0, login: Login | None = None, lib: Path = LIB
    ) -> None:
        """`port` is the first broker's, the others follow it; 0 takes free ones. `login` opens the second door."""
        self._login = login
        free = free_ports(3 * brokers)
        ports = [port + index for index in range(brokers)] if port else free[:brokers]
        self.brokers = [
            Broker(index + 1, ports[index], controller_port, directory / f"broker-{index + 1}", secure_port)
            for index, (controller_port, secure_port) in enumerate(
                zip(free[brokers : 2 * brokers], free[2 * brokers :], strict=True)
            )
        ]
        self._lib = lib

    @property
    def bootstrap(self) -> str:
        """What clients connect to."""
        return ",".join(f"{HOST}:{broker.port}" for broker in self.brokers)

    @property
    def secure_bootstrap(self) -> str:
        """What clients with a login connect to."""
        return ",".join(f"{HOST}:{broker.secure_port}" for broker in self.brokers)

    def start(self, timeout_s: float = START_S) -> None:
        """Return once topics can be created and groups can be joined; raise `KafkaToolError` otherwise."""
        why = missing(self._lib)
        if why:
            raise KafkaToolError(why)
        try:
            self._format()
            for index in range(len(self.brokers)):
                self._launch(index)
            self.wait_until_ready(timeout_s)
        except BaseException:
            self.stop(hard=True)
            raise

    def stop(self, *, hard: bool = False) -> None:
        """End all processes, within `STOP_S` and a moment."""
        alive = [broker.process for broker in self.brokers if broker.process is not None]
        for process in alive:
            process.send_signal(signal.SIGKILL if hard else signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for process in alive:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for broker in self.brokers:
            broker.process = None

    def kill(self, index: int) -> None:
        """End one broker as a power cut would: SIGKILL."""
        process = self.brokers[index].process
        if process is not None:
            process.kill()
            process.wait()
            self.brokers[index].process = None

    def restart(self, index: int, timeout_s: float = START_S) -> None:
        """Start a broker that was killed, with the data it has, and wait until the cluster is ready."""
        self.relaunch(index)
        self.wait_until_ready(timeout_s)

    def relaunch(self, index: int) -> None:
        """Start a broker that was killed, with the data it has; it is not ready yet."""
        if self.brokers[index].process is None:
            self._launch(index)

    def wait_until_ready(self, timeout_s: float = START_S) -> None:
        """An open port does not do: for a second or two behind it, no group can be joined."""
        deadline = time.monotonic() + timeout_s
        for broker in self.brokers:
            while broker.process is not None and not finds_a_coordinator(broker.port):
                if broker.process.poll() is not None:
                    raise KafkaToolError(f"Kafka ended with code {broker.process.returncode}:\n{tail(broker.log)}")
                if time.monotonic() > deadline:
                    raise KafkaToolError(f"Kafka was not ready after {timeout_s:.0f} s:\n{tail(broker.log)}")
                time.sleep(0.1)

    def elect_preferred_leaders(self) -> None:
        """Ask for each partition's first replica to lead it again, as after a restart somebody else does.

        All brokers are asked: one that does not lead the controllers was seen to answer with nothing, and do nothing.
        """
        body = struct.pack(">hhih", 43, 0, 1, -1) + struct.pack(">ii", -1, 30_000)  # ElectLeaders, of all topics
        for broker in self.brokers:
            if broker.process is None:
                continue
            with socket.create_connection((HOST, broker.port), timeout=5) as connection:
                connection.settimeout(30)
                connection.sendall(struct.pack(">i", len(body)) + body)
                if len(connection.recv(64)) < 8:
                    raise KafkaToolError("a broker did not answer to an election of leaders")

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(b"P" + uuid.uuid4().bytes[1:]).rstrip(b"=").decode()  # no leading dash
        formatting = []
        for broker in self.brokers:
            broker.directory.mkdir(parents=True, exist_ok=True)
            settings = broker.directory / "server.properties"
            settings.write_text(self._settings(broker), encoding="ascii")
            command = ("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(settings), *self._users())
            formatting.append((broker, self._java(broker, command)))
        for broker, process in formatting:
            if process.wait(START_S) != 0:
                raise KafkaToolError(f"Kafka's storage could not be formatted:\n{tail(broker.log)}")

    def _launch(self, index: int) -> None:
        broker = self.brokers[index]
        broker.process = self._java(broker, ("kafka.Kafka", str(broker.directory / "server.properties")))

    def _java(self, broker: Broker, command: Sequence[str]) -> subprocess.Popen[bytes]:
        logging = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
        with broker.log.open("ab") as log:
            return subprocess.Popen(
                [*JAVA, logging, "-cp", f"{self._lib}/*", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=broker.directory,
                preexec_fn=end_with_parent(),  # noqa: PLW1509  (one system call, made ready before)
            )

    def _settings(self, broker: Broker) -> str:
        copies = min(3, len(self.brokers))
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": broker.node,
            "controller.quorum.voters": ",".join(f"{each.node}@{HOST}:{each.controller_port}" for each in self.brokers),
            "listeners": f"PLAINTEXT://{HOST}:{broker.port},CONTROLLER://{HOST}:{broker.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{broker.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": broker.data,
            "default.replication.factor": copies,
            "min.insync.replicas": max(1, copies - 1),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 3,  # with the default of 50 the first commit is slow
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": max(1, copies - 1),
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
        }
        if self._login is not None:
            door = f"SASL_SSL://{HOST}:{broker.secure_port}"
            added = {"listeners": door, "advertised.listeners": door}
            added["listener.security.protocol.map"] = "SASL_SSL:SASL_SSL"
            settings |= {name: f"{settings[name]},{value}" for name, value in added.items()} | _door(self._login)
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _users(self) -> tuple[str, ...]:
        if self._login is None:
            return ()
        name, password = self._login.username, self._login.password
        return tuple(
            word
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for word in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
        )


def _door(login: Login) -> dict[str, object]:
    plain, scram = (f"org.apache.kafka.common.security.{name}LoginModule" for name in ("plain.Plain", "scram.Scram"))
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{plain} required user_{login.username}="{login.password}";',
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{scram} required;",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{scram} required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": login.certificate,
        "ssl.client.auth": "none",
    }


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody has, and that nobody else is given here for as long as this process runs.

    Seconds may go by until a server takes its own. They are below those that a kernel hands out by itself, and a UDP
    socket on the same number keeps each from all who ask here as well; it does not keep the server from it.
    """
    dice = random.SystemRandom()  # no test's seed
    tried = (dice.randint(FIRST_FREE, LAST_FREE) for _ in range(TRIES))
    found = list(itertools.islice(filter(_is_kept, tried), count))
    if len(found) < count:
        raise KafkaToolError(f"there are not {count} free ports between {FIRST_FREE} and {LAST_FREE}")
    return found


def _is_kept(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mark, socket.socket() as server:
        try:
            mark.bind((HOST, port))
            server.bind((HOST, port))
        except OSError:
            return False
        mark.detach()  # open until this process ends
    return True


def missing(lib: Path = LIB) -> str:
    """What a start from the jars lacks on this machine; empty when nothing."""
    if shutil.which("java") is None:
        return "Java is not on the PATH: install a Java 17 (or set POINTSMAN_TEST_KAFKA to a broker of your own)"
    if not any(lib.glob("kafka_*.jar")):
        return "Kafka's jars are not there: run `make kafka` or `python -m tools.kafka fetch` (needs Maven)"
    return ""


def finds_a_coordinator(port: int) -> bool:
    """Whether this broker names the coordinator of a group, and so the whole cluster takes topics and groups."""
    group = b"pointsman-readiness"
    body = struct.pack(">hhihh", 10, 0, 1, -1, len(group)) + group  # FindCoordinator, version 0, no client id
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.settimeout(5)
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.recv(64)
    except OSError:
        return False
    return len(answer) >= 10 and struct.unpack(">h", answer[8:10])[0] == 0


def fetch() -> None:
    """Copy the jars that pom.xml names into `.tools/kafka/lib`; at once when they are there."""
    pom = HERE / "pom.xml"
    if FETCHED.exists() and FETCHED.stat().st_mtime >= pom.stat().st_mtime and any(LIB.glob("kafka_*.jar")):
        return
    if shutil.which("mvn") is None:
        raise KafkaToolError(
            "Maven is not on the PATH: install it, or set POINTSMAN_TEST_KAFKA to a broker of your own"
        )
    HOME.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as partial:
        lib = Path(partial) / "lib"
        command = ["mvn", "-q", "-B", "-C", "-f", str(pom), "dependency:copy-dependencies"]
        done = again.run([*command, "-DincludeScope=runtime", f"-DoutputDirectory={lib}"])
        if done.returncode != 0:
            raise KafkaToolError(f"Maven could not fetch Kafka's jars; what it printed says why\n{done.stdout}")
        shutil.rmtree(LIB, ignore_errors=True)
        lib.rename(LIB)
    FETCHED.touch()


def run(brokers: int, port: int, directory: Path | None) -> None:
    """In the foreground, until SIGTERM or SIGINT. Prints the bootstrap address when ready."""
    with contextlib.ExitStack() as cleanup:
        home = directory or Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-kafka-")))
        cluster = Cluster(home, brokers=brokers, port=port)
        signal.signal(signal.SIGTERM, _interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            cluster.start()
            cleanup.callback(cluster.stop)
            print(cluster.bootstrap, flush=True)
            while all(broker.process is not None and broker.process.poll() is None for broker in cluster.brokers):
                time.sleep(0.5)
            raise KafkaToolError("a broker ended by itself; its broker.log says why")


def start(brokers: int, port: int) -> None:
    """In the background, with fresh data; prints how to use it. One at a time."""
    if _running_pid() is not None:
        raise KafkaToolError("it runs already; `make kafka-stop` ends it")
    shutil.rmtree(RUNNING, ignore_errors=True)
    RUNNING.mkdir(parents=True)
    output = RUNNING / "output"
    command = [sys.executable, "-m", "tools.kafka", "run", "--brokers", str(brokers), "--port", str(port)]
    with output.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--dir", str(RUNNING / "data")],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=HERE.parents[1],
            start_new_session=True,
        )
    (RUNNING / "pid").write_text(str(process.pid), encoding="ascii")
    deadline = time.monotonic() + START_S + STOP_S
    while not (text := output.read_text(encoding="utf-8")).startswith(HOST):
        if process.poll() is not None:
            raise KafkaToolError(text.strip() or f"it ended with code {process.returncode}")
        if time.monotonic() > deadline:
            process.terminate()
            raise KafkaToolError("it did not become ready")
        time.sleep(0.1)
    print(f"Kafka is ready. The tests use it with:\n  export POINTSMAN_TEST_KAFKA={text.strip()}")


def stop() -> None:
    """End what `start` started; nothing when it does not run."""
    pid = _running_pid()
    if pid is None:
        return
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 2 * STOP_S
    while _running_pid() is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    if _running_pid() is not None:
        os.kill(pid, signal.SIGKILL)  # its brokers end with it
    shutil.rmtree(RUNNING, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.kafka", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="copy Kafka's jars into .tools/kafka/lib")
    commands.add_parser("stop", help="end what `start` started")
    for name, text in (("run", "in the foreground"), ("start", "in the background, until `stop`")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--brokers", type=int, choices=(1, 3), default=1)
        command.add_argument("--port", type=int, default=FIRST_PORT, help="of the first broker; 0 takes free ones")
        if name == "run":
            command.add_argument("--dir", type=Path, help="for the data; a temporary one when not given")
    chosen = parser.parse_args(arguments)
    try:
        match chosen.command:
            case "fetch":
                fetch()
            case "run":
                run(chosen.brokers, chosen.port, chosen.dir)
            case "start":
                start(chosen.brokers, chosen.port)
            case "stop":
                stop()
    except KafkaToolError as error:
        print(f"kafka: {error}", file=sys.stderr)
        return 1
    return 0


def tail(log: Path, lines: int = 20) -> str:
    """What a program printed last; empty when it printed nothing."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]) if log.exists() else ""


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _running_pid() -> int | None:
    """The process that `start` left behind, if it still is that process."""
    try:
        pid = int((RUNNING / "pid").read_text(encoding="ascii"))
        command = Path(f"/proc/{pid}/cmdline")
        if command.parent.parent.joinpath("self").exists():
            return pid if b"tools.kafka" in command.read_bytes() else None  # a zombie's is empty
        listed = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, check=False)
    except (OSError, ValueError):
        return None
    return pid if b"tools.kafka" in listed.stdout else None


def end_with_parent() -> Callable[[], None] | None:
    """On Linux: let the kernel end the child when this process dies, however it dies.

    The kernel goes by the thread that started the child, so that only the main one will do.
    """
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        return None
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    return ask
