"""Days of data: `{day}` in data.train, which days there are, and the conf of one of them.

A day is a name. When it is a date (2024-01-31 or 20240131) days are in the order of the calendar
and a day's number is its date's; else they are in the order of their texts, in which numbers
count as numbers (day_2 before day_10), and their numbers go up from 1.
"""

import glob
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from tnctl import files
from tnctl.data import arrivals
from tnctl.data.day_records import is_day
from tnctl.data.sources import DAY, Source, row_range
from tnctl.errors import Failure, UserError, quoted, refuse_if
from tnctl.progress import say
from tnctl.schema import Conf, Data

DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{8}")
PIECES = re.compile(r"(\*\*/|\*+|\?|\[[^\]]+\]|\{day\})")
RANGE = ".."
NAMED = 5  # days that a message names
LONGEST_RANGE = 100_000  # days


@dataclass(frozen=True)
class Days:
    """The days that data.days selects from data.train, each list in order.

    `there` have files. `absent` should be among them and have none. `later` would come after all
    that are there.
    """

    there: list[str]
    absent: list[str]
    later: list[str]


def daily(conf: Conf) -> bool:
    """Whether the conf is of daily training: data.train has {day}. Checks the keys beside it.

    Raises UserError for keys that do not go together.
    """
    data = conf.data
    if not any(DAY in name for name in _names(data)):
        refuse_if(
            data.days is not None,
            f"data.days is for daily training: put {DAY} into data.train, in the place of the "
            f"day's name. Received: data.train={data.train}",
        )
        return False
    for name in _names(data):
        refuse_if(
            DAY not in name,
            f"data.train has {DAY} in some of its names, and {name} would be trained with every "
            f"day. Put {DAY} into all, or leave it out",
        )
    refuse_if(
        data.format == "generated",
        f"data.format=generated has no days: leave {DAY} out of data.train, or take data=arrivals",
    )
    if data.is_generated:
        first = conf_of_day(conf, arrivals.FIRST_DAY.isoformat())
        row_range(first.data, "train")  # for its errors
    refuse_if(
        data.prepared is not None,
        f"data.prepared is of one data, and {DAY} in data.train of one after the other. Leave "
        "data.prepared out for daily training",
    )
    for split in ("validation", "test"):
        value = getattr(data, split)
        refuse_if(
            DAY in str(value),
            f"{DAY} is for data.train alone: every day is evaluated before it is trained. "
            f"Leave data.{split} out, or name files that stay. Received: {value}",
        )
    refuse_if(
        conf.optimizer.updates == "all",
        "optimizer.updates=all makes every row before the first step, and each day brings new ids. "
        "Take updates=touched for daily training",
    )
    _wanted(data.days)  # for its errors
    return True


def _names(data: Data) -> list[str]:
    """The texts of data.train."""
    spec = data.train
    if isinstance(spec, Mapping):
        spec = spec.get("files")
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return [name for name in spec if isinstance(name, str)]
    return [spec] if isinstance(spec, str) else []


def folders_of_days(conf: Conf) -> list[str]:
    """Of each name of data.train with the day in it, the folder that all its files lie in."""
    folders, root = [], conf.root_of("data.train")
    for name in [] if conf.data.is_generated else _names(conf.data):
        if DAY in name:
            fixed = fixed_folder(name, root).removesuffix("/")
            folders.append(files.join(root, fixed) if fixed else root or ".")
    return folders


def conf_of_day(conf: Conf, day: str | None) -> Conf:
    """The conf with data.train of one day; None: the conf itself."""
    if day is None:
        return conf

    def filled(spec: Any) -> Any:
        if isinstance(spec, str):
            return spec.replace(DAY, day)
        if isinstance(spec, Mapping):
            return {key: filled(value) for key, value in spec.items()}
        return [filled(name) for name in spec] if isinstance(spec, Sequence) else spec

    return replace(conf, data=replace(conf.data, train=filled(conf.data.train), days=None))


def calendar(day: str) -> date | None:
    """The date that a day's name is."""
    try:
        return date.fromisoformat(day) if DATE.fullmatch(day) else None
    except ValueError:
        return None


def day_number(day: str, previous: int) -> int:
    """The number of a day that is trained after the day with number `previous` (0: the first).

    Numbers never go back: one that comes late has the number of the day before it.
    """
    named = calendar(day)
    return previous + 1 if named is None else max(named.toordinal(), previous)


def in_order(days: Iterable[str]) -> list[str]:
    """Days by calendar when all are dates, else by their texts."""
    names = sorted(days)
    return sorted(names, key=_order(names))


def comes_before(day: str, later: str) -> bool:
    """Whether a day is earlier than `later`."""
    key = _order([day, later])
    return bool(key(day) < key(later))


