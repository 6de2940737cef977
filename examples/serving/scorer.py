"""Scores rows by a split graph and exported embeddings: TensorFlow and numpy, without tnctl.

    python scorer.py GRAPH EMBEDDINGS [BASE ...] < rows.jsonl

EMBEDDINGS is a folder with dictionaries or, of precision float32, redis://HOST:PORT/DB. If it is a
delta, the folders follow that it is based on, the full export last. A line of input is a row of raw
values, a line of output its logit. Golden rows are compared first.

It knows every kind of `ids`, lists, separators, weights, pooling by `sum`, `mean` and `sqrtn`, and
all numbers. Crosses, sequences, one-hot slots and counts (`cvm`) are refused: docs/formats/ids.md
and docs/formats/embeddings.md have a few lines of code for each.
"""

import json
import math
import re
import sys
from bisect import bisect_right
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from dictionary import Dictionary, find, mix64

KNOWN = {
    "version": [1, 2, 4],
    "ids": [
        "hash", "modulo", "vocabulary", "integer", "boundaries", "quantiles", "hour", "weekday",
        "day_of_month", "day",
    ],
    "pooling": ["sum", "mean", "sqrtn"],
    "cross": [None],
    "indicator": [False],
    "cvm": [False],
    "transform": ["none", "log1p", "standardize"],
}  # fmt: skip
EPOCH = datetime.fromisoformat("1970-01-01T00:00Z")
UNITS = {"epoch_s": 1e6, "epoch_ms": 1e3, "epoch_us": 1, "epoch_ns": 1e-3}


def open_dictionaries(*folders):
    """A function (group, id) -> row, and the golden rows, of exports, the newest first."""
    stored = {}
    for folder in folders:
        for entry in json.loads(Path(folder, "manifest.json").read_text())["groups"]:
            stored.setdefault(entry["group"], []).append(Dictionary(f"{folder}/{entry['file']}"))
    golden = Path(folders[0], "golden.jsonl").read_text().splitlines()
    return lambda group, id: np.float32(find(stored[group], id)), golden


def open_redis(url):
    """A function (group, id) -> row, and the golden rows, of an export to Redis.

    A service would ask for all ids of a request in one pipeline, with tnctl:current at its end, and
    repeat the lookup if that has changed.
    """
    import redis

    store = redis.Redis.from_url(url)
    version = "tnctl:" + store.get("tnctl:current").decode().split()[0]
    manifest = json.loads(store.get(version + ":manifest"))
    groups = {entry["group"]: entry for entry in manifest["groups"]}

    def row_of(group, id):
        entry, field = groups[group], id.to_bytes(8, "little")
        bucket = mix64(id ^ int(entry["salt"])) * entry["buckets"] >> 64
        fields = [field] + [field + bytes([part]) for part in range(1, entry["fields_per_row"])]
        parts = store.hmget(f"{version}:{group}:{bucket}", fields)
        columns = entry["linear"] + entry["width"] + 2 * entry["cvm"]
        return np.frombuffer(b"".join(parts), "<f4") if parts[0] else np.zeros(columns, np.float32)

    return row_of, store.get(version + ":golden").splitlines()


def hash_of(data, seed):
    for at in range(0, len(data), 8):
        seed = mix64(seed ^ int.from_bytes(data[at : at + 8], "little"))
    return mix64(seed ^ len(data))


def value_of(row, path):
    """The value at a key, or at names with dots between them that lead into objects."""
    if isinstance(row, list):
        return [v for part in row for v in listed(value_of(part, path))]
    if not isinstance(row, dict) or path in row or "." not in path:
        return row.get(path) if isinstance(row, dict) else None
    name, rest = path.split(".", 1)
    return value_of(row.get(name), rest)


def listed(value):
    return value if isinstance(value, list) else [value]


