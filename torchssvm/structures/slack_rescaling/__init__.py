"""Slack rescaling: the loss multiplies the margin."""

from torchssvm.structures.slack_rescaling.oracles import BruteForceSearch, EveryClass, EveryLossLevel, SlackOracle
from torchssvm.structures.slack_rescaling.structure import SlackRescaling

__all__ = ["BruteForceSearch", "EveryClass", "EveryLossLevel", "SlackOracle", "SlackRescaling"]
