"""The loss that training minimises, from logits and labels."""

from typing import Any

import tensorflow as tf

from tnctl.schema import Loss


def losses(loss: Loss, labels: Any, logits: Any) -> Any:
    """The loss of every example: float32 [B] from labels [B] and logits [B].

    - cross_entropy: -y ln p - (1 - y) ln(1 - p) with p = sigmoid(logit); with smoothing s the
      label is y (1 - s) + s / 2 (Szegedy et al. 2016, section 7)
    - focal: -(1 - p_t)^gamma ln p_t, times alpha for label 1 and 1 - alpha for 0 (Lin et al.,
      Focal Loss for Dense Object Detection, ICCV 2017, equations 4 and 5)
    - mse: (logit - y)^2
    """
    if loss.name == "mse":
        return tf.square(logits - labels)
    if loss.name == "cross_entropy":
        if loss.smoothing:
            labels = labels * (1 - loss.smoothing) + loss.smoothing / 2
        return tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    crossed = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    p = tf.sigmoid(logits)
    # 1 - p_t, which for labels between 0 and 1 is between the two.
    wrong = labels * (1 - p) + (1 - labels) * p
    focal = tf.pow(wrong, loss.gamma) * crossed if loss.gamma else crossed
    if loss.alpha is not None:
        focal *= labels * loss.alpha + (1 - labels) * (1 - loss.alpha)
    return focal


def total(loss: Loss, weights: list[float], labels: Any, logits: Any, examples: Any) -> Any:
    """The scalar loss of a batch: labels and logits [B, n], one weight for each of the n labels.

    The mean over the batch of each example's loss times its weight (`examples` [B], or None),
    added over the labels.
    """
    parts = []
    for number, weight in enumerate(weights):
        of_examples = losses(loss, labels[:, number], logits[:, number])
        if examples is not None:
            of_examples *= examples
        mean = tf.reduce_mean(of_examples)
        parts.append(mean if weight == 1 else mean * weight)
    return parts[0] if len(parts) == 1 else tf.add_n(parts)
