"""What this machine has: versions, devices, and each backend, available or why not."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from .catalog import installed, unusable
from .catalog.backends import availability
from .catalog.discovery import HOW_TO_ANNOUNCE

DISTRIBUTION = "tensor-contracts"
PACKAGES = ("torch", "triton", "jaxtyping", "beartype")


@dataclass(frozen=True)
class Finding:
    """One line of the report; `ok` is False where something has to be done about it."""

    topic: str
    name: str
    ok: bool
    text: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> tuple[Finding, ...]:
    """Everything that is worth knowing before a bug is reported."""
    return (*_software(), *_namesake(), *_devices(), *_backends())


def _software() -> list[Finding]:
    found = [Finding("software", "python", True, platform.python_version())]
    here = Path(__file__).resolve().parent
    own = _version(DISTRIBUTION)
    text = f"{own} in {here}" if own else f"from the source tree {here.parent}, not installed"
    found.append(Finding("software", DISTRIBUTION, True, text))
    for package in PACKAGES:
        number = _version(package)
        needed = package in ("torch", "jaxtyping")
        text = number or ("missing" if find_spec(package) is None else "there, of unknown version")
        found.append(Finding("software", package, bool(number) or not needed, text))
    return found


def _namesake() -> list[Finding]:
    """The old PyContracts installs a package of the same import name."""
    try:
        other = distribution("PyContracts")
    except PackageNotFoundError:
        return []
    return [
        Finding(
            "software",
            "PyContracts",
            False,
            f"{other.version} is installed and has the same import name, contracts: whichever "
            "was installed last has overwritten files of the other. Run `pip uninstall "
            f"PyContracts`, then `pip install --force-reinstall --no-deps {DISTRIBUTION}`",
        )
    ]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> list[Finding]:
    found = [Finding("device", "cpu", True, f"{torch.get_num_threads()} threads")]
    if torch.version.cuda is None and torch.version.hip is None:
        return [*found, Finding("device", "cuda", True, "this torch is built without CUDA")]
    if not torch.cuda.is_available():
        return [*found, Finding("device", "cuda", True, "torch sees no CUDA device")]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        memory = properties.total_memory / 2**30
        text = f"{properties.name}, sm{properties.major}{properties.minor}, {memory:.0f} GiB"
        found.append(Finding("device", f"cuda:{index}", True, text))
    return found


def _backends() -> list[Finding]:
    subjects, broken = installed(), unusable()
    found = [Finding("operation", name, False, why) for name, why in broken.items()]
    if not subjects and not broken:
        found.append(Finding("operation", "none", True, HOW_TO_ANNOUNCE))
    for subject in subjects:
        if not subject.backends:
            found.append(Finding("operation", subject.name, True, "a contract without backends"))
        for name, reasons in availability(subject.target, _best_device()).items():
            text = f"no: {'; '.join(reasons)}" if reasons else f"yes, on {_best_device()}"
            found.append(Finding("backend", f"{subject.name}/{name}", True, text))
    return found


def _best_device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
