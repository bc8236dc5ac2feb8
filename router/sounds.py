"""How long a recording is, from its first bytes and its size. A guess where they do not say, and never nothing."""

import math

HEAD = 64 * 1024  # bytes
BYTES_PER_SECOND = 8_000  # where nothing is known: a compressed recording of 64 kbit/s
SLOWEST = 500  # bytes per second: no speech is coded in less, whatever a header says
MOST_CHUNKS = 100
LONGEST_S = 86_400

# By version (MPEG 1, and 2 with 2.5): the rates of layer III in kbit/s; samples per frame.
_RATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
_SAMPLES = (1152, 576)
_FREQUENCIES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}


def seconds(head: bytes, size: int) -> int:
    """Whole seconds, rounded up: 1 to `LONGEST_S`. `head` is the first bytes, up to `HEAD`, of `size` bytes in all.

    A header is believed only as far as the size allows: no recording is charged as shorter or longer than it can be.
    """
    found = _wav(head, size) or _flac(head) or _mp4(head) or _mp3(head, size) or size / BYTES_PER_SECOND
    return max(1, min(LONGEST_S, math.ceil(size / SLOWEST), math.ceil(found)))


def _wav(head: bytes, size: int) -> float | None:
    if not head.startswith(b"RIFF") or head[8:12] != b"WAVE":
        return None
    at, rate = 12, 0
    for _ in range(MOST_CHUNKS):
        name, length = head[at : at + 4], int.from_bytes(head[at + 4 : at + 8], "little")
        if len(name) < 4:
            break
        if name == b"fmt ":
            rate = int.from_bytes(head[at + 16 : at + 20], "little")
        elif name == b"data":
            # Of a recording that was still written the length is 0 or -1: what is there counts, not what it says.
            return (size - at - 8) / rate if rate else None
        at += 8 + length + length % 2
    return size / rate if rate else None


def _flac(head: bytes) -> float | None:
    if not head.startswith(b"fLaC") or len(head) < 26:
        return None
    bits = int.from_bytes(head[18:26])
    rate, samples = bits >> 44, bits & (1 << 36) - 1
    return samples / rate if rate and samples else None


def _mp4(head: bytes) -> float | None:
    at = head.find(b"mvhd") if head[4:8] == b"ftyp" else -1
    if at < 0 or len(head) < at + 36:
        return None
    start, size = (at + 24, 8) if head[at + 4] == 1 else (at + 16, 4)
    scale, length = (int.from_bytes(head[start : start + 4]), int.from_bytes(head[start + 4 : start + 4 + size]))
    return length / scale if scale and length else None


def _mp3(head: bytes, size: int) -> float | None:
    at = _after_id3(head)
    while 0 <= (at := head.find(b"\xff", at)) <= len(head) - 4:
        word = int.from_bytes(head[at : at + 4])
        version, layer = word >> 19 & 3, word >> 17 & 3
        rate, frequency = word >> 12 & 15, word >> 10 & 3
        if word >> 21 == 0x7FF and version != 1 and layer == 1 and 0 < rate < 15 and frequency < 3:
            generation = 0 if version == 3 else 1
            frames = _frames(head[at : at + 64])
            if frames:
                return frames * _SAMPLES[generation] / _FREQUENCIES[version][frequency]
            return (size - at) * 8 / (_RATES[generation][rate] * 1000)
        at += 1
    return None


def _after_id3(head: bytes) -> int:
    if not head.startswith(b"ID3") or len(head) < 10:
        return 0
    length = 0
    for byte in head[6:10]:
        length = length << 7 | byte & 0x7F
    return 10 + length


def _frames(frame: bytes) -> int | None:
    """How many frames an encoder with a varying rate says there are."""
    at = max(frame.find(b"Xing"), frame.find(b"Info"))
    if at < 0 or not int.from_bytes(frame[at + 4 : at + 8]) & 1:
        return None
    return int.from_bytes(frame[at + 8 : at + 12])
