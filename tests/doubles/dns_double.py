"""A DOUBLE of a name server: a few records over UDP, which a test changes.

    python -m tests.doubles.dns_double

prints `dns listening on 127.0.0.1:PORT`. Each line on its standard input is JSON, `[name, type, ttl, [value, ...]]`,
and replaces these records; an empty list removes the name. It answers `ok` to each, counts questions, prints the count
for the line `"count"`, and ends with its input. `null` makes it silent from then on.
"""

import json
import socket
import sys
import threading

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

Records = dict[tuple[str, str], tuple[int, list[str]]]


class Server:
    """Answers from `records`."""

    def __init__(self) -> None:
        self.records: Records = {}
        self.count = 0
        self.is_silent = False
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))

    def serve(self) -> None:
        """For ever."""
        while True:
            data, client = self.socket.recvfrom(4096)
            if not self.is_silent:
                self.socket.sendto(self._answer(data), client)

    def _answer(self, data: bytes) -> bytes:
        asked = dns.message.from_wire(data)
        question = asked.question[0]
        self.count += 1
        name, kind = question.name.to_text().rstrip("."), dns.rdatatype.to_text(question.rdtype)
        response = dns.message.make_response(asked)
        ttl, values = self.records.get((name, kind), (0, []))
        if values:
            response.answer.append(dns.rrset.from_text(question.name, ttl, "IN", kind, *values))
        else:
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response.to_wire()


def main() -> None:
    """Serve until standard input ends."""
    server = Server()
    threading.Thread(target=server.serve, daemon=True).start()
    print(f"dns listening on 127.0.0.1:{server.socket.getsockname()[1]}", flush=True)
    for line in sys.stdin:
        said = json.loads(line)
        if said == "count":
            print(server.count, flush=True)
            continue
        if said is None:
            server.is_silent = True
        else:
            name, kind, ttl, values = said
            server.records[name, kind] = (ttl, values)
        print("ok", flush=True)


if __name__ == "__main__":
    main()
