"""The catalogue of this repository's operations, built once."""

from __future__ import annotations

import pytest

from contracts.catalog import Entry, Subject, catalogue, find, mended

OPS = ("hunyuan_qkv_rope_pack", "sparse_mla_q8kv8_prefill_fwd")


@pytest.fixture(scope="session")
def subjects() -> dict[str, Subject]:
    return {name: find(name) for name in OPS}


@pytest.fixture(scope="session")
def entries(subjects: dict[str, Subject]) -> dict[str, Entry]:
    """By id, each with its example of a fix."""
    bare = catalogue(subjects.values())
    return {
        entry.id: entry
        for subject in subjects.values()
        for entry in mended(subject, [e for e in bare if e.op == subject.name])
    }
