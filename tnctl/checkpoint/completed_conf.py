"""A saved conf with the keys that the version which wrote it did not have, and its comparison."""

from collections.abc import Mapping
from typing import Any

from tnctl import schema
from tnctl.masking import bare_conf
from tnctl.model.recipe_settings import defaults_of


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values of a conf with all keys, and with all settings of its shipped recipe.

    A key that is absent has the value that the version without it worked by
    (`tnctl.schema.values.ABSENT`).
    """
    full = schema.completed(values)
    recipe = full["recipe"]
    if isinstance(recipe, Mapping):
        defaults = defaults_of(str(recipe.get("name"))).items()
        # Behind those that are there: a conf that is saved again keeps its order.
        full["recipe"] = {**recipe, **{key: value for key, value in defaults if key not in recipe}}
    return full


def differing_keys(values: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """The dotted keys whose values differ, of a conf and a saved one; secrets of URLs do not."""
    return schema.differences(bare_conf(completed(values)), bare_conf(completed(saved)))
