"""Tables with a planted truth, written in the formats that people have."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq

ROWS = 3000
GENRES = ["Action", "Comedy", "Drama", "Horror", "Romance", "Sci-Fi", "War"]


def planted(rows=ROWS, seed=7, first_day=0):
    """Columns of a click log as numpy arrays and lists; clicks depend on user, item and price."""
    random = np.random.default_rng(seed)
    users = random.zipf(1.4, rows) % 400
    items = random.integers(0, 150, rows)
    price = np.round(random.lognormal(2, 1, rows), 2)
    genres = [sorted(random.choice(GENRES, random.integers(1, 4), replace=False)) for _ in items]
    seconds = 1_760_000_000 + first_day * 86_400 + np.sort(random.integers(0, 86_400, rows))
    logit = (
        (users * 7919 % 13) / 4 - 2 + (items * 104_729 % 7) / 3 - 1 - np.log(price) / 2
        + np.array(["Comedy" in words for words in genres]) * 1.0
    )  # fmt: skip
    clicks = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    history = [
        [f"i{number}" for number in random.integers(0, 150, n)] for n in random.integers(0, 9, rows)
    ]
    return {
        "row": np.array([f"{random.integers(2**63):016x}" for _ in range(rows)]),
        "seconds": seconds,
        "user": np.array([f"u{user}" for user in users]),
        "item": np.array([f"i{number}" for number in items]),
        "genres": genres,
        "history": history,
        "price": price,
        "age": random.integers(18, 90, rows),
        "clicks": clicks,
    }


def write_lines(path: Path, lines) -> Path:
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def log_with_semicolons(path: Path, **options) -> Path:
    """A header, semicolons, a time, a row identifier, a constant, a column that gives it away."""
    t = planted(**options)
    times = np.datetime_as_string(t["seconds"].astype("datetime64[s]"))
    lines = ["event_id;time;user_id;item;tags;price;age;site;revenue;clicked"]
    for k in range(len(t["row"])):
        revenue = f"{t['price'][k] / 10:.3f}" if t["clicks"][k] else "0"
        price = "?" if k % 50 == 0 else t["price"][k]
        lines.append(
            f"{t['row'][k]};{times[k].replace('T', ' ')};{t['user'][k]};{t['item'][k]};"
            f"{'|'.join(t['genres'][k])};{price};{t['age'][k]};main;{revenue};{t['clicks'][k]}"
        )
    return write_lines(path, lines)


def criteo_lines(path: Path, rows=ROWS, seed=3) -> Path:
    """A label, 13 counts with gaps, 26 hashed categories; tabs, no header.

    Clicks depend on the first two categories and on the third count.
    """
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        counts = [
            "" if random.random() < 0.3 else str(int(random.lognormal(2 + k % 5, 1.5)) - (k == 1))
            for k in range(13)
        ]
        # Each value has a hash of its own, as in Criteo's files.
        values = [int(random.zipf(1.5)) % 500 for _ in range(26)]
        words = [
            ""
            if random.random() < 0.1
            else f"{(value * 40_503 + k * 977) * 2_654_435_761 % 2**32:08x}"
            for k, value in enumerate(values)
        ]
        logit = values[0] * 7919 % 13 / 4 + values[1] * 104_729 % 7 / 3 - 4
        logit += 0.3 * np.log1p(int(counts[2] or 0))
        click = int(random.random() < 1 / (1 + np.exp(-logit)))
        lines.append("\t".join([str(click), *counts, *words]))
    return write_lines(path, lines)


def ratings(path: Path, **options) -> Path:
    """Ratings from 1 to 5 with a title, genres and a time in seconds."""
    t = planted(**options)
    lines = ["userId,movieId,title,genres,rating,timestamp"]
    for k in range(len(t["row"])):
        title = f'"The {t["item"][k]}, a story (19{40 + k % 60})"'
        lines.append(
            f"{t['user'][k][1:]},{t['item'][k][1:]},{title},{'|'.join(t['genres'][k])},"
            f"{1 + t['clicks'][k] * 2 + k % 3},{t['seconds'][k]}"
        )
    return write_lines(path, lines)


def json_lines(path: Path, **options) -> Path:
    """Objects with lists, booleans, gaps and an object in an object."""
    t = planted(**options)
    return write_lines(
        path,
        (
            json.dumps(
                {"label": bool(t["clicks"][k]), "user": t["user"][k], "item": t["item"][k]}
                | {"history": t["history"][k], "genres": t["genres"][k], "mobile": k % 3 == 0}
                | ({} if k % 20 == 0 else {"price": float(t["price"][k])})
                | {"device": {"os": ("ios", "android", "web")[k % 3]}, "ts": int(t["seconds"][k])}
            )
            for k in range(len(t["row"]))
        ),
    )


def orc_table(path: Path, **options) -> Path:
    """Texts, integers, a list of structs, a struct, a list with weights and a timestamp."""
    t = planted(**options)
    baskets = [[{"id": word, "count": len(word) / 4} for word in words] for words in t["history"]]
    table = pa.table(
        {
            "click": t["clicks"],
            "user": t["user"],
            "item": t["item"],
            "basket": baskets,
            "context": [{"price": price} for price in t["price"]],
            "at": pa.array(t["seconds"] * 1_000_000, pa.timestamp("us")),
        }
    )
    pa.orc.write_table(table, str(path))
    return path


def parquet_with_lists(path: Path, rows=ROWS, seed=7) -> Path:
    """Lists, weights of a list, padded lists, vectors, dictionaries, timestamps, float ids."""
    t = planted(rows, seed)
    random = np.random.default_rng(seed - 2)
    padded = [
        [*(int(word[1:]) + 1 for word in words), *[0] * (8 - len(words))] for words in t["history"]
    ]
    table = pa.table(
        {
            "click": pa.array(t["clicks"], pa.int8()),
            "user": pa.array(t["user"]).dictionary_encode(),
            "item": t["item"],
            "clicked_items": t["history"],
            "item_scores": [[float(random.random()) for _ in words] for words in t["history"]],
            "recent": pa.array(padded, pa.list_(pa.int32())),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(random.random(4 * rows)), 4),
            "shop_id": pa.array([None if k % 40 == 0 else float(k % 60) for k in range(rows)]),
            "price": t["price"],
            "at": pa.array(t["seconds"] * 1_000_000, pa.timestamp("us")),
            "nothing": pa.nulls(rows, pa.string()),
        }
    )
    pq.write_table(table, path)
    return path


def libsvm_numbers(path: Path, rows=ROWS, seed=1) -> Path:
    """Labels 1 and -1, twelve numbers, some left out."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        numbers = random.normal(size=12)
        shown = " ".join(f"{k + 1}:{v:.4f}" for k, v in enumerate(numbers) if k % 4 or v > -1)
        lines.append(f"{'1' if numbers[1] + random.normal() > 0 else '-1'} {shown}")
    return write_lines(path, lines)


