"""The kit's own tests make contracts with defects, which are not the session's to count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contracts.testing.coverage import Coverage, current


@pytest.fixture(autouse=True)
def coverage_of_its_own() -> Iterator[Coverage]:
    coverage = Coverage()
    token = current.set(coverage)
    yield coverage
    current.reset(token)
