"""The models learn what can be learned: generated clicks as shipped, and UCI Adult."""

import functools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from tnctl.data import generated
from tnctl.evaluation.metrics import auc

TEST_ROWS = (5_200_000, 5_600_000)  # data.test of conf/data/generated.yaml


@pytest.fixture(scope="module")
def report_of(tmp_path_factory, ran):
    """The report of `train conf=CONF`, nothing changed; each is trained once."""
    folder = tmp_path_factory.mktemp("quality")

    @functools.cache
    def report_of(conf):
        ran("train", f"conf={conf}", cwd=folder)
        return json.loads((folder / "runs" / conf / "report.json").read_text())

    return report_of


@pytest.fixture(scope="module")
def planted():
    """The AUCs of the planted logit, and of its additive part, on the test rows."""
    columns = {"planted": [], "planted_additive": [], "label": []}
    for piece in generated.pieces(*TEST_ROWS, list(columns)):
        for name, parts in columns.items():
            parts.append(piece.table.column(name).to_numpy())
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    return {name: auc(whole[name], whole["label"]) for name in ("planted", "planted_additive")}


@pytest.mark.long
@pytest.mark.parametrize("conf", ["deepfm", "lr"])
def test_the_reference_is_the_planted_truth(report_of, planted, conf):
    report = report_of(conf)
    assert report["split"] == "test"
    assert report["examples"] == TEST_ROWS[1] - TEST_ROWS[0]
    assert report["reference_auc"] == pytest.approx(planted["planted"], abs=1e-12)


def test_deepfm_learns_nearly_all_of_it(report_of):
    deepfm = report_of("deepfm")
    assert deepfm["auc"] - 0.5 >= 0.995 * (deepfm["reference_auc"] - 0.5)
    assert deepfm["auc"] <= deepfm["reference_auc"]
    assert deepfm["copc"] == pytest.approx(1, abs=0.02)


@pytest.mark.long
def test_deepfm_learns_the_interactions(report_of, planted):
    worth = planted["planted"] - planted["planted_additive"]
    assert worth > 0.02
    assert report_of("deepfm")["auc"] - report_of("lr")["auc"] >= 0.8 * worth


@pytest.mark.long
def test_lr_learns_the_additive_part_and_no_more(report_of, planted):
    lr = report_of("lr")["auc"]
    assert lr - 0.5 >= 0.99 * (planted["planted_additive"] - 0.5)
    # The additive part that fits best is a little better than the planted one without the rest.
    assert lr <= planted["planted_additive"] + 0.003


SEEDS = (1, 2)
# The AUC that the mean of some seeds must reach.
ADULT = {"lr": 0.920, "wide_deep": 0.921, "deepfm": 0.918, "dcn": 0.918}


@pytest.fixture(scope="module")
def adult(tmp_path_factory, ran):
    """The test AUC of conf=adult with a recipe and a seed; each is trained once."""
    root = os.environ.get("TNCTL_TEST_DATA")
    if not root:
        pytest.skip("TNCTL_TEST_DATA is not set: the folder that has adult/")
    folder = tmp_path_factory.mktemp("adult")
    data = (Path(root) / "adult").resolve()
    measured = {}

    def auc_of(recipe, seed):
        if (recipe, seed) not in measured:
            output = folder / f"{recipe}-{seed}"
            ran(
                "train", "conf=adult", f"recipe={recipe}", f"seed={seed}", f"data.root={data}",
                f"output={output}", cwd=folder,
            )  # fmt: skip
            report = json.loads((output / "report.json").read_text())
            assert report["split"] == "test"
            assert report["examples"] == 16_281
            assert report["epochs"][0]["examples"] == 32_561
            measured[recipe, seed] = report["auc"]
        return measured[recipe, seed]

    return auc_of


@pytest.mark.short
@pytest.mark.parametrize("recipe", ["deepfm"])
def test_adult(adult, recipe):
    assert adult(recipe, 1) >= ADULT[recipe]


@pytest.mark.long
@pytest.mark.parametrize("recipe", ADULT)
def test_adult_over_seeds(adult, recipe):
    assert np.mean([adult(recipe, seed) for seed in SEEDS]) >= ADULT[recipe]


@pytest.mark.long
def test_a_deep_part_beside_the_wide_one_is_no_loss(adult):
    means = {
        recipe: np.mean([adult(recipe, seed) for seed in SEEDS]) for recipe in ("lr", "wide_deep")
    }
    assert means["wide_deep"] >= means["lr"]
