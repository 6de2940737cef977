"""report.html: well-formed, on its own, and true to report.json and log.jsonl."""

import json
import re
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tnctl.training.report.page import InputRow, Markup, fill, fragments, render
from tnctl.training.report.report_document import LogLine, Report

EVIL = "<script>alert('x')</script>&\"'"


class Checked(HTMLParser):
    """Notes what an HTML parser sees: tags that do not match, and what is fetched."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text, self.fetched = [], [], "", []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [v for name, v in attrs if name in ("src", "href", "xlink:href")]
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data + " "


def checked(html):
    """The page as a browser's parser reads it; it must also be well-formed XML."""
    assert html.startswith("<!DOCTYPE html>")
    ElementTree.fromstring(html)
    seen = Checked()
    seen.feed(html)
    seen.close()
    assert seen.open == []
    assert seen.fetched == []  # nothing comes from elsewhere
    assert not re.search(r"https?://|@import|url\(", html)
    assert seen.tags.count("script") == 1
    for tag in ("html", "head", "title", "style", "body", "main", "h1"):
        assert seen.tags.count(tag) == 1, tag
    return seen


def conf(**changes):
    return {
        "recipe": {"name": "deepfm"}, "slots": {"user": {}}, "numeric": {}, "seed": 1,
        "train": {"batch_size": 256}, "data": {"missing": [EVIL]}, "evaluation": {"ndcg_at": None},
        **changes,
    }  # fmt: skip


def metrics(auc=0.7):
    return {
        "examples": 700, "auc": auc, "logloss": 0.4, "ctr": 0.2, "pctr": 0.21, "copc": 0.95,
        "accuracy": 0.8, "mse": 0.1, "mae": 0.2, "mape": None,
    }  # fmt: skip


def typed(values):
    """A report as it is read from report.json."""
    return Report.parse(json.dumps(values).encode())


def logged(lines_logged):
    """Lines as they are read from log.jsonl."""
    return [LogLine.of(values) for values in lines_logged]


def report(**changes):
    bins = [{"prediction": n / 20, "label": n / 21, "count": 70} for n in range(10)]
    histogram = [{"up_to": n / 8, "negatives": 9 - n, "positives": n / 2} for n in range(1, 5)]
    evaluations = [
        {"step": step, "epoch": 1, "validation": metrics(0.6 + step / 1000)} for step in (10, 20)
    ]
    return {
        **metrics(), "calibration": bins, "histogram": histogram, "split": "test", "steps": 20,
        "reference_auc": 0.75,
        "heads": {EVIL: metrics(0.65)}, "evaluations": evaluations, "epochs": [],
        "best": {"monitor": "auc", "value": 0.62, "step": 20, "kept": True},
        "tables": {"embedding8": {"rows": 1234, "bytes": 5 << 20}}, "dense_weights": 99,
        "importance_of": "auc on data.validation", "checkpoint": "checkpoints/step-0000000020",
        "timing": {"seconds": 100.0, "training_seconds": 60.0, "input_wait_seconds": 5.0,
                   "evaluation_seconds": 20.0, "save_seconds": 3.0, "examples_per_second": 5000.0},
        **changes,
    }  # fmt: skip


def events():
    logged = [
        {"event": "step", "step": n, "epoch": 1, "loss": 0.7 - n / 100, "running_auc": 0.5 + n / 99,
         "rate_factor": 1 / n, "rows": 50 * n, "timing": {}}
        for n in range(1, 21)
    ]  # fmt: skip
    return [
        *logged,
        *({"event": "evaluation", **evaluation} for evaluation in report()["evaluations"]),
    ]


INPUTS = [
    InputRow(EVIL, "slot", 0.9, 1.5, 1000, 40_000, 0.25, 0.01, "shared"),
    InputRow("page", "slot", 1.0, 1.0, 1000, 40_000, 0.25, -0.0001, "shared"),
    InputRow("price", "number", 0.5, None, None, None, None, 0.002),
]


