"""ContractError as people and programs meet it, and the contract's own description."""

from __future__ import annotations

import logging
import pickle
import sys
import types
from html.parser import HTMLParser

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import backends
from contracts import ContractError, contract, rule
from contracts.reference import explain_command, reference


@contract("n % 4 == 0", rule("n < 64", id="short", hint="<one> block holds it"), document=True)
def halve(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    """Half of x.

    Never rounds.
    """
    return x / 2


def refused() -> ContractError:
    with pytest.raises(ContractError) as caught:
        halve(torch.zeros(66))
    return caught.value


def test_the_last_line_names_the_command_that_explains_the_first_violation() -> None:
    error = refused()
    assert str(error).splitlines()[-1] == f"explain: {error.explain}"
    assert error.explain == f"python -m contracts explain {halve.__module__}:halve/n%4==0"


def test_an_operation_is_named_by_the_package_that_exports_it() -> None:
    with pytest.raises(ContractError) as caught:
        backends.sparse_mla_q8kv8_prefill_fwd.contract.check_axes(h_q=16)
    assert caught.value.explain == (
        "python -m contracts explain backends:sparse_mla_q8kv8_prefill_fwd/h_q-multiple-of-64"
    )


def test_a_function_that_no_import_reaches_explains_itself_at_a_prompt() -> None:
    @contract
    def inner(x: Float32[Tensor, "n"]) -> None: ...

    with pytest.raises(ContractError) as caught:
        inner(torch.zeros(2, 2))
    assert caught.value.explain == "print(inner.contract.describe())"


def test_a_method_that_no_import_reaches_is_named_with_its_class() -> None:
    class Layer(torch.nn.Module):
        @contract
        def forward(self, x: Float32[Tensor, "n"]) -> None: ...

    with pytest.raises(ContractError) as caught:
        Layer()(torch.zeros(2, 2))
    assert caught.value.explain == "print(Layer.forward.contract.describe())"


def test_what_a_shell_would_eat_is_quoted() -> None:
    assert explain_command(reference, "a>b").endswith("'contracts.reference:reference/a>b'")


def test_a_module_run_by_name_keeps_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.__spec__ = types.SimpleNamespace(name="pkg.train")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    function = types.FunctionType((lambda: None).__code__, {}, "attend")
    function.__module__, function.__qualname__ = "__main__", "attend"
    assert reference(function) == "pkg.train:attend"


def test_args_are_the_text_alone() -> None:
    error = refused()
    assert error.args == (str(error),)


def test_it_survives_pickling_with_everything() -> None:
    error = refused()
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.to_dict()) == (str(error), error.to_dict())


def test_it_logs_as_plain_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        logging.getLogger(__name__).error("call failed: %s", refused())
    assert "- [n%4==0] n % 4 == 0 does not hold" in caplog.text
    assert "<" not in caplog.text.replace("n < 64", "").replace("<one>", "")


def test_a_notebook_shows_a_table() -> None:
    class Cells(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.tags: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.tags.append(tag)

    html = refused()._repr_html_()
    cells = Cells()
    cells.feed(html)
    assert cells.tags.count("tr") == 3  # a head, and one row for each violation
    assert "one" not in cells.tags
    assert "&lt;one&gt; block holds it" in html
    assert "float32[66] cpu" in html


def test_a_group_of_errors_keeps_each_text() -> None:
    group = ExceptionGroup("two ranks", [refused(), refused()])
    assert [str(error).splitlines()[-1] for error in group.exceptions] == [
        f"explain: {refused().explain}"
    ] * 2


def test_describe_is_markdown() -> None:
    assert halve.contract.describe().splitlines() == [
        *("Contract:", "", '- `x`: `Float32[Tensor, "n"]`', "", "Rules:", ""),
        *("- `n%4==0`: `n % 4 == 0`", "- `short`: `n < 64`. <one> block holds it."),
    ]


def test_a_docstring_takes_the_description_on_request() -> None:
    assert halve.__doc__ == f"Half of x.\n\nNever rounds.\n\n{halve.contract.describe()}\n"


def test_methods_and_classes_are_documented_too() -> None:
    class Layer:
        @contract(document=True)
        def forward(self, x: Float32[Tensor, "n"]) -> None: ...

        @contract(document=True)
        @staticmethod
        def scale(x: Float32[Tensor, "n"]) -> None:
            """Scales."""

    @contract("n > 0", document=True)
    class Size:
        """How long."""

        def __init__(self, n: int) -> None: ...

    assert Layer.forward.__doc__ == f"{Layer.forward.contract.describe()}\n"
    assert (Layer.scale.__doc__ or "").startswith("Scales.\n\nContract:")
    assert (Size.__doc__ or "").endswith("- `n>0`: `n > 0`\n")


def test_without_request_a_docstring_stays() -> None:
    @contract
    def plain(x: Float32[Tensor, "n"]) -> None:
        """As it was."""

    assert plain.__doc__ == "As it was."
