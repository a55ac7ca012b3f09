"""The command line: `python -m contracts`, or `tensor-contracts` where the package is installed.

Exit codes: 0 for yes, 1 for no (a call is refused, nothing is found, something is broken), 2 for a
question that cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import calls, catalog, doctor, markdown, pages
from . import explain as explaining
from .catalog import Entry, Match, NotFound, Subject
from .catalog.discovery import why_empty
from .catalog.page import of_entry, of_subject
from .tensors import tensors_in
from .terminal import Terminal

EPILOG = """\
examples:
  python -m contracts list
  python -m contracts show sparse_mla_q8kv8_prefill_fwd
  python -m contracts show my_package.ops:attention
  python -m contracts explain sparse_mla_q8kv8_prefill_fwd/kv-d_qk
  python -m contracts explain 'kv d_qk must match q d_qk=576, got 512'
  python -m contracts explain - < service.log
  python -m contracts check my_package.ops:attention 'q=f16[2,64,8,128]@cuda:0' 'k=f16[2,64,4,128]'
  python -m contracts doctor
  python -m contracts catalog --format html --output site

OP is the name of an operation that an installed package announces, or where a function with a
contract is: package.module:function, or file.py:function. Every command takes --json.
"""


@dataclass(frozen=True)
class Answer:
    """What a command found: text for people, data for programs, and yes or no."""

    text: str
    data: Any
    yes: bool = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace, Terminal], Answer] = options.command
    try:
        answer = command(options, Terminal.of(sys.stdout))
    except (NotFound, calls.CallSyntaxError, BadCall) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    text = json.dumps(answer.data, indent=2) if options.json else answer.text
    encoding = sys.stdout.encoding or "utf-8"
    try:  # a terminal of few letters shows question marks for others
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except BrokenPipeError:  # `| head` has seen enough
        sys.stdout = None
    return 0 if answer.yes else 1


class BadCall(ValueError):
    """The arguments do not even fit the signature."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m contracts",
        description="Contracts of tensor functions: what they demand, and what their errors mean.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, command: Callable[..., Answer], text: str, more: str = "") -> Any:
        sub = commands.add_parser(
            name,
            help=text,
            description=text[:1].upper() + text[1:] + ".",
            epilog=more,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=command)
        sub.add_argument("--json", action="store_true", help="print data instead of text")
        return sub

    sub = add("list", list_subjects, "the operations here, with their rules and backends")
    sub.add_argument("place", nargs="*", metavar="MODULE", help="modules or files to list instead")

    sub = add("show", show, "one contract: signature, axes, rules, backends")
    sub.add_argument("op", metavar="OP")

    sub = add(
        "explain",
        explain,
        "the page of an error, found by its id or by its message, ours or another library's",
        "Reads the message from standard input when TEXT is - (or absent, in a pipe).",
    )
    sub.add_argument(
        "text", nargs="*", metavar="TEXT", help="an id, or a message as it was printed"
    )
    sub.add_argument("--in", dest="op", metavar="OP", help="look only in this contract")

    sub = add(
        "check",
        check,
        "judge a call that is written as text, on tensors without memory",
        f"{calls.SYNTAX}\n\nQuote what your shell would expand: brackets in zsh, spaces anywhere.",
    )
    sub.add_argument("op", metavar="OP")
    sub.add_argument("arguments", nargs="*", metavar="NAME=VALUE")
    sub.add_argument(
        "--sm",
        type=int,
        metavar="90",
        help="answer for a GPU of this compute capability, times ten, that is not here",
    )

    add("doctor", examine, "versions, devices, and every backend: available, or why not")

    sub = add("catalog", write_catalog, "every entry, as JSON, as Markdown or as a static site")
    sub.add_argument(
        "op", nargs="*", metavar="OP", help="only these; by default all announced ones"
    )
    sub.add_argument("--format", choices=("json", "markdown", "html"), default="markdown")
    sub.add_argument(
        "--output", type=Path, metavar="PATH", help="a file, or for html a folder (default: site)"
    )
    return parser