def test_the_page_is_whole_and_says_what_the_report_does():
    html = render(EVIL, conf(), typed(report()), logged(events()), INPUTS)
    seen = checked(html)
    assert seen.tags.count("svg") == 6  # loss, AUC, rows, rate, calibration, histogram
    for words in (EVIL, "0.70000", "the reference 0.7500", "1,234", "5.0 MiB", "90.0%", "(shared)",
                  "+0.01000", "-0.00010", "recipe deepfm", "5,000", "1:40",
                  "best at step 20"):  # fmt: skip
        assert words in seen.text, words
    assert "<script>alert" not in html
    assert 'name="viewport"' in html
    assert "prefers-color-scheme:dark" in html


def test_the_distribution_of_predictions_is_of_each_label_alone():
    html = render("run", conf(), typed(report()), [], [])
    [chart] = re.findall(
        r"<figure[^>]*>(?:(?!</figure>).)*by prediction</b>.*?</figure>", html, re.S
    )
    assert "label 0" in chart and "label 1" in chart
    [data] = re.findall(r'data-series="([^"]*)"', chart)
    of_labels = {line["name"]: line["at"] for line in json.loads(unescape(data))}
    points = {name: [tuple(at[2:]) for at in line] for name, line in of_labels.items()}
    middles = [n / 8 - 1 / 16 for n in range(1, 5)]
    assert points["label 0"] == [(m, (9 - n) / 26) for n, m in enumerate(middles, 1)]
    assert points["label 1"] == [(m, n / 10) for n, m in enumerate(middles, 1)]
    # Of examples of one label there is one line; of none no chart.
    alone = [{"up_to": 0.5, "negatives": 0, "positives": 3}]
    assert "label 0" not in render("run", conf(), typed(report(histogram=alone)), [], [])
    for broken in (None, 7, [7, {"up_to": "x"}]):
        page = render("run", conf(), typed(report(histogram=broken)), [], [])
        assert "label 1" not in page and checked(page)


def test_the_page_of_little():
    """No evaluation data, no steps that were logged, no slots, no time."""
    bare = {
        "split": None, "steps": 3, "epochs": [], "evaluations": [], "tables": {},
        "dense_weights": 4, "checkpoint": "", "timing": {"seconds": 0.0},
    }  # fmt: skip
    seen = checked(render("run", conf(slots={}), typed(bare), [], []))
    assert "svg" not in seen.tags
    assert "Calibration" not in seen.text
    numbers = report(auc=None, logloss=None)
    for key in ("auc", "logloss", "accuracy", "heads", "best"):
        del numbers[key]
    for evaluation in numbers["evaluations"]:
        del (
            evaluation["validation"]["auc"],
            evaluation["validation"]["logloss"],
            evaluation["validation"]["accuracy"],
        )
    seen = checked(render("run", conf(), typed(numbers), logged(events()[:1]), INPUTS[2:]))
    assert "MSE" in seen.text


def test_script_and_style_have_no_character_that_xml_would_read_as_markup():
    page = fill("page", title="", sections="")
    for tag in ("script", "style"):
        [text] = re.findall(rf"<{tag}>(.*)</{tag}>", page, re.DOTALL)
        assert len(text) > 1000
        assert not re.search(r"[<&]", text)


def test_every_text_that_is_filled_in_is_escaped():
    """Only what was filled in before is taken as it is; a part without its values is an error."""
    for name, template in fragments().items():
        values = dict.fromkeys(template.get_identifiers(), EVIL)
        assert "<script>alert" not in fill(name, **values), name
        assert fill(name, **{key: Markup("<b/>") for key in values}).count("<b/>") >= len(values)
        if values:
            values.popitem()
            with pytest.raises(KeyError):
                fill(name, **values)


def test_a_runs_page(trained):
    run = trained / "run"
    html = (run / "report.html").read_text()
    seen = checked(html)
    content = json.loads((run / "report.json").read_text())
    for words in (f"{content['auc']:.5f}", "user_id", "interests", "quality", "(shared)"):
        assert words in seen.text, words
    # One point of the curves for every ten steps, and the evaluation.
    tree = ElementTree.fromstring(html)
    loss = next(svg for svg in tree.iter("svg") if svg.get("aria-label") == "loss")
    training, validation = json.loads(loss.get("data-series"))
    assert [at[2] for at in training["at"]] == [10]
    assert [at[2:] for at in validation["at"]] == [
        [12, content["epochs"][0]["validation"]["logloss"]]
    ]
