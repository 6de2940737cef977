"""The files that `tnctl init` reads of daily training: a name with {day} in the day's place."""

import os
from collections.abc import Sequence

from tnctl import files, schema
from tnctl.data.days import conf_of_day, daily, days_of, fixed_folder, in_words, none_there
from tnctl.data.sources import DAY, files_of
from tnctl.errors import Failure, refuse_if
from tnctl.starting.named_files import NamedFiles, without_empty

DAYS_READ = 4  # the last ones


def named_days(words: Sequence[str]) -> NamedFiles:
    """The training files of the last days of a name with {day}, and the name itself.

    Raises `Failure` when no day is there, and `UserError` for several names.
    """
    refuse_if(
        len(words) > 1,
        f"with {DAY} give one name, whose files are one table: tnctl init 'clicks-{DAY}.csv'",
    )
    [word] = words
    if files.local_path(word) is not None and "://" not in word:
        word = os.path.normpath(word) + "/" * word.endswith("/")
    folder = fixed_folder(word)
    root = folder.rstrip("/") or ("/" if folder else None)
    pattern = word[len(folder) :]
    conf = schema.from_values(
        {
            "recipe": {"name": "lr"},
            "output": "none",
            "slots": {"any": {}},
            "data": {"root": root, "train": pattern, "label": {"column": "any"}},
        }
    )
    daily(conf)  # for its errors
    days = days_of(conf).there
    if not days:
        raise none_there(conf)
    read = days[-DAYS_READ:]
    day_of = {url: day for day in read for url in files_of(conf_of_day(conf, day), "train")}
    filled, empty = without_empty((url, files.size(url)) for url in day_of)
    names = [url.removeprefix(files.join(root, "")) for url in filled]
    if not names:
        raise Failure(f"{word} has only empty files on {in_words(read)}. Name days with rows")
    named = NamedFiles(root, {"train": names}, names, days=days, pattern=pattern, day_of=day_of)
    named.empty = empty
    last = read[0] if len(read) == 1 else f"{read[0]} to {read[-1]}"
    named.evidence["train"] = (
        f"{len(days):,} day{'s'[: len(days) != 1]}, of which {last} were read; each is evaluated "
        "before it is trained"
    )
    return named
