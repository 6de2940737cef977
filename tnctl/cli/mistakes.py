"""What Hydra and OmegaConf raise, as one line that names the key and the way out."""

import re
from collections.abc import Iterable, Sequence

from tnctl import schema, shipped
from tnctl.errors import UserError, did_you_mean

TYPES = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
ENTRIES = "schema, _self_, the name of a conf, or {GROUP: NAME} such as {recipe: deepfm}"
SHOWN_KEYS = 4
CHOSEN = ("data", "recipe")  # groups of confs, of which a conf takes one file each
# Names of the user's with values of no fixed keys.
NAMED = {"recipe": "recipe.SETTING=value", "warm.rename": "warm.rename.OLD=NEW"}


def explained(error: Exception, overrides: list[str], spelled: Sequence[str] = ()) -> Exception:
    """A UserError in one line for what Hydra and OmegaConf raise; other errors as they are.

    `spelled` are the overrides as Hydra was told them.
    """
    import yaml
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    given = dict(zip(spelled, overrides, strict=False))
    if isinstance(error, OverrideParseException):
        argument = given.get(error.override, error.override) or "''"
        return UserError(
            f"cannot read the argument {argument}. Give "
            "key=value; a value with blanks, letters beyond a to z, or any of ,{}[]()# goes in "
            "quotes: \"key='value'\""
        )
    if isinstance(error, yaml.YAMLError):
        return UserError(not_yaml("the conf", error))
    if isinstance(error, RecursionError):
        return UserError("the conf is nested too deep, or names itself. Write it flat")
    if not isinstance(error, HydraException | OmegaConfBaseException):
        if isinstance(error, ValueError | OSError | AssertionError):  # as Hydra raises them
            return _of_an_override(overrides) or _of_the_defaults(str(error))
        return error
    cause = error.__cause__
    text = str(error) + ("\n" + str(cause) if isinstance(cause, OmegaConfBaseException) else "")
    for told, own in given.items():
        text = text.replace(f"override {told}\n", f"override {own}\n")
    return (
        _of_a_group(text, overrides)
        or _of_an_interpolation(text)
        or _of_a_key(text, overrides)
        or _of_a_value(text, overrides)
    )