def libfm_fields(path: Path) -> Path:
    """One feature of each of three fields, in order, numbered over all fields."""
    t = planted()
    return write_lines(
        path,
        (
            f"{t['clicks'][k]} {int(t['user'][k][1:])}:1 {1000 + int(t['item'][k][1:])}:1 "
            f"{2000 + k % 7}:1"
            for k in range(ROWS)
        ),
    )


def libffm_fields(path: Path) -> Path:
    """Two fields of ids, and one of a number."""
    t = planted()
    return write_lines(
        path,
        (
            f"{t['clicks'][k]} 0:{t['user'][k][1:]}:1 1:{t['item'][k][1:]}:1 2:1:{t['price'][k]}"
            for k in range(ROWS)
        ),
    )


def bags(path: Path) -> Path:
    """Bags of many features with values."""
    random = np.random.default_rng(2)
    lines = []
    for _ in range(ROWS):
        features = np.unique(random.integers(1, 5000, random.integers(3, 20)))
        words = " ".join(f"{feature}:{random.random():.3f}" for feature in features)
        lines.append(f"{int(random.random() < 0.3)} {words}")
    return write_lines(path, lines)


def paddle_lines(path: Path) -> Path:
    """slot:value words; a slot of several values, one that is often absent."""
    t = planted()
    return write_lines(
        path,
        (
            f"click:{t['clicks'][k]} D1:{t['price'][k]} S2:{t['user'][k][1:]} "
            + " ".join(f"S3:{word[1:]}" for word in t["history"][k])
            for k in range(ROWS)
        ),
    )


def text_labels(path: Path, **options) -> Path:
    """A label of two texts, blanks after commas, question marks, no header: as UCI has tables."""
    t = planted(**options)
    return write_lines(
        path,
        (
            f"{t['age'][k]}, {t['user'][k]}, {'?' if k % 30 == 0 else t['item'][k]}, "
            f"{['Male', 'Female'][k % 2]}, {'>50K' if t['clicks'][k] else '<=50K'}"
            for k in range(len(t["row"]))
        ),
    )


def records(path: Path, rows=500, seed=7) -> Path:
    """tf.Example with lists of integers, a float and a text."""
    import tensorflow as tf

    t = planted(rows, seed)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for k in range(rows):
            lists = {
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[t["clicks"][k]])),
                "slot_1": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[int(t["user"][k][1:]) * 2**53 + 2**54])
                ),
                "items": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[word.encode() for word in t["history"][k]])
                ),
                "price": tf.train.Feature(
                    float_list=tf.train.FloatList(value=[float(t["price"][k])])
                ),
                "image": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[struct.pack("<I", k + 2**31) + b"\xff"])
                ),
            }
            example = tf.train.Example(features=tf.train.Features(feature=lists))
            writer.write(example.SerializeToString())
    return path