def _order(days: Iterable[str]) -> Callable[[str], Any]:
    """What days are compared by."""
    return calendar if all(calendar(day) is not None for day in days) else _natural


def _natural(day: str) -> tuple[Any, ...]:
    parts = re.split(r"([0-9]+)", day)
    return (*(int(part) if at % 2 else part for at, part in enumerate(parts)), day)


def days_of(conf: Conf) -> Days:
    """The days of a daily conf: of data.days, or all that have files.

    A list is looked up day by day; for all else the files are listed. Generated days are always
    there. Raises Failure when the storage cannot be read, UserError for a data.days that is
    neither list nor range.
    """
    wanted = _wanted(conf.data.days)
    if conf.data.is_generated:
        return Days(in_order(arrivals.days(wanted, LONGEST_RANGE)), [], [])
    if isinstance(wanted, list):
        days = in_order(wanted)
        urls = {day: found_urls for day in days if (found_urls := _training_files(conf, day))}
        there = list(urls)
        _refuse_shared_files(urls)
    else:
        first, last = wanted
        there = [day for day in in_order(_listed(conf)) if _within(day, first, last)]
        known = there or [""]
        days = in_order([*there, *_dates_between(first or known[0], last or known[-1], there)])
    _refuse_two_names(there)
    if not there:
        return Days([], [], days)
    absent = [day for day in days if day not in set(there)]
    return Days(
        there,
        [day for day in absent if comes_before(day, there[-1])],
        [day for day in absent if comes_before(there[-1], day)],
    )


def most_days(data: Data) -> float:
    """How many days data.days has at most, from its first to its last; infinite if it is open."""
    wanted = _wanted(data.days)
    days = in_order(wanted) if isinstance(wanted, list) else wanted
    first, last = calendar(days[0] or ""), calendar(days[-1] or "")
    if first is not None and last is not None:
        return (last - first).days + 1
    return len(days) if isinstance(wanted, list) else math.inf


def none_there(conf: Conf) -> Failure:
    """The error when no day of data.train has files."""
    data, folder = conf.data, conf.root_of("data.train") or str(Path.cwd())
    wanted = "" if data.days is None else f" (data.days={data.days})"
    return Failure(
        f"no day of data.train={data.train} is there in {folder}{files.in_folder(folder)}{wanted}. "
        "Check the name, data.root and data.days"
    )


def _wanted(value: Any) -> list[str] | tuple[str | None, str | None]:
    """Parse and check data.days: a list of days, or a range (first, last); None is an open end.

    One day is a list of one; without data.days the range is open at both ends. Raises UserError.
    """
    if value is None:
        return None, None
    if isinstance(value, list | tuple):
        days = [_name(day) for day in value]
        refuse_if(not days, "data.days is an empty list. Leave it out for all that are there")
        if twice := [day for day in days if days.count(day) > 1]:
            raise UserError(f"data.days has {twice[0]} twice. Name each day once")
        refuse_if(
            len({calendar(day) is None for day in days}) > 1,
            f"data.days has dates and other names, which have no order. Received: {value}",
        )
        _refuse_two_names(days)
        return days
    text = _name(value)
    if RANGE not in text:
        return [text]
    first, _, last = text.partition(RANGE)
    refuse_if(
        not first and not last,
        "data.days=.. has neither a first nor a last day. Leave it out for all that are there",
    )
    refuse_if(
        first and last and _order([first, last])(first) > _order([first, last])(last),
        f"data.days={text}: {first} comes after {last}. Give FIRST..LAST",
    )
    return first or None, last or None


def _name(day: Any) -> str:
    """A day of data.days as text: YAML reads 20240131 as a number."""
    if isinstance(day, bool) or not isinstance(day, str | int) or not str(day).strip():
        raise UserError(
            "data.days is a list of days, FIRST..LAST, FIRST.. or ..LAST, such as "
            f"2024-01-01..2024-01-31. Received: {day}"
        )
    name = str(day).strip()
    parts = [part for part in name.split(RANGE) if part] if RANGE in name else [name]
    for part in parts:
        if not is_day(part):
            raise UserError(
                f"data.days: {quoted(part)} cannot be the name of a day, for it has wildcards, "
                "hidden or parent folders, a scheme or what is not printable. Give names such as "
                "2024-01-31"
            )
    return name


def _refuse_two_names(days: list[str]) -> None:
    known: dict[date, str] = {}
    for day in days:
        named = calendar(day)
        if named is not None and known.setdefault(named, day) != day:
            raise UserError(
                f"{known[named]} and {day} are the same day. Keep one form of its name, or name "
                "the days in data.days"
            )


