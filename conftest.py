"""Loads the contract plugin out of the working tree where the project is not installed."""

from importlib.metadata import entry_points

INSTALLED = "tensor_contracts" in entry_points(group="pytest11").names

pytest_plugins = () if INSTALLED else ("contracts.testing.plugin",)
