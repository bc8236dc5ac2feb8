"""A form with a file as a job's body: multipart, always the same bytes for the same fields and file.

A client draws a new boundary for every request. Ours follows from the content, so that an idempotency key finds the
same body again, and whoever has the bytes needs no header to read them.
"""

from dataclasses import dataclass
from hashlib import sha256

HEAD = b"Content-Disposition: form-data; name="
MOST_PARTS = 100
LONGEST_BOUNDARY = 70


class NotAFormError(ValueError):
    """These bytes are no form of ours."""


@dataclass(frozen=True, slots=True)
class Form:
    """Fields in their order, a name maybe more than once, and the file under `file`. Names hold no quotes or breaks."""

    fields: tuple[tuple[str, str], ...]
    filename: str
    data: bytes

    def to_bytes(self) -> bytes:
        """As multipart/form-data."""
        boundary = b"pointsman" + self._digest().encode()
        parts = [HEAD + _quoted(name) + b"\r\n\r\n" + value.encode() for name, value in self.fields]
        head = HEAD + b'"file"; filename=' + _quoted(self.filename)
        parts.append(head + b"\r\nContent-Type: application/octet-stream\r\n\r\n" + self.data)
        return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"

    @classmethod
    def from_bytes(cls, body: bytes) -> "Form":
        """The form that `to_bytes` wrote. Raises `NotAFormError`."""
        parts = body.split(b"\r\n--" + boundary_of(body), MOST_PARTS)
        if parts.pop() != b"--\r\n" or not parts:
            raise NotAFormError("no end")
        parts[0] = b"\r\n" + parts[0].partition(b"\r\n")[2]
        fields, filename, data = [], None, b""
        for part in parts:
            head, blank, content = part.partition(b"\r\n\r\n")
            if not blank or not head.startswith(b"\r\n" + HEAD):
                raise NotAFormError("a part without a head")
            names = head.removeprefix(b"\r\n" + HEAD).split(b'"')
            try:
                if len(names) > 3:
                    filename, data = names[3].decode(), content
                else:
                    fields.append((names[1].decode(), content.decode()))
            except (IndexError, UnicodeDecodeError):
                raise NotAFormError("a part that cannot be read") from None
        if filename is None:
            raise NotAFormError("no file")
        return cls(tuple(fields), filename, data)

    def _digest(self) -> str:
        digest = sha256(self.data)
        for text in (self.filename, *(each for pair in self.fields for each in pair)):
            digest.update(b"\0" + text.encode())
        return digest.hexdigest()[:48]


def boundary_of(body: bytes) -> bytes:
    """The boundary of a form, from its first line. Raises `NotAFormError`."""
    line = body[: LONGEST_BOUNDARY + 4].partition(b"\r\n")
    if not body.startswith(b"--") or not line[1]:
        raise NotAFormError("no boundary")
    return line[0].removeprefix(b"--")


def content_type(body: bytes) -> str:
    """What these bytes are sent as. Raises `NotAFormError`."""
    return f"multipart/form-data; boundary={boundary_of(body).decode('latin-1')}"


def _quoted(name: str) -> bytes:
    return b'"' + name.replace('"', "'").replace("\r", " ").replace("\n", " ").encode() + b'"'
