"""What generated clicks have for models of several labels and of sequences."""

import numpy as np

from tnctl.data import generated

ROWS = 200_000


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def column(table, name):
    return table[name].to_numpy()


def auc(scores, labels):
    """The share of pairs of a 1 and a 0 in the right order; equal scores hardly occur."""
    ranks = np.argsort(np.argsort(scores)) + 1
    ones = labels.sum()
    return (ranks[labels > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(labels) - ones))


def calibrated(logits, labels, bins=8):
    """Whether in each eighth of the rows the mean of labels is what the logits say."""
    predicted = sigmoid(logits)
    for rows in np.array_split(np.argsort(predicted), bins):
        p = predicted[rows]
        deviation = np.sqrt((p * (1 - p)).sum()) / len(rows)
        assert abs(labels[rows].mean() - p.mean()) < 5 * deviation


def test_they_come_when_asked_for_and_change_nothing():
    whole = generated.rows(1000, 3000)
    assert whole.column_names == generated.COLUMNS
    few = generated.rows(1500, 1600, ["label"])
    assert few.equals(whole.select(few.column_names).slice(500, 100))
    assert not {"history", "purchase"} & set(few.column_names)
    for names in (generated.PURCHASES, generated.HISTORIES):
        part = generated.rows(1500, 1600, names[:1]).select(names)
        assert part.equals(whole.select(names).slice(500, 100))


def test_purchases_follow_clicks_by_the_planted_truth():
    table = generated.rows(0, ROWS)
    label, purchase = column(table, "label"), column(table, "purchase")
    assert not (purchase > label).any()
    assert 0.04 < purchase.mean() < 0.1
    calibrated(column(table, "planted_purchase"), purchase)


def test_histories_tell_what_is_planted():
    table = generated.rows(0, ROWS)
    label, history = column(table, "label"), table["history"].combine_chunks()
    lengths = np.diff(history.offsets.to_numpy())
    assert set(lengths) == set(range(generated.HISTORY + 1))
    known = set(table["item_id"].to_pylist())
    assert known == {f"i{number}" for number in range(200)}
    assert set(history.flatten().to_pylist()) <= known
    seen, blind = column(table, "planted_history"), column(table, "planted")
    assert (seen[lengths == 0] == blind[lengths == 0]).all()
    calibrated(seen, label)
    # What a history is worth, beside all the rest.
    assert auc(seen, label) > auc(blind, label) + 0.02