def list_subjects(options: argparse.Namespace, terminal: Terminal) -> Answer:
    subjects = [s for place in options.place for s in catalog.within(place)]
    broken = {} if options.place else catalog.unusable()
    if not options.place:
        subjects = list(catalog.installed())
    data = [_summary(subject) for subject in subjects]
    lines = []
    for subject in subjects:
        rules = ", ".join(rule.id for rule in subject.contract.rules)
        lines.append(f"{terminal.bold(subject.name)}  {terminal.dim(subject.path or '')}")
        if subject.summary:
            lines.append(terminal.prose(subject.summary))
        lines.append(terminal.prose(f"rules: {rules or 'none'}", "    ", "  "))
        names = ", ".join(backend.name for backend in subject.backends)
        if names:
            lines.append(f"  backends: {names}")
    lines += [terminal.bad(f"{name} cannot be loaded: {why}") for name, why in broken.items()]
    if not lines:
        lines = [why_empty() if not options.place else "no contract stands there"]
    return Answer("\n".join(lines), data, bool(subjects) and not broken)


def _summary(subject: Subject) -> dict[str, Any]:
    return {
        "op": subject.name,
        "path": subject.path,
        "summary": subject.summary,
        "axes": list(subject.contract.axes),
        "rules": [{"id": rule.id, "demand": rule.text} for rule in subject.contract.rules],
        "backends": [backend.name for backend in subject.backends],
    }


def show(options: argparse.Namespace, terminal: Terminal) -> Answer:
    subject = catalog.find(options.op)
    entries = catalog.catalogue([subject])
    sections = of_subject(subject, entries)
    title = f"{subject.name}: {subject.summary}" if subject.summary else subject.name
    data = {
        **_summary(subject),
        "signature": sections[0].text,  # type: ignore[union-attr]
        "backends": [backend.to_dict() for backend in subject.backends],
        "entries": [entry.to_dict() for entry in entries],
    }
    return Answer(terminal.page(title, sections), data)


def explain(options: argparse.Namespace, terminal: Terminal) -> Answer:
    text = " ".join(options.text)
    if text in ("", "-"):
        text = sys.stdin.read()
    subjects, missing = _subjects_for(text, options.op)
    entries = catalog.catalogue(subjects)
    matches = catalog.look_up(text, entries)
    data = [{"foundBy": match.how, **match.entry.to_dict()} for match in matches]
    sure = bool(matches) and matches[0].how != "words"
    if not entries:
        return Answer(why_empty(), data, yes=False)
    if text in {name for subject in subjects for name in (subject.name, subject.path)}:
        return Answer(f"this is a whole contract: python -m contracts show {text}", [], yes=False)
    if missing is not None and not sure:
        return Answer(missing, [], yes=False)
    if not sure:
        return Answer(_guesses(matches, terminal), data, yes=False)
    (first,) = _with_fix(matches[0].entry, subjects)
    page = terminal.page(first.id, of_entry(first))
    if len(matches) == 1:
        return Answer(page, data)
    rows = [(match.entry.id, match.entry.demand) for match in matches]
    head = terminal.bold(f"{len(matches)} entries say this; the first in full below")
    return Answer(f"{head}\n{terminal.table(('entry', 'demand'), rows)}\n\n{page}", data)


def _with_fix(entry: Entry, subjects: Sequence[Subject]) -> tuple[Entry, ...]:
    subject = next(subject for subject in subjects if subject.name == entry.op)
    return catalog.mended(subject, [entry])


def _subjects_for(text: str, op: str | None) -> tuple[list[Subject], str | None]:
    """Where to look, and why not where the text says, if that is not to be had."""
    if op is not None:
        return [catalog.find(op)], None
    subjects = list(catalog.installed())
    path = catalog.path_in(text)
    if path is not None and path not in (subject.path for subject in subjects):
        try:
            subjects.insert(0, catalog.find(path))
        except NotFound as error:
            if not subjects:
                raise
            return subjects, str(error)
    return subjects, None


def _guesses(matches: Sequence[Match], terminal: Terminal) -> str:
    if not matches:
        return "nothing like this is in the catalogue"
    rows = [(match.entry.id, match.entry.demand) for match in matches]
    return (
        f"no entry has this id or message; the nearest:\n"
        f"{terminal.table(('entry', 'demand'), rows)}"
    )


