"""What is used of torchmetrics objects: found by what they have, restored by a private counter."""

import copy
import warnings

import torch
from torch import nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from paceline.trainer.metrics.metric_objects import latest_value, metric_parts, set_state, update_count


def test_members_of_a_collection_are_found_and_the_collection_is_not():
    module = nn.ModuleDict({"mean": MeanMetric(), "all": MetricCollection([MulticlassAccuracy(3)])})
    assert set(metric_parts(module)) == {"mean", "all.MulticlassAccuracy"}


def test_a_restored_metric_computes_what_it_did():
    metric, other = MeanMetric(), MeanMetric()
    metric.update(torch.tensor([1.0, 3.0]))
    set_state(other, copy.deepcopy(dict(metric.metric_state)), update_count(metric))
    assert update_count(other) == 1  # through _update_count
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # compute() warns where nothing was counted
        assert other.compute() == 2.0


def test_the_value_of_the_last_call():
    metric = MeanMetric()
    metric(torch.tensor(1.0))
    metric(torch.tensor([2.0, 4.0]))
    assert latest_value(metric) == 3.0  # through _forward_cache
    metric.reset()
    metric.update(torch.tensor(5.0))
    assert latest_value(metric) is None


def test_a_collection_counts_no_updates():
    assert update_count(MetricCollection([MulticlassAccuracy(3)])) == 0
