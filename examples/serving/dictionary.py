"""Reads dictionaries of exported embeddings, as docs/formats/dictionary.md describes them.

    python dictionary.py ID NEWEST_DELTA.dictionary ... FULL.dictionary

prints the row of an id. Python's standard library is enough: no tnctl, and no index.
"""

import mmap
import struct
import sys
import zlib

HEADER = struct.Struct("<8sIIQQQI4BIIII")
MASK = 2**64 - 1


def mix64(x):
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & MASK
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ x >> 33


class Dictionary:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self.bytes[:8] != b"tnctldic" or len(self.bytes) < HEADER.size + 8:
            raise ValueError(f"{path}: no dictionary")
        _, version, _, self.records, _, self.salt, *rest = HEADER.unpack_from(self.bytes)
        width, linear, cvm, precision, self.delta, _, self.record, self.block, crc = rest
        if zlib.crc32(self.bytes[:60]) != crc:
            raise ValueError(f"{path}: damaged")
        if version != 1:
            raise ValueError(f"{path}: version {version} is not known")
        self.end = HEADER.size + self.records * self.record
        blocks = -(-self.records * self.record // self.block)
        if len(self.bytes) != self.end + 4 * blocks + 8:
            raise ValueError(f"{path}: damaged")
        *self.checksums, again, last = struct.unpack(f"<{blocks + 2}I", self.bytes[self.end :])
        if again != crc or zlib.crc32(self.bytes[self.end : -4]) != last:
            raise ValueError(f"{path}: damaged")
        self.linear, self.counts, self.scaled = linear, 2 * cvm, precision == 2 and width > 0
        self.float32, self.columns = precision == 0, linear + width + 2 * cvm
        weights, counts = f"{width}{'feb'[precision]}", f"{2 * cvm}f"
        rest = weights + counts if self.float32 else counts + "f" * self.scaled + weights
        self.payload = struct.Struct(f"<{linear}f{rest}")

    def verify(self):
        for number, checksum in enumerate(self.checksums):
            start = HEADER.size + number * self.block
            if zlib.crc32(self.bytes[start : min(start + self.block, self.end)]) != checksum:
                raise ValueError(f"damaged between bytes {start} and {start + self.block}")

    def find(self, id):
        """The row of an id; [] when it was removed, None when it is not there."""
        wanted = mix64(id ^ self.salt)
        low, high, least, most, tries = 0, self.records, 0, MASK, 0
        while low < high:
            middle = low + (wanted - least) * (high - 1 - low) // (most - least)
            if tries > 9:  # evenly spread hashes are found sooner
                middle = (low + high) // 2
            tries += 1
            at = HEADER.size + middle * self.record
            (id_,) = struct.unpack_from("<Q", self.bytes, at)
            if id_ == wanted:
                return self.row(at + 8)
            if id_ < wanted:
                low, least = middle + 1, id_
            else:
                high, most = middle, id_
        return None

    def row(self, at):
        if self.delta:
            if struct.unpack_from("<I", self.bytes, at)[0]:
                return []
            at += 4
        floats = list(self.payload.unpack_from(self.bytes, at))
        if self.float32:
            return floats
        first, counts = self.linear + self.counts, floats[self.linear : self.linear + self.counts]
        weights = floats[first + self.scaled :]
        if self.scaled:  # in float32
            scaled = [weight * floats[first] for weight in weights]
            weights = struct.unpack(f"{len(scaled)}f", struct.pack(f"{len(scaled)}f", *scaled))
        return [*floats[: self.linear], *weights, *counts]


def find(dictionaries, id):
    """The row of an id in deltas and a full dictionary, newest first; zeros when unknown."""
    rows = (dictionary.find(id) for dictionary in dictionaries)
    row = next((row for row in rows if row is not None), [])
    return row or [0.0] * dictionaries[0].columns


if __name__ == "__main__":
    print(find([Dictionary(path) for path in sys.argv[2:]], int(sys.argv[1])))
