"""The command line: what it answers, in text and as data, and its exit codes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from contracts import cli, doctor
from contracts.catalog import discovery

ROOT = Path(__file__).resolve().parents[2]
SPARSE = "sparse_mla_q8kv8_prefill_fwd"
GOOD = (
    *("q=f8e4m3[4096,64,576]@cuda:0", "kv=f8e4m3[8192,1,576]@cuda:0"),
    *("indices=i32[4096,1,2048]@cuda:0", "sm_scale=0.04", "topk_length=none"),
    *("q_scale=f32[1]@cuda:0", "kv_scale=f32[]@cuda:0"),
)
MODULE = """
import torch
from jaxtyping import Float32
from torch import Tensor
from contracts import contract

@contract("n % 4 == 0")
def halve(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    '''Half of x.'''
    return x / 2

class Layer:
    @contract
    def forward(self, x: Float32[Tensor, "n dim"]): ...

if __name__ == "__main__":
    halve(torch.zeros(6))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module, in the current folder."""
    (tmp_path / "my_ops.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("my_ops", None)
    return "my_ops"


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = cli.main(arguments)
    return code, capsys.readouterr().out


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ask(capsys, "list")
    assert code == 0
    for part in (SPARSE, "hunyuan_qkv_rope_pack", "h_q-multiple-of-64", "reference"):
        assert part in text
    code, text = ask(capsys, "list", "--json")
    assert {item["op"] for item in json.loads(text)} >= {SPARSE, "hunyuan_qkv_rope_pack"}


def test_list_of_a_module(capsys: pytest.CaptureFixture[str], module: str) -> None:
    code, text = ask(capsys, "list", module)
    assert code == 0
    assert "halve  my_ops:halve" in text
    assert "Half of x." in text


@pytest.mark.parametrize("op", [SPARSE, f"backends:{SPARSE}", f"backends.{SPARSE}"])
def test_show(capsys: pytest.CaptureFixture[str], op: str) -> None:
    code, text = ask(capsys, "show", op)
    assert code == 0
    for part in (
        'kv: Float8e4m3fn[Tensor, "s_kv h_kv=1 d_qk"],',
        "`d_qk`  axis 2 of `q`",
        "topk-multiple-of-128",
        "Axis 2 of `kv` must be d_qk",
        "sm>=89",
    ):
        assert part in text


@pytest.mark.parametrize("op", ["my_ops:halve", "my_ops.py:halve", "my_ops:Layer.forward"])
def test_show_a_function_of_the_users(
    capsys: pytest.CaptureFixture[str], module: str, op: str
) -> None:
    code, text = ask(capsys, "show", op)
    assert code == 0
    assert 'x: Float32[Tensor, "n' in text


def test_explain_an_id(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ask(capsys, "explain", f"{SPARSE}/kv-d_qk")
    assert code == 0
    for title in ("Error message", "What it means", "Example fix", "Validation", "Related"):
        assert title in text


def test_explain_a_message_of_several_entries(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ask(capsys, "explain", "image QKV shapes must match")
    assert code == 0
    assert text.startswith("11 entries say this")
    assert "img_k = img_k.repeat_interleave(2, dim=2)" in text


def test_explain_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "INFO started\nValueError: kv d_qk must match q d_qk=576, got 512\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(log))
    code, text = ask(capsys, "explain", "-", "--json")
    assert code == 0
    (entry,) = json.loads(text)
    assert (entry["id"], entry["foundBy"]) == (f"{SPARSE}/kv-d_qk", "upstream")


def test_explain_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(capsys, "explain", "zzyzx") == (1, "nothing like this is in the catalogue\n")
    code, text = ask(capsys, "explain", "heads have to be padded")
    assert code == 1
    assert "the nearest" in text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("no_such_module:f/n-rank", "cannot import no_such_module"),
        ("contracts.errors:no_such_function/n-rank", "contracts.errors has no 'no_such_function'"),
        (SPARSE, f"this is a whole contract: python -m contracts show {SPARSE}"),
    ],
)
def test_explain_says_why_there_is_no_entry(
    capsys: pytest.CaptureFixture[str], text: str, answer: str
) -> None:
    code, printed = ask(capsys, "explain", text)
    assert code == 1
    assert printed.startswith(answer)


def test_a_script_s_error_names_the_command_that_explains_it(module: str) -> None:
    environment = {"PYTHONPATH": str(ROOT)}
    failed = subprocess.run(
        [sys.executable, "my_ops.py"], env=environment, capture_output=True, text=True, check=False
    )
    last = failed.stderr.strip().splitlines()[-1]
    assert last == "explain: python -m contracts explain my_ops.py:halve/n%4==0"
    command = last.removeprefix("explain: python ").split()
    page = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert page.returncode == 0
    assert page.stdout.startswith("halve/n%4==0\n")
    assert "\x1b[" not in page.stdout


def test_check_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ask(capsys, "check", SPARSE, *GOOD)
    assert code == 0
    assert text.startswith("accepted: ")
    assert "h_q=64" in text
    assert "buffers-disjoint" in text  # said not to have been judged
    assert "reference  yes" in text


def test_check_answers_for_a_device_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ask(capsys, "check", SPARSE, *GOOD, "--sm", "90")
    assert code == 0
    assert f"{SPARSE} on sm90: gluon" in text
    answer = json.loads(ask(capsys, "check", SPARSE, *GOOD, "--sm", "80", "--json")[1])["backends"]
    assert answer["chosen"] == "reference"
    assert answer["reasons"]["gluon"] == ["needs sm==90, device is sm80"]


def test_check_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    bad = ("q=f8e4m3[4096,16,576]@cuda:0", *GOOD[1:])
    code, text = ask(capsys, "check", SPARSE, *bad)
    assert code == 1
    assert "refused: 1 rule broken" in text
    assert "fix: q = torch.nn.functional.pad(q.view(torch.uint8), (0, 0, 0, 48))" in text
    code, text = ask(capsys, "check", SPARSE, *bad, "--json")
    assert code == 1
    data = json.loads(text)
    assert [fault["rule"] for fault in data["violations"]] == ["h_q-multiple-of-64"]
    assert data["accepted"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "no_such_op"), "no operation is called 'no_such_op'"),
        (("show", "json:dumps"), "dumps has no contract"),
        (("show", "no_such_module:f"), "cannot import no_such_module"),
        (("show", "backends:nothing"), "backends has no 'nothing'"),
        (("show", "missing.py:f"), "there is no file missing.py"),
        (("check", SPARSE, "q=f8"), "missing a required argument: 'kv'"),
        (("check", SPARSE, "q"), "not NAME=VALUE"),
        (("check", SPARSE, *GOOD, "wrong=1"), "unexpected keyword argument 'wrong'"),
    ],
)
def test_a_question_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert cli.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ask(capsys, "doctor")
    assert code == 0
    for part in ("torch", "triton", f"{SPARSE}/reference", "yes, on "):
        assert part in text


def test_doctor_notices_the_old_package_of_the_same_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "PyContracts-1.8.12.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: PyContracts\nVersion: 1.8.12\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, text = ask(capsys, "doctor")
    assert code == 1
    assert "1.8.12 is installed and has the same import name" in " ".join(text.split())


def test_doctor_says_what_cannot_be_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "unusable", lambda: {"broken_op": "ImportError: no module"})
    code, text = ask(capsys, "doctor")
    assert code == 1
    assert "broken_op" in text


def test_without_any_announced_operation_it_says_how_to_get_some(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "announced", dict)
    for command in ("list", "catalog"):
        code, text = ask(capsys, command)
        assert code == 1
        assert "pip install ." in text


@pytest.mark.parametrize("form", ["json", "markdown"])
def test_catalog(capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str) -> None:
    file = tmp_path / "catalogue"
    code, text = ask(
        capsys, "catalog", "hunyuan_qkv_rope_pack", "--format", form, "--output", str(file)
    )
    assert (code, text) == (0, f"54 entries in {file}\n")
    written = file.read_text()
    if form == "json":
        assert len(json.loads(written)) == 54
    else:
        assert "### hunyuan_qkv_rope_pack/head_dim-even" in written


def test_colour_only_where_somebody_looks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b[" not in ask(capsys, "list")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1m" in ask(capsys, "list")[1]


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    assert "python -m contracts explain 'kv d_qk must match" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_few_letters(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    assert cli.main(["explain", f"{SPARSE}/kv-d_qk"]) == 0
    stream.seek(0)
    assert "kv-d_qk" in stream.read()


@pytest.mark.parametrize("arguments", [("list",), ("explain", f"{SPARSE}/kv-d_qk")])
def test_a_reader_that_leaves_early(arguments: tuple[str, ...]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "contracts", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        assert run.stderr.read() == b""
        assert run.wait() == 0