class Values:
    """Raw rows to ids, numbers and inputs, by serving.json."""

    def __init__(self, serving, row_of):
        for name, entry in [
            ("all", serving),
            *serving["slots"].items(),
            *serving["numeric"].items(),
        ]:
            for key, values in KNOWN.items():
                if key in entry and entry[key] not in values:
                    reason = f"{key}={entry[key]} is not known to this scorer"
                    sys.exit(f"serving.json, {name}: {reason}")
        self.serving, self.row_of = serving, row_of
        self.data, self.missing = serving["data"], set(serving["data"]["missing"])

    def parts_of(self, value, separator):  # None: all is missing
        if separator is None or not isinstance(value, str):
            return None if value is None else listed(value)
        if value in self.missing:
            return None
        parts = json.loads(value) if separator == "json" else value.split(separator)
        strip = self.data["strip"] and separator != "json"
        return [part.strip() for part in parts] if strip else parts

    def number_of(self, value):
        absent = value is None or str(value).strip() in self.missing
        return math.nan if absent else float(value)

    def time_of(self, value, column, form=None):
        text = str(value).strip()
        if value is None or text in self.missing:
            return None
        default = {"format": "iso", "offset": "+00:00"}
        entry = self.data.get("times", {}).get(column, default)
        form, zone = form or entry["format"], datetime.strptime(entry["offset"], "%z").tzinfo
        if form in UNITS:
            time = EPOCH + timedelta(microseconds=round(float(text) * UNITS[form]))
        elif form == "iso":
            text = re.sub(" ?utc$", "Z", text, flags=re.I)
            time = datetime.fromisoformat(re.sub(" (?=[-+Z])", "", text))
        else:
            if re.fullmatch("(%[YymdHMS])+", form):  # an integer loses zeros in front
                text = text.zfill(len(form) + 2 * ("%Y" in form))
            time = datetime.strptime(re.sub(r"(\D\d{6})\d+", r"\1", text), form)
        return time.astimezone(zone) if time.tzinfo else time.replace(tzinfo=zone)

    def id_of(self, slot, value):  # None: missing
        kind, size, words = slot["ids"], int(slot["size"] or 2**64), slot["vocabulary"]
        if kind in ("boundaries", "quantiles"):
            number = self.number_of(value)
            return None if math.isnan(number) else bisect_right(slot["boundaries"], number)
        if kind in ("hour", "weekday", "day_of_month", "day"):
            time = self.time_of(value, slot["column"])
            days = time and time.toordinal() - EPOCH.toordinal()
            return time and {
                "hour": time.hour, "weekday": time.weekday(), "day_of_month": time.day,
                "day": days % 2**64,
            }[kind]  # fmt: skip
        if kind == "integer":
            return int(value) % 2**64 if int(value) % 2**64 < size else None
        if kind == "vocabulary" and str(value) in words:
            return words.index(str(value))
        hashed = hash_of(str(value).encode(), slot["seed"])
        if kind == "vocabulary":
            return len(words) + hashed % slot["oov"] if slot["oov"] else None
        return hashed % size

    def ids_of(self, slot, row):  # with their weights
        value = value_of(row, slot["column"])
        parts = self.parts_of(value, slot["separator"]) or []
        several = slot["separator"] or isinstance(value, list)
        gone = self.missing | {""} if several else self.missing
        weights = [1.0] * len(parts)
        if slot["weights"]:
            weights = self.parts_of(value_of(row, slot["weights"]), slot["separator"]) or []
        ids = [None if v is None or str(v) in gone else self.id_of(slot, v) for v in parts]
        pairs = [(id, float(w)) for id, w in zip(ids, weights, strict=True) if id is not None]
        pairs = [(id, w) for id, w in pairs if str(id) != slot["padding"]]
        most = slot["max_length"] or len(pairs)
        pairs = pairs[:most] if slot["keep"] == "first" else pairs[-most:]
        absent = slot["missing"] == "value" and not pairs
        return [(int(slot["missing_id"]), 1.0)] if absent else pairs

    def pooled(self, slot, row):  # the linear weight, if rows have one, and the embedding
        pairs = self.ids_of(slot, row)
        rows = [np.float32(weight) * self.row_of(slot["group"], id) for id, weight in pairs]
        total = sum(rows, np.zeros(slot["linear"] + slot["columns"], np.float32))
        weights = np.array([weight for _, weight in pairs], np.float32)
        divisors = {"sum": 1, "mean": weights.sum(), "sqrtn": np.sqrt((weights**2).sum())}
        divisor = divisors[slot["pooling"]]
        return total / divisor if divisor > 0 else 0 * total

    def numbers_of(self, entry, row):
        columns = entry["columns"] or [entry["column"]]
        if unit := entry.get("unit"):
            first = entry.get("since_column")
            start = self.time_of(value_of(row, first), first) if first else None
            start = start if first else self.time_of(entry["since"], columns[0], "iso")
            times = [self.time_of(value_of(row, column), column) for column in columns]
            step = timedelta(**{f"{unit}s": 1})
            numbers = [(time - start) / step if time and start else math.nan for time in times]
        else:
            lists = [self.parts_of(value_of(row, name), entry["separator"]) for name in columns]
            absent = [None] * (entry["width"] // len(columns))
            numbers = [self.number_of(value) for values in lists for value in values or absent]
        numbers = np.array(numbers)
        if entry["default"] is not None:
            numbers[np.isnan(numbers)] = entry["default"]
        if entry["clip"]:
            numbers = np.clip(numbers, *entry["clip"])
        if entry["transform"] == "log1p":
            numbers = np.copysign(np.log1p(abs(numbers)), numbers)
        if entry["transform"] == "standardize":
            numbers = (numbers - np.array(entry["mean"])) / np.array(entry["deviation"])
        return np.nan_to_num(numbers)

    def inputs_of(self, row):
        inputs = {"linear": np.zeros(1, np.float32)}
        for name, slot in self.serving["slots"].items():
            cell = self.pooled(slot, row)
            linear, inputs[name] = cell[: slot["linear"]], cell[slot["linear"] :]
            if name in self.serving["linear"]["adds"]:
                inputs |= {"linear": inputs["linear"] + linear, f"{name}_linear": linear}
        numeric = self.serving["numeric"]
        return inputs | {name: self.numbers_of(entry, row) for name, entry in numeric.items()}


def scorer(graph, embeddings, *bases):
    """A function from rows to logits that has passed the golden rows."""
    import tensorflow as tf

    is_redis = embeddings.startswith(("redis://", "rediss://", "unix://"))
    opened = open_redis(embeddings) if is_redis else open_dictionaries(embeddings, *bases)
    row_of, golden = opened
    serving = json.loads(Path(graph, "serving.json").read_text())
    values = Values(serving, row_of)
    names = [entry["name"] for entry in serving["signatures"]["by_slot"]]
    signature = tf.saved_model.load(graph).signatures["by_slot"]

    def logits(rows):
        inputs = [values.inputs_of(row) for row in rows]
        batch = {name: tf.constant([each[name] for each in inputs], tf.float32) for name in names}
        return signature(**batch)["logits"].numpy()

    examples = [json.loads(line) for line in golden]
    expected = np.array([example["logits"][serving["heads"][0]] for example in examples])
    computed = logits([example["row"] for example in examples])
    wrong = np.flatnonzero(~(abs(computed - expected) <= 2e-5 * (1 + abs(expected))))
    if len(wrong):
        sys.exit(
            f"golden.jsonl: {len(wrong)} of {len(golden)} rows differ, first line {wrong[0] + 1}"
        )
    return logits


if __name__ == "__main__":
    score = scorer(*sys.argv[1:])
    for line in sys.stdin:
        print(float(score([json.loads(line)])[0]), flush=True)
