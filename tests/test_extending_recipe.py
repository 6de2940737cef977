"""docs/extending.md, "A recipe": its two files are all that a shipped recipe needs."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import tnctl.recipes

from tnctl import shipped
from tnctl.model import layers
from tnctl.model.recipes import source_settings

ROOT = Path(__file__).resolve().parent.parent


def blocks(section):
    """The code blocks of a section of the document: (what names them, language, code)."""
    page = (ROOT / "docs/extending.md").read_text()
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"([^\n]*):\n\n```(\w+)\n(.*?)```", text, re.S)


def test_a_recipe_is_two_files(cli, ran, workspace, monkeypatch):
    home = workspace / "home"
    for folder in ("conf", "recipes"):
        shutil.copytree(shipped.folder(folder), home / folder)
    for name, _, code in blocks("A recipe"):
        if not (paths := re.findall(r"`((?:conf|recipes)/[\w/.]+)`", name)):
            continue  # the layer
        [path] = paths
        assert not (home / path).exists()
        (home / path).write_text(code)
    monkeypatch.setattr(shipped, "PACKAGE", home / "tnctl")
    monkeypatch.setattr(tnctl.recipes, "__path__", [str(home / "recipes")])
    assert "mlp" in shipped.recipes()
    assert source_settings("mlp")["hidden"] == "(64, 32)"
    listed = ran("recipes", cwd=workspace).out
    assert re.search(r"^mlp +A tower beside .+ +linear weights, embeddings, numbers", listed, re.M)

    ran(
        "train", "conf=small.yaml", "recipe=mlp", "recipe.hidden=[8]", "recipe.l2=0.001",
        "evaluation.ablate=false", "output=run", cwd=workspace,
    )  # fmt: skip
    report = json.loads((workspace / "run/report.json").read_text())
    assert report["auc"] > 0.5
    [saved] = (workspace / "run/checkpoints").glob("*/conf.json")
    recipe = json.loads(saved.read_text())["recipe"]
    assert recipe == {
        "name": "mlp", "hidden": [8], "activation": "relu", "batch_norm": False, "dropout": 0.0,
        "residual": False, "l2": 0.001,
    }  # fmt: skip
    done = cli("train", "conf=small.yaml", "recipe=mlp", "recipe.hiden=[8]", cwd=workspace)
    assert "Did you mean 'hidden'?" in done.last


def test_a_layer_declares_what_its_weights_are_over():
    [code] = [code for _, _, code in blocks("A recipe") if "class FieldWeights" in code]
    names = {"layers": layers}
    exec(code, names)
    layer, vectors = names["FieldWeights"](name="fields"), np.arange(12.0).reshape(2, 3, 2)
    layer(vectors)
    layer.factors.assign([2.0, 0.0, -1.0])
    np.testing.assert_array_equal(layer(vectors), vectors * np.array([[[2], [0], [-1]]]))
    columns = [((name,), k) for name in "abc" for k in range(2)]
    [axes] = layer.weight_axes(columns).values()
    assert [inputs for inputs, _ in axes[0]] == [("a",), ("b",), ("c",)]
