"""Secrets in URLs, which tnctl neither prints nor writes to any file.

A secret is the user and password of a URL (`scheme://user:password@host`), any user of http and
https, which may be a token, and the value of a parameter, in the query or the fragment, that grants
access: a password, token, key, code or signature, such as `access_token`, the `sig` of an Azure
SAS, or all parameters of a presigned URL (`X-Amz-…`, `X-Goog-…`). URLs inside of URLs
(`simplecache::https://…`) count too. docs/trust.md says what is masked and what is not.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

MASK = "***"
# Keys of a conf that name columns, or words in them: with another text the same data
# would be read otherwise.
OF_DATA = frozenset(
    ("by", "carry", "column", "columns", "cross", "delimiter", "group", "missing", "positive",
     "reference", "separator", "vocabulary", "weight", "weights")
)  # fmt: skip
# A user up to the last @ of the host's part; USER:PASSWORD is how messages and docs write one.
USER = re.compile(r"((?i:https?))?://(?!USER:PASSWORD@)([^/?#\s\"<>]*)@")
# A password that has / ? # in it, which should be percent-encoded, up to the last @ of the word. Of
# what follows a host, digits are its port, and an access point of S3 has a name with colons.
UNQUOTED = re.compile(
    r"://(?!arn:)[^/?#:\s\"<>]*:(?!:|\d{1,5}(?:\D|$))[^/?#@\s\"<>]*[/?#][^\s\"'<>]{0,1000}@"
)
_KEY = r"[^\s=&;?#/'\"<>]"
_SECRET_KEY = (
    rf"{_KEY}*(?:passw|passphrase|secret|token|signature|credential|bearer|hmac"
    rf"|(?:api|access|account|private|secret|shared|subscription)[-_.]?key){_KEY}*"
    rf"|x-(?:amz|goog|oss|cos|obs|tos)-{_KEY}+"
    r"|hdn[a-z]{1,3}|sig|key|sas|pass|pwd|auth|authorization|jwt|code|policy|key-pair-id|ticket"
    r"|delegation"
)
# The punctuation of a sentence around a URL is left to it.
_VALUE = r"(?:[^&#\s]*[^&#\s'\",:;.)\]]|[^&#\s]+)"
PARAMETER = re.compile(rf"(?<=[?&;#])(?={_KEY}+=)({_SECRET_KEY})={_VALUE}", re.I)
_MASKED_PARAMETER = re.compile(rf"(?<=[?&;#]){_KEY}+={re.escape(MASK)}(?:[&;]|(?=[#\s]|$))")
_NO_PARAMETER = re.compile(r"[?&;#](?=[#\s]|$)")
_MASKED = re.compile(rf"://{re.escape(MASK)}@|[?&;#]{_KEY}+={re.escape(MASK)}")


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
    text = UNQUOTED.sub(f"://{MASK}@", text)
    text = USER.sub(lambda url: _without_user(url[0], url[1] or "", url[2]), text)
    return PARAMETER.sub(rf"\1={MASK}", text)


def _without_user(url: str, http: str, user: str) -> str:
    return f"{http}://{MASK}@" if http or ":" in user else url


def _bare(text: str) -> str:
    text = _masked(text)
    if MASK not in text:
        return text
    text = _MASKED_PARAMETER.sub("", text.replace(f"://{MASK}@", "://"))
    return _NO_PARAMETER.sub("", text)


def is_unquoted(url: str) -> bool:
    """Whether a password in a URL has signs in it that end it for every library."""
    return UNQUOTED.search(url) is not None


def is_masked(url: str) -> bool:
    """Whether a URL has lost a secret, and so cannot be opened."""
    return _MASKED.search(url) is not None


def masked_conf(values: Mapping[str, Any]) -> Any:
    """A copy of a conf as plain values without secrets; texts of its data stay."""
    return with_texts(values, lambda _, text: masked(text))


def bare_conf(values: Mapping[str, Any]) -> Any:
    """A copy of a conf as plain values, its URLs in the form in which they are compared."""
    return with_texts(values, lambda _, text: bare(text))


def with_texts(value: Any, change: Callable[[str, str], str], key: str = "") -> Any:
    """A copy of a conf with change(key, text) in the place of each text that can be a URL.

    Texts of its data (`OF_DATA`) stay, for nobody opens them.
    """
    if isinstance(value, Mapping):
        # Settings of a recipe have other names.
        may_stay = key.split(".")[0] != "recipe"
        return {
            name: inner
            if may_stay and name in OF_DATA and not isinstance(inner, Mapping)
            else with_texts(inner, change, f"{key}.{name}".lstrip("."))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [with_texts(inner, change, f"{key}[{index}]") for index, inner in enumerate(value)]
    return change(key, value) if isinstance(value, str) else value