def _within(day: str, first: str | None, last: str | None) -> bool:
    is_after = first is None or not comes_before(day, first)
    return is_after and (last is None or not comes_before(last, day))


def _dates_between(first: str, last: str, there: list[str]) -> list[str]:
    """The dates from `first` to `last` that are not there, when these and all there are dates."""
    start, end = calendar(first), calendar(last)
    known = {calendar(day) for day in there}
    if start is None or end is None or None in known:
        return []
    refuse_if(
        (end - start).days > LONGEST_RANGE,
        f"data.days={first}..{last} is over {LONGEST_RANGE:,} days. Take fewer",
    )
    form = "%Y-%m-%d" if "-" in (there[0] if there else first) else "%Y%m%d"
    days = [start + timedelta(days=number) for number in range((end - start).days + 1)]
    return [day.strftime(form) for day in days if day not in known]


def _training_files(conf: Conf, day: str) -> list[str]:
    """The training files of a day; [] when any name of data.train has no file for it."""
    try:
        return Source(conf_of_day(conf, day), "train").files
    except files.AbsentError:
        return []


def _refuse_shared_files(urls: Mapping[str, Sequence[str]]) -> None:
    """Refuse files that would be trained with two days."""
    days: dict[str, str] = {}
    for day, urls_of_day in urls.items():
        for url in urls_of_day:
            if (other := days.setdefault(url, day)) != day:
                raise UserError(
                    f"{url} is of day {other} and of day {day}, for a glob follows {DAY} in "
                    f"data.train. Put into data.train what is between them, such as {DAY}.*"
                )


def _listed(conf: Conf) -> list[str]:
    """The days that every name of data.train has files of."""
    listed: list[set[str]] = []
    root = conf.root_of("data.train")
    for name in _names(conf.data):
        pattern = name.replace(f"*{DAY}", "*").replace(f"{DAY}*", "*").replace(DAY, "*")
        try:
            urls = files.expand(pattern, root)
        except files.AbsentError:
            return []
        fixed = fixed_folder(name, root)
        folders, below = files.prefixes(files.join(root, fixed)), name.removeprefix(fixed)
        place = _place_of_day(below)
        names = {url: _below(url, folders) for url in urls}
        matches = {url: match["day"] for url in urls if (match := place.search(names[url]))}
        listed.append(set(matches.values()))
        # Of names that are not dates one may begin as another does.
        within = {
            day: [url for url, named in matches.items() if named.startswith(day)]
            for day in listed[-1]
            if calendar(day) is None and any(o != day and o.startswith(day) for o in listed[-1])
        }
        for day, alike in within.items():
            of_day = _place_of_day(below.replace(DAY, glob.escape(day)))
            also = [url for url in alike if of_day.search(names[url])]
            _refuse_shared_files({**{matches[url]: [url] for url in also}, day: also})
    days = set.intersection(*listed) if listed else set()
    dates = {day for day in days if calendar(day) is not None}
    if dates and dates != days:
        others = sorted(days - dates)
        say(f"data.train: left out, for they are no dates: {in_words(others)}")
        return list(dates)
    # Names that start so are not data for any tool that writes folders of days.
    return [day for day in days if is_day(day) and not day.startswith("_")]


def fixed_folder(name: str, root: str | None = None) -> str:
    """The folders of a name before its first wildcard or day, with `/` at the end; may be empty."""
    return files.fixed_folder(name.partition(DAY)[0], root)


def _below(url: str, folders: Sequence[str]) -> str:
    """What follows one of the folders in a URL; the URL if it begins with none."""
    return next((url.removeprefix(folder) for folder in folders if url.startswith(folder)), url)


def _place_of_day(name: str) -> re.Pattern[str]:
    """What finds the day in a URL that the name as a glob matched; both without a fixed folder."""
    text, seen = "", False
    for piece in PIECES.split(name):
        if piece == DAY:
            # Beside other text a date ends where its digits do.
            text += "(?P=day)" if seen else r"(?P<day>\d{4}-\d\d-\d\d|\d{8}|[^/]+)"
            seen = True
        elif piece == "**/":
            text += "(?:.*/)?"
        elif piece.startswith("*"):
            text += ".*" if piece == "**" else "[^/]*"
        elif piece == "?":
            text += "[^/]"
        elif PIECES.fullmatch(piece):
            text += f"[^{piece[2:]}" if piece[1] in "!^" else piece
        else:
            text += re.escape(piece)
    within = ".*" if name.endswith("/") else ""  # all files of a folder
    return re.compile(f"(?:^|/){text}{within}$")


def in_words(days: Sequence[str]) -> str:
    """Days as a message names them: the first few."""
    more = f" and {len(days) - NAMED:,} more" if len(days) > NAMED else ""
    return ", ".join(days[:NAMED]) + more
