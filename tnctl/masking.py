"""Secrets in URLs, which tnctl neither prints nor writes to any file.

A secret is the user and password of a URL (`scheme://user:password@host`); a user name of http and
https that looks like a token; and the value of a parameter, in the query or the fragment, that
grants access: a password, token, key, code or signature, such as `access_token`, the `sig` of an
Azure SAS, or all parameters of a presigned URL (`X-Amz-…`, `X-Goog-…`). A user name that people
have is none, nor is the container of `abfs://container@account…`. URLs inside of URLs
(`simplecache::https://…`) count too. docs/trust.md says what is masked and what is not.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

MASK = "***"
# Keys of a conf that name columns, or words in them: with another text the same data
# would be read otherwise.
OF_DATA = frozenset(
    ("by", "carry", "column", "columns", "cross", "delimiter", "group", "missing", "positive",
     "reference", "separator", "vocabulary", "weight", "weights")
)  # fmt: skip
# How messages and docs write the place of a password; and the name of an access point of S3.
NO_USER = re.compile(r"USER:PASSWORD@|arn:aws[\w-]*:s3")
# What a password should have percent-encoded; from here on it is no part of a host.
AUTHORITY = re.compile(r"[^/?#\s\"<>]*")
# A host and its port, if any, up to the end of the authority or the punctuation of a sentence.
HOST = re.compile(r"(?:\[[^\[\]]*\]|[^:\[\]]*)(?:$|:\d{1,5}(?:(?=[/?#\"<>',;)\]}])|\.?(?=\s|$)))")
NEXT_IN_CHAIN = re.compile(r"::[\w+.-]+://")
WORD = re.compile(r"\S*")
TO_SLASH = re.compile(r"[^/\n]*")
TOKEN = re.compile(r"[\w%~+=-]{16,}|eyJ[\w.-]{13,}")  # or a JSON Web Token, which has dots
_KEY = r"[^\s=&;?#/'\"<>]+"
PARAMETER = re.compile(rf"(?<=[?&;#])({_KEY})=")
# The punctuation of a sentence around a URL is left to it.
VALUE = re.compile(r"[^&#\s]*[^&#\s'\",:;.)\]]|[^&#\s]+")
SECRET_KEY = re.compile(
    r".*(?:passw|passphrase|secret|token|signature|credential|bearer|hmac"
    r"|(?:api|access|account|private|secret|shared|subscription)[-_.]?key).*"
    r"|x-(?:amz|goog|oss|cos|obs|tos)-.+"
    r"|hdn[a-z]{1,3}|sig|key|sas|pass|pwd|auth|authorization|jwt|code|policy|key-pair-id|ticket|delegation",
    re.DOTALL,
)
SUBSCRIPTS = re.compile(r"\[.*", re.DOTALL)  # of token[] and token[0]
_MASKED_PARAMETER = re.compile(rf"(?<=[?&;#]){_KEY}={re.escape(MASK)}(?:[&;]|(?=[#\s]|$))")
_NO_PARAMETER = re.compile(r"[?&;#](?=[#\s]|$)")
_MASKED = re.compile(rf"://{re.escape(MASK)}@|[?&;#]{_KEY}={re.escape(MASK)}")
# The mask of one secret may bring another to light, where a text is no URL but made to look so.
ROUNDS = 4


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
    for _ in range(ROUNDS):
        previous, text = text, _without_parameters(_without_users(text))
        if text == previous:
            break
    return text


def _without_users(text: str) -> str:
    parts, copied = [], 0
    for start, end in _users(text):
        parts += [text[copied:start], f"{MASK}@"]
        copied = end
    return "".join(parts) + text[copied:]


def _users(text: str) -> Iterator[tuple[int, int]]:
    """Where the secret users and passwords of URLs are, each with its @, in linear time."""
    word_end = link_end = last_at = end = 0
    for separator in re.finditer("://", text):
        start = separator.end()
        if start < end or NO_USER.match(text, start):
            continue
        if start > word_end:
            word_end = WORD.match(text, start).end()  # type: ignore[union-attr]
        if start > link_end:
            following = NEXT_IN_CHAIN.search(text, start, word_end)
            link_end = following.start() if following else word_end
            last_at = text.rfind("@", start, link_end)
        end = _user_end(text, start, link_end, last_at)
        if end > start:
            yield start, end


def _user_end(text: str, start: int, link_end: int, last_at: int) -> int:
    """The end of the secret user and password after `://`, or 0 where there is none."""
    authority_end = AUTHORITY.match(text, start, link_end).end()  # type: ignore[union-attr]
    at = text.rfind("@", start, authority_end)
    host = at + 1 if at >= 0 else start
    if not HOST.match(text, host, authority_end) and ":" in text[host:authority_end]:
        # What follows the colon is no port: a password that has / ? # or spaces in it.
        if last_at > authority_end:
            return last_at + 1
        slash = TO_SLASH.match(text, authority_end).end()  # type: ignore[union-attr]
        if (after := text.rfind("@", authority_end, slash)) >= 0:
            return after + 1
    user = text[start : max(at, start)]
    of_web = text[max(0, start - 8) : start - 3].lower().endswith(("http", "https"))
    return at + 1 if ":" in user or (of_web and TOKEN.fullmatch(user)) else 0


def _without_parameters(text: str) -> str:
    parts, copied, end = [], 0, 0
    while parameter := PARAMETER.search(text, end):
        end = parameter.end()
        name = SUBSCRIPTS.sub("", unquote(parameter[1]).strip().lower())
        if SECRET_KEY.fullmatch(name) and (value := VALUE.match(text, end)):
            parts += [text[copied:end], MASK]
            copied = end = value.end()
    return "".join(parts) + text[copied:]


def _bare(text: str) -> str:
    text = _masked(text)
    if MASK not in text:
        return text
    text = _MASKED_PARAMETER.sub("", text.replace(f"://{MASK}@", "://"))
    return _NO_PARAMETER.sub("", text)


def is_unquoted(url: str) -> bool:
    """Whether a password in a URL has signs in it that end it for every library."""
    return any(re.search(r"[/?#\s]", url[start:end]) for start, end in _users(url))


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
        return [with_texts(inner, change, f"{key}[{place}]") for place, inner in enumerate(value)]
    return change(key, value) if isinstance(value, str) else value
