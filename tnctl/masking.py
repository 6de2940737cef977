"""Secrets in URLs, which tnctl neither prints nor writes to any file.

A secret is the user and password of a URL (`scheme://user:password@host`), and the value of a
query parameter that grants access: a password, token, key or signature, such as `access_token`,
the `sig` of an Azure SAS, or all parameters of a presigned URL of S3 or Google (`X-Amz-…`,
`X-Goog-…`). A user name alone is none. URLs inside of URLs (`simplecache::https://…`) count too.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

MASK = "***"
# Keys of a conf that name columns, or words that stand in them: with another text the same data
# would be read otherwise.
OF_DATA = frozenset(
    ("carry", "column", "columns", "cross", "delimiter", "group", "missing", "positive",
     "reference", "separator", "vocabulary", "weight", "weights")
)  # fmt: skip
LONGEST = 4096  # characters of a password that are looked at
_NAMED = (
    r"passw|passphrase|secret|token|signature|credential"
    r"|(?:api|access|account|private|secret|shared|subscription)[-_.]?key"
)
_PARAMETER = (
    rf"[\w.%-]{{0,64}}?(?:{_NAMED})[\w.%-]{{0,64}}|x-(?:amz|goog)-[\w-]{{1,64}}"
    r"|sig|key|sas|pass|pwd|auth|authorization|jwt"
)
SECRETS = re.compile(
    # USER:PASSWORD@ is how messages and docs write the place of a password. A number behind the
    # first colon is a port unless an @ follows it, and `::` before a scheme begins another URL. A
    # password should be quoted, but may hold any sign: then all up to the last @ of the word, or
    # else of the line, is taken for it.
    r"(?<=://)(?!USER:PASSWORD@)[^\s/@:\[]*:(?!:[\w+]+://|\d+(?:[/?#\s'\",;)\]]|$))"
    rf"(?:[^\s/]{{0,{LONGEST}}}@|\S{{0,{LONGEST}}}@|[^/\n]{{0,{LONGEST}}}@)"
    # The punctuation of a sentence around a URL is left to it.
    rf"|(?<=[?&;])({_PARAMETER})=(?:[^&#\s]*[^&#\s'\",;.)\]]|[^&#\s]+)",
    re.IGNORECASE,
)
_MASKED_PARAMETER = re.compile(rf"(?<=[?&;])[\w.%-]+={re.escape(MASK)}(?:[&;]|(?=[#\s]|$))")
_NO_PARAMETER = re.compile(r"[?&;](?=[#\s]|$)")
_MASKED = re.compile(rf"://{re.escape(MASK)}@|[?&;][\w.%-]+={re.escape(MASK)}")


def masked(value: Any) -> Any:
    """A text without its secrets; of mappings, sequences and dataclasses a copy without any.

    Masking twice is masking once. Keys of mappings stay.
    """
    return _of_texts(_masked, value)


def bare(value: Any) -> Any:
    """`masked` with nothing in the places of the secrets: how URLs are compared.

    So a URL is the same with a password, with another one, masked, and without.
    """
    return _of_texts(_bare, value)


def _of_texts(change: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, str):
        return change(value) if "://" in value or "=" in value else value
    if isinstance(value, Mapping):
        return {key: _of_texts(change, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_of_texts(change, inner) for inner in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: _of_texts(change, getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **changed)
    return value


def _masked(text: str) -> str:
    return SECRETS.sub(lambda found: f"{found[1]}={MASK}" if found[1] else f"{MASK}@", text)


def _bare(text: str) -> str:
    text = _masked(text)
    if MASK not in text:
        return text
    text = _MASKED_PARAMETER.sub("", text.replace(f"://{MASK}@", "://"))
    return _NO_PARAMETER.sub("", text)


def is_masked(url: str) -> bool:
    """Whether a URL has lost a secret, and so cannot be opened."""
    return _MASKED.search(url) is not None


def masked_conf(values: dict[str, Any]) -> dict[str, Any]:
    """A conf as plain values without secrets; texts of its data (`OF_DATA`) stay as they are."""
    return _of_conf(_masked, values)


def bare_conf(values: dict[str, Any]) -> dict[str, Any]:
    """A conf as plain values, its URLs as they are compared."""
    return _of_conf(_bare, values)


def _of_conf(change: Callable[[str], str], values: Mapping[str, Any]) -> dict[str, Any]:
    # Settings of a recipe have names of its own.
    return {
        key: _of_texts(change, value) if key == "recipe" else _of_key(change, key, value)
        for key, value in values.items()
    }


def _of_key(change: Callable[[str], str], key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _of_key(change, name, inner) for name, inner in value.items()}
    return value if key in OF_DATA else _of_texts(change, value)
