"""Slack rescaling: the loss multiplies the margin."""

from torchssvm.structures.slack_rescaling.structure import (
    BruteForceSearch,
    EveryClass,
    EveryLossLevel,
    SlackOracle,
    SlackRescaling,
)

__all__ = ["BruteForceSearch", "EveryClass", "EveryLossLevel", "SlackOracle", "SlackRescaling"]