def check(options: argparse.Namespace, terminal: Terminal) -> Answer:
    subject = catalog.find(options.op)
    contract = subject.contract
    given = calls.read_call(options.arguments)
    try:
        arguments = contract.bind(**given)
    except TypeError as error:
        raise BadCall(f"{subject.name}: {error}") from None
    found = explaining.violations(contract.declaration, arguments)
    unjudged = [rule.id for rule in contract.rules if rule.pointers or rule.values]
    lines = []
    if found:
        count = f"{len(found)} rule{'s' if len(found) != 1 else ''} broken"
        lines.append(terminal.bad(f"refused: {count}"))
        for violation in found:
            first, *rest = str(violation).splitlines()
            lines.append(f"- [{violation.rule}] {first}")
            lines += [f"  {line}" for line in rest]
        path = subject.name if options.op == subject.name else options.op
        lines.append(terminal.dim(f"explain: python -m contracts explain {path}/{found[0].rule}"))
    else:
        known = explaining.sizes(contract.declaration, arguments)
        sizes = ", ".join(f"{name}={size}" for name, size in known.items())
        lines.append(terminal.good("accepted") + (f": {sizes}" if sizes else ""))
    if unjudged:
        lines.append(
            terminal.dim(f"not judged, for want of memory to look at: {', '.join(unjudged)}")
        )
    report = None
    if not found and callable(getattr(subject.target, "explain", None)):
        with _pretending(subject.target, given, options.sm), warnings.catch_warnings():
            # torch warns when the check asks a fake tensor for an address, and excuses it.
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            report = subject.target.explain(**given)
        lines.append(str(report))
    data = {
        "op": subject.name,
        "accepted": not found,
        "violations": [asdict(violation) for violation in found],
        "notJudged": unjudged,
        "backends": None if report is None else _report_data(report),
    }
    return Answer("\n".join(lines), data, not found)


def _report_data(report: Any) -> dict[str, Any]:
    """Which backend would serve the call, and what the others say."""
    answers = getattr(report, "answers", ())
    return {
        "chosen": getattr(report, "choice", None),
        "reasons": {
            answer.backend: [str(reason) for reason in answer.reasons] for answer in answers
        },
    }


def _pretending(target: Any, given: dict[str, Any], sm: int | None) -> AbstractContextManager[Any]:
    """As if the first accelerator among the tensors had this compute capability."""
    devices = [x.device for _, x in tensors_in(list(given.values())) if x.device.type == "cuda"]
    assume = getattr(target, "assume_target", None)
    if sm is None or not devices or assume is None:
        return nullcontext()
    pretence: AbstractContextManager[Any] = assume(devices[0], sm=sm)
    return pretence


def examine(options: argparse.Namespace, terminal: Terminal) -> Answer:
    findings = doctor.examine()
    marks = {True: terminal.good("ok"), False: terminal.bad("!!")}
    width = max(len(finding.name) for finding in findings)
    lines = [
        terminal.prose(f"{finding.name:<{width}}  {finding.text}", " " * (width + 6), "  ").replace(
            "  ", f"{marks[finding.ok]}  ", 1
        )
        for finding in findings
    ]
    fine = all(finding.ok for finding in findings)
    return Answer("\n".join(lines), [finding.to_dict() for finding in findings], fine)


def write_catalog(options: argparse.Namespace, terminal: Terminal) -> Answer:
    subjects = [catalog.find(name) for name in options.op] or list(catalog.installed())
    if not subjects:
        return Answer(why_empty(), [], yes=False)
    bare = catalog.catalogue(subjects)
    entries = [
        entry
        for subject in subjects
        for entry in catalog.mended(subject, [e for e in bare if e.op == subject.name])
    ]
    data = [entry.to_dict() for entry in entries]
    if options.format == "html":
        folder = options.output or Path("site")
        count = pages.write(subjects, entries, folder)
        return Answer(f"{count} pages in {folder}; open {folder / 'index.html'}", data)
    text = (
        json.dumps(data, indent=2)
        if options.format == "json"
        else markdown.catalogue(subjects, entries)
    )
    if options.output is None:
        return Answer(text, data)
    options.output.write_text(text + "\n", encoding="utf-8")
    return Answer(f"{len(entries)} entries in {options.output}", data)
