"""What Hydra and OmegaConf raise, as one line that names the key and the way out."""

import difflib
import re
from collections.abc import Iterable

from tnctl import schema, shipped
from tnctl.errors import UserError, did_you_mean

TYPES = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
HINT = "`tnctl train --help` lists every key."
SHOWN_KEYS = 4


def explained(error: Exception, overrides: list[str]) -> Exception:
    """A UserError in one line for what Hydra and OmegaConf raise; other errors as they are."""
    import yaml
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(error, OverrideParseException):
        return UserError(
            f"cannot read the argument {error.override}. Give key=value; a value with blanks or "
            "any of ,{}[]()# goes in quotes: \"key='value'\""
        )
    if isinstance(error, yaml.YAMLError):
        return UserError(f"the conf is not YAML: {error}")
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return error
    cause = error.__cause__
    text = str(error) + ("\n" + str(cause) if isinstance(cause, OmegaConfBaseException) else "")
    return _of_a_group(text) or _of_a_key(text, overrides) or _of_a_value(text, overrides)


def _of_a_group(text: str) -> UserError | None:
    """A choice that a group of confs does not have."""
    if not (found := re.search(r"Could not find '(.+?)/([^/']+)'", text)):
        return None
    options = re.findall(r"^\t(?!provider=)(\S+)", text, re.M)
    if found[1] == "recipe":
        options = sorted({*options, *shipped.recipes()})
    return UserError(f"no {found[1]} '{found[2]}'. {did_you_mean(found[2], options)}")


def _of_a_key(text: str, overrides: list[str]) -> UserError | None:
    """A key that is not there, is there already, or takes no value."""
    full = next(iter(re.findall(r"full_key: (\S+)", text)), "")
    if found := re.search(r"An item is already at '(\S+?)'", text):
        return UserError(f"{found[1]} is a key already: leave the + out")
    if found := re.search(r"Could not (?:override|append)[^']*'(\S+?)'", text):
        return unknown(found[1])
    if found := re.search(r"Could not delete from config\. '(\S+?)'", text):
        return UserError(f"the conf has no {found[1]}; --cfg job shows what it has")
    if found := re.search(r"(?:Key|key) '(\S+)' (?:is )?not in", text):
        return unknown(full or found[1])
    if found := re.search(r"Ambiguous value for argument '(.*?)=(.*)'", text):
        return UserError(f"{found[1]}={found[2]} has several values. {one_each(found[1])}")
    merged = re.search(r"(?:override|merging override) \+*([\w.]+)", text)
    if "Invalid type assigned" in text or "Cannot assign" in text:
        return branch_error(full or (merged[1] if merged else ""), overrides)
    return None


def _of_a_value(text: str, overrides: list[str]) -> UserError:
    """A value of another type than the key's, or whatever else there is."""
    key = next(iter(re.findall(r"full_key: (\S+)", text)), "")
    if not key and (found := re.search(r"merging override \+*([\w.]+)", text)):
        key = found[1]
    given = next((one for one in overrides if one.lstrip("+").startswith(f"{key}=")), "")
    value = r"Value '(.*?)'(?: of type '[^']*')?"
    if found := re.search(rf"{value} could not be converted to (\w+)", text):
        wanted = TYPES.get(found[2], found[2])
        return UserError(f"{key} must be {wanted}. Received: {given or f'{key}={found[1]}'}")
    if found := re.search(rf"{value} is not a valid (bool)", text):
        return UserError(f"{key} must be {TYPES[found[2]]}. Received: {key}={found[1]}")
    if "is not a ListConfig" in text:
        received = f". Received: {given}" if given else ""
        return UserError(f"{key} is a list: give it as {key}=[value,value]{received}")
    if "is not Optional" in text:
        return UserError(f"{key} needs a value, and null is none. Leave it out for the default")
    if found := re.search(r"UserError raised while resolving interpolation: (.*)", text):
        return UserError(found[1])  # of ${required:KEY}
    return UserError(" ".join(text.split("\n")[:2]))


def one_each(key: str) -> str:
    return f"Give -m to train once for each; a list is written {key}=[value,value]"


def branch_error(key: str, overrides: list[str]) -> UserError:
    """One value for what holds keys."""
    keys = [known for known in schema.keys_like(key) if known.startswith(f"{key}.")]
    if key in schema.branches():
        return UserError(f"{key} takes no value, its names do. Add one with +{keys[0]}=…")
    if not keys:
        return unknown(key)
    received = next((one for one in overrides if one.lstrip("+").startswith(f"{key}=")), "")
    more = ", …" if len(keys) > SHOWN_KEYS else ""
    return UserError(
        f"{key} takes no value, its keys do: {', '.join(keys[:SHOWN_KEYS])}{more}"
        + (f". Received: {received}" if received else "")
    )


def unknown(key: str) -> UserError:
    """A key that is not there, with the nearest known one, or the way to add what it names."""
    known = set(schema.keys_like(key)) | {"data", "recipe"}
    for branch in schema.branches():
        if key.startswith(f"{branch}.") and any(
            one == key or one.startswith(f"{key}.") for one in known
        ):
            name = ".".join(key.split(".")[: branch.count(".") + 2])
            return UserError(
                f"the conf has no {name}; --cfg job shows what it has. Add it with +{key}=…"
            )
    return UserError(f"no key '{key}'. {did_you_mean(key, known) if near(key, known) else HINT}")


def has_no_setting(recipe: str, setting: str, known: Iterable[str]) -> UserError:
    """A setting that a recipe does not take."""
    choices = [f"recipe.{one}" for one in known]
    return UserError(
        f"no key 'recipe.{setting}': recipe {recipe} has no setting '{setting}'. "
        f"{did_you_mean(f'recipe.{setting}', choices)}"
    )


def near(key: str, known: set[str]) -> bool:
    return bool(difflib.get_close_matches(key, known, n=1, cutoff=0.6))
