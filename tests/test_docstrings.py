"""Every example in a docstring runs, and says what it prints."""

import doctest
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator

import pytest

import backends
import contracts

TRITON = importlib.util.find_spec("triton") is not None


def examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    for package in (contracts, backends):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            name = module.name.rpartition(".")[2]
            if name == "__main__" or (name.startswith(("triton", "gluon")) and not TRITON):
                continue
            found = finder.find(importlib.import_module(module.name), module.name)
            yield from (test for test in found if test.examples)


@pytest.mark.parametrize("example", list(examples()), ids=lambda example: example.name)
def test_an_example(example: doctest.DocTest) -> None:
    report: list[str] = []
    failed, _ = doctest.DocTestRunner().run(example, out=report.append)
    assert not failed, "".join(report)


def test_what_users_call_first_has_an_example() -> None:
    names = {example.name for example in examples()}
    assert {"contracts.decorator.contract", "contracts.modes.mode"} <= names
    assert {"backends.dispatch.op.Op", "backends.dispatch.setting.use"} <= names
