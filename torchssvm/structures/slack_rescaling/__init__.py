"""Slack rescaling: the loss multiplies the margin."""