def not_yaml(name: str, error: Exception) -> str:
    """Where a file is not YAML, and why."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        why = str(error).replace(' in "<unicode string>"', "")
        return f"{name} is not YAML: {why}"
    if str(mark.name).endswith(".yaml"):
        name = str(mark.name).split("/")[-1]
    why = ", ".join(one for one in (getattr(error, "context", ""), error.problem) if one)  # type: ignore[attr-defined]
    way = ". Indent with blanks" if "'\\t'" in why else ""
    return f"{name} is not YAML: line {mark.line + 1}, column {mark.column + 1}: {why}{way}"


def _of_the_defaults(text: str) -> UserError:
    """A value that Hydra takes for none of its own."""
    way = f". Entries of defaults are {ENTRIES}" if "default" in text else ""
    return UserError(f"the conf cannot be composed: {text}{way}")


def _of_an_override(overrides: list[str]) -> UserError | None:
    """An override that has no key, or is of a group or list and names none of theirs."""
    for override in overrides:
        key, equals, value = override.partition("=")
        name = key.lstrip("+~")
        if not name.split("@")[0]:
            return UserError(f"the argument {override} has no key. Give key=value")
        if equals and name in groups():
            return UserError(f"{name}={value} names none. {did_you_mean(value, _options(name))}")
        if name in ("defaults", "hydra", "schema"):
            return schema.no_key(name)
        if name.startswith("recipe.") and name.count(".") > 1:
            return UserError(f"{name} is no setting of a recipe. Give recipe.SETTING=value")
    return None


def groups() -> list[str]:
    """The groups of which tnctl ships files."""
    return sorted(one.name for one in shipped.folder("conf").iterdir() if one.name in CHOSEN)


def _options(group: str) -> list[str]:
    found = {one.stem for one in (shipped.folder("conf") / group).glob("*.yaml")}
    return sorted({*found, *shipped.recipes()} if group == "recipe" else found)


def _of_a_group(text: str, overrides: list[str]) -> UserError | None:
    """A choice that a group of confs does not have, or a group that is not there."""
    if found := re.search(r"Could not find '(.+?)/([^/']*)'", text):
        options = re.findall(r"^\t(?!provider=)(\S+)", text, re.M)
        if found[1] in CHOSEN:
            options = sorted({*options, *_options(found[1])})
        if not options:
            return UserError(f"no group '{found[1]}' of confs. {did_you_mean(found[1], groups())}")
        return UserError(f"no {found[1]} '{found[2]}'. {did_you_mean(found[2], options)}")
    if found := re.search(r"In '(.+?)': Could not load '(.+?)'", text):
        choices = ["schema", *shipped.confs()]
        return UserError(
            f"the defaults of {found[1]} name '{found[2]}', and there is no such conf. "
            f"{did_you_mean(found[2], choices)}"
        )
    if found := re.search(r"Multiple values for (\w+)", text):
        if any(one.startswith(f"+{found[1]}=") for one in overrides):
            return UserError(f"the conf has a {found[1]} already: leave the + out")
        return UserError(f"the defaults of the conf have {found[1]} twice. Leave one out")
    if found := re.search(r"force-add of config groups is not supported: '\++(\w+)=", text):
        return UserError(f"{found[1]} takes no ++. Give {found[1]}=NAME")
    if found := re.search(r"Could not (override|delete) '(.*?)'\. No match in the defaults", text):
        key = found[2].split("=")[0]
        if not key:
            return UserError("an argument has no key. Give key=value")
        if found[1] == "delete":
            return UserError(f"the defaults of the conf have no {found[2]}: leave ~{found[2]} out")
        return UserError(f"the defaults of the conf have no {key}. Add one with +{key}=NAME")
    return None


def _of_an_interpolation(text: str) -> UserError | None:
    """A `${…}` that comes to nothing."""
    key = next(iter(re.findall(r"full_key: (\S+)", text)), "a value")
    if found := re.search(r"Interpolation key '(.*?)' not found", text):
        return UserError(
            f"{key}: ${{{found[1]}}} names {schema.no_key(found[1], schema.all_keys())}"
        )
    if "Recursive interpolation" in text or "Interpolation to parent node" in text:
        return UserError(f"{key} is taken from itself by a ${{…}}. Give it a value of its own")
    if found := re.search(r"Unsupported interpolation type (\S+)", text):
        return UserError(
            f"{key}: there is no ${{{found[1]}:…}}. Take ${{oc.env:NAME}} for a variable of the "
            "environment"
        )
    if found := re.search(r"Environment variable '(.*?)' not found", text):
        return UserError(
            f"{key} needs {found[1]} of the environment, which is not set. Set it, or say what "
            f"stands for it: ${{oc.env:{found[1]},VALUE}}"
        )
    if found := re.search(r"While dereferencing interpolation '(.*?)': (.*)", text):
        holds = "null" if "'None'" in found[2] else "no text" if "to string" in found[2] else ""
        return UserError(
            f"{key}: {found[1]} is {holds or 'not what the key takes'}. Name another key"
        )
    if found := re.search(r"UserError raised while resolving interpolation: (.*)", text):
        return UserError(found[1])  # of ${required:KEY}
    if found := re.search(r"raised while resolving interpolation: (.*)", text):
        return UserError(f"{key}: its ${{…}} cannot be resolved: {found[1]}. Give a plain value")
    if found := re.search(r"(?:no viable alternative|token recognition|input) .*", text):
        return UserError(
            f"{key}: cannot read its ${{…}} ({found[0]}). A ${{data.root}} names a key; "
            "no value of a conf has a ${ that stands for itself"
        )
    return None


def _of_a_key(text: str, overrides: list[str]) -> UserError | None:
    """A key that is not there, is there already, or takes no value."""
    full = next(iter(re.findall(r"full_key: (\S+)", text)), "")
    if found := re.search(r"An item is already at '(\S+?)'", text):
        return UserError(f"{found[1]} is a key already: leave the + out")
    asked = next(iter(re.findall(r"Could not (?:override|append)[^']*'(\S+?)'", text)), "")
    if found := re.search(r"(?:Key|key) '(.+?)' (?:is )?not in", text):
        key = full or found[1]
        return unknown(asked if asked.startswith(f"{key}.") else key)
    if found := re.search(r"Key (.+) \(\w+\) is incompatible with|Incompatible key type", text):
        which = found[1] or "null"
        return UserError(
            f"{full.removesuffix(f'.{which}') or 'the conf'} has the name {which}, which is no "
            "text to YAML, as numbers, yes, no and null are none. Write it in quotes"
        )
    if "Cannot assign" in text and full in NAMED:
        return branch_error(full, overrides)
    if asked:
        return unknown(asked)
    if found := re.search(r"Could not delete from config\. '(\S+?)'", text):
        return UserError(f"the conf has no {found[1]}; --cfg job shows what it has")
    if found := re.search(r"Could not delete from config\. The value of '(\S+?)' is", text):
        return UserError(f"~{found[1]} takes no value. Leave what follows it out")
    if "does not support deletion" in text:
        return UserError(
            f"{full} is always there; ~ takes away what you named, such as ~slots.NAME. Give "
            f"{full}=null or another value"
        )
    if found := re.search(r"Ambiguous value for argument '(.*?)=(.*)'", text):
        return UserError(f"{found[1]}={found[2]} has several values. {one_each(found[1])}")
    if found := re.search(r"Sweep parameters '(.*?)=(.*)' requires", text):
        return UserError(f"{found[1]}={found[2]} has several values. {one_each(found[1])}")
    merged = re.search(r"(?:override|merging override) \+*([\w.]+)", text)
    if "NoneType is not a subclass of" in text and full.endswith("]"):
        return UserError(
            f"{full} is null, and a list has no place for it. Write '' or leave it out"
        )
    if any(one in text for one in ("Invalid type assigned", "Cannot assign", "Merge error")):
        # What `+` adds is merged into its branch, of which the message tells no more.
        key = merged[1] if merged and full in ("", *schema.branches()) else full
        if found := re.search(r"is not a subclass of (\w+)", text):
            key = key or found[1].lower()  # a part of Conf is named as its class is
        return branch_error(key, overrides) if key else None
    if "Cannot merge DictConfig with ListConfig" in text:
        key = merged[1] if merged and full in ("", *schema.branches()) else full
        if key.startswith("recipe.") or key in _lists():
            return a_list(key, overrides)
        if key:
            return branch_error(key, overrides)
        return UserError(
            "a setting of recipe has keys where it takes a list, or the reverse. `tnctl train "
            "--help` tells what it takes"
        )
    return None


def _lists() -> set[str]:
    return {key for key, one in schema.all_keys().items() if "list[" in str(one.hint)}


def _of_a_value(text: str, overrides: list[str]) -> UserError:
    """A value of another type than the key's, or whatever else there is."""
    key = next(iter(re.findall(r"full_key: (\S+)", text)), "")
    if not key and (found := re.search(r"merging override \+*([\w.]+)", text)):
        key = found[1]
    given = next((one for one in overrides if one.lstrip("+").startswith(f"{key}=")), "")
    below = next((one for one in overrides if one.lstrip("+").startswith(f"{key}.")), "")
    if below and not given and ("of type 'dict'" in text or "'dict' to string" in text):
        return UserError(f"{key} is a value and has no keys. Give {key}=… Received: {below}")
    value = r"Value '(.*?)'(?: of type '[^']*')?"
    if found := re.search(rf"{value} could not be converted to (\w+)", text):
        wanted = TYPES.get(found[2], found[2])
        return UserError(f"{key} must be {wanted}. Received: {given or f'{key}={found[1]}'}")
    if found := re.search(rf"{value} is not a valid (bool)", text):
        return UserError(f"{key} must be {TYPES[found[2]]}. Received: {key}={found[1]}")
    if found := re.search(r"Cannot convert '\w+' to string: '(.*)'", text):
        return not_text(key, given or found[1])
    if "is not a ListConfig" in text:
        return a_list(key, overrides)
    if "is not Optional" in text or "Incompatible value 'None'" in text:
        return UserError(f"{key} needs a value, and null is none. Leave it out for the default")
    if "is not a supported primitive type" in text:
        return UserError(f"{key} has a value of a type that no key takes. Write plain YAML")
    return UserError(" ".join(text.split("\n")[:2]))


