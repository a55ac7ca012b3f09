"""How operations are found: announced by a package, or by where they are."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from contracts import cli
from contracts.catalog import NotFound, announced, find, installed, unusable, within
from contracts.catalog.discovery import GROUP

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's package, as pip would leave it."""
    (tmp_path / "other_ops.py").write_text(
        "from contracts import contract\n@contract('n > 0')\ndef scale(n: int): 'Scales.'\n"
    )
    info = tmp_path / "other_ops-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-ops\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\nscale = other_ops:scale\nlost = other_ops:lost\nbare = json:dumps\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_every_operation_of_this_project_is_announced() -> None:
    import backends

    ops = {name for name in backends.__all__ if hasattr(getattr(backends, name), "contract")}
    assert set(PROJECT["entry-points"][GROUP]) == ops
    assert ops <= {subject.name for subject in installed()}


def test_the_script_is_the_command_line() -> None:
    value = PROJECT["scripts"]["tensor-contracts"]
    assert EntryPoint("tensor-contracts", value, "console_scripts").load() is cli.main


@pytest.mark.usefixtures("other_package")
def test_another_package_s_operations_appear_by_themselves() -> None:
    assert "scale" in announced()
    assert find("scale").summary == "Scales."
    assert "scale" in {subject.name for subject in installed()}


@pytest.mark.usefixtures("other_package")
def test_what_cannot_be_loaded_hides_nothing_else() -> None:
    reasons = unusable()
    assert "no attribute 'lost'" in reasons["lost"]
    assert "bare has no contract" in reasons["bare"]
    assert "scale" in {subject.name for subject in installed()}


@pytest.mark.usefixtures("other_package")
def test_the_contracts_of_a_module() -> None:
    assert [subject.name for subject in within("other_ops")] == ["scale"]
    assert find("other_ops:scale").path == "other_ops:scale"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(NotFound, match="hunyuan_qkv_rope_pack, sparse_mla_q8kv8_prefill_fwd"):
        find("attention")
