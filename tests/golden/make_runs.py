"""Makes runs/ and defaults.json: what later versions must go on from, and defaults they must keep.

    python tests/golden/make_runs.py

Run it with the Python of an older checkout, whose tnctl then writes the files. They are committed
as bytes. Runs of a newer version are added in a folder of their own beside `runs`, and the old ones
stay. So do the values of defaults.json; only new keys are added to it.

    defaults.json    the default of every key of a conf, of the settings of each shipped recipe
                     (recipe.NAME.SETTING) and of each optimizer (rule.NAME.SETTING)
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, get_args, get_origin

HERE = Path(__file__).resolve().parent


def defaults() -> dict[str, Any]:
    """All defaults by path, as JSON holds them."""
    from tnctl import shipped
    from tnctl.model import recipes
    from tnctl.schema import RULES, Conf

    values = dict(of_section(Conf, ""))
    for name in shipped.recipes():
        for setting in recipes.declared(recipes.load(name)).values():
            if setting.default is not setting.empty:
                values[f"recipe.{name}.{setting.name}"] = setting.default
    for name, settings in RULES.items():
        values |= {f"rule.{name}.{setting}": value for setting, value in settings.items()}
    return json.loads(json.dumps(values))


def of_section(section: Any, path: str, defaults: Any = None) -> Any:
    """The paths and defaults of a section's keys; `defaults` is an object with those there."""
    from tnctl.schema import NAME, dataclass_of
    from tnctl.schema.declarations import default_of
    from tnctl.schema.keys import hints_of

    for declared in dataclasses.fields(section):
        key, hint = path + declared.name, hints_of(section)[declared.name]
        default = default_of(declared) if defaults is None else getattr(defaults, declared.name)
        inner = dataclass_of(hint)
        if inner is None or default is None:
            yield key, default
        if inner is not None:
            yield from of_section(inner, f"{key}.", default)
        elif get_origin(hint) is dict and dataclasses.is_dataclass(get_args(hint)[1]):
            yield from of_section(get_args(hint)[1], f"{key}.{NAME}.")


def main() -> None:
    """Write everything."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.chdir(HERE)
    Path("defaults.json").write_text(json.dumps(defaults(), indent=0) + "\n")


if __name__ == "__main__":
    main()