def a_list(key: str, overrides: list[str] | None = None) -> UserError:
    """One value, or keys, for what takes a list."""
    given = next((one for one in overrides or () if one.lstrip("+").startswith(f"{key}=")), "")
    received = f". Received: {given}" if given else ""
    return UserError(f"{key} is a list: give it as {key}=[value,value]{received}")


def not_text(key: str, received: str) -> UserError:
    """A list or keys for what takes one text."""
    return UserError(f"{key} must be text, one value. Received: {received}")


def one_each(key: str) -> str:
    return f"Give -m to train once for each; a list is written {key}=[value,value]"


def branch_error(key: str, overrides: list[str]) -> UserError:
    """One value for what holds keys."""
    if key in NAMED:
        return UserError(f"{key} holds names and values: give {NAMED[key]}")
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
    if key in known:
        # A dotted key in a file; on the command line it would have been found.
        first, _, rest = key.partition(".")
        return UserError(f"no key '{key}' by one name. Write {first}: {{{rest}: …}}")
    return schema.no_key(key, known)


def has_no_setting(recipe: str, setting: str, known: Iterable[str]) -> UserError:
    """A setting that a recipe does not take."""
    choices = [f"recipe.{one}" for one in known]
    return UserError(
        f"no key 'recipe.{setting}': recipe {recipe} has no setting '{setting}'. "
        f"{did_you_mean(f'recipe.{setting}', choices)}"
    )
