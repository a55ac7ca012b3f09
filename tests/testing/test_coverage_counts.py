"""What a session counts, on its own and put together from several processes."""

from __future__ import annotations

from contracts.testing.coverage import Coverage


def counted() -> Coverage:
    coverage = Coverage()
    coverage.declare("f", ["even", "positive"], ["x-dtype", "x-rank"])
    coverage.saw("f", ())
    coverage.saw("f", ["even"])
    coverage.saw("f", ["x-dtype"])
    return coverage


def test_a_share_of_what_is_declared_was_seen() -> None:
    coverage = counted()
    assert coverage.percent == 50.0
    assert list(coverage.lines()) == [
        "f: 3 calls, 1 of 2 rules seen to fire, 1 of 2 facts seen to fire",
        "  never exercised: positive, x-rank",
    ]


def test_processes_add_up() -> None:
    coverage = counted()
    other = Coverage()
    other.declare("f", ["even", "positive"], ["x-dtype", "x-rank"])
    other.declare("g", ["odd"], [])
    other.saw("f", ["positive"])
    coverage.merge(other.to_data())
    assert coverage.tallies["f"].calls == 4
    assert coverage.tallies["f"].silent == ["x-rank"]
    assert coverage.tallies["g"].silent == ["odd"]
    assert coverage.percent == 60.0


def test_nothing_declared_is_nothing_missed() -> None:
    assert Coverage().percent == 100.0
