"""The layers of the native code: who may include and link whom, and what may stand nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"

# What each folder may include beside itself.
ALLOWED = {
    "base": set(),
    "plan": {"base"},
    "reduce": {"base"},
    "device": {"base"},
    "transport": {"base"},
    "backend": {"transport", "plan", "reduce", "device", "base"},
    "engine": {"backend", "transport", "plan", "reduce", "device", "base"},
    "bindings": {"engine", "backend", "transport", "plan", "reduce", "device", "base"},
    "testing": {"engine", "backend", "transport", "plan", "reduce", "device", "base"},
    "tests": {
        *("bindings", "testing", "engine", "backend"),
        *("transport", "plan", "reduce", "device", "base"),
    },
    "fuzz": {"engine", "backend", "transport", "plan", "reduce", "device", "base"},
    "benchmarks": {"testing", "engine", "backend", "transport", "plan", "reduce", "device", "base"},
}
LAYERS = sorted(ALLOWED)

# The parts of the engine: each may include those in front of it, and none the engine itself.
ENGINE_PARTS = [
    "messages",
    "submission",
    "timeline",
    "devices",
    "execution",
    "agreement",
    "watch",
    "driver",
]
MOST_ENGINE_METHODS = 25
MOST_ENGINE_MEMBERS = 15

PYTHON_HEADERS = re.compile(r"^(Python\.h|nanobind/.*|pybind11/.*|dlpack/.*)$")
FRAMEWORK_HEADERS = re.compile(
    r"^(torch|ATen|c10|tensorflow|tsl|xla|jaxlib|mxnet)/|^(mpi|nccl|rccl|cuda|cuda_runtime|cublas.*)\.h$"
)
# The environment, names of hosts and secrets are Python's business, and so are their headers.
FORBIDDEN_CALLS = re.compile(
    r"\b(getenv|secure_getenv|setenv|putenv|environ|getaddrinfo|gethostbyname\w*|EVP_\w+|HMAC\w*"
    r"|SHA\d+\w*|SSL_\w+|getrandom)\b"
)
FORBIDDEN_HEADERS = re.compile(r"^(netdb\.h|openssl/.*|sodium\.h|mbedtls/.*|gcrypt\.h)$")


def sources() -> list[Path]:
    found = sorted(path for path in NATIVE.rglob("*") if path.suffix in (".cc", ".h"))
    assert len(found) > 30
    return found


def folder_of(path: Path) -> str:
    return path.relative_to(NATIVE).parts[0]


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def layers_included(path: Path) -> set[str]:
    """The folders of native/ whose headers the file includes, by path from native/."""
    found = set()
    for header in includes(path):
        candidates = (NATIVE / header, path.parent / header)
        for candidate in candidates:
            if candidate.is_file() and candidate.resolve().is_relative_to(NATIVE):
                found.add(folder_of(candidate.resolve()))
                break
    return found


def code_of(path: Path) -> str:
    """The text without comments and string literals."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern, '""', path.read_text(), flags=re.DOTALL)


def report(findings: list[str]) -> str:
    return "\n".join(findings)


def test_every_folder_has_its_place() -> None:
    folders = {path.name for path in NATIVE.iterdir() if path.is_dir()}
    assert folders <= set(LAYERS), "say in ALLOWED what a new folder may include"


def test_folders_include_only_what_lies_below_them() -> None:
    findings = [
        f"{path.relative_to(ROOT)} includes {layer}/"
        for path in sources()
        for layer in sorted(layers_included(path) - {folder_of(path)} - ALLOWED[folder_of(path)])
    ]
    assert not findings, report(findings)


def test_kernels_know_the_engine_by_its_c_interface_only() -> None:
    """They are linked into libraries that frameworks load beside the engine, not into it."""
    kernels = re.compile(r"bindings/(kernels/\w+|c_interface)\.h|(plan|base)/\w+\.h")
    findings = [
        f"{path.relative_to(ROOT)} includes {header}"
        for path in sources()
        if path.is_relative_to(NATIVE / "bindings" / "kernels")
        for header in includes(path)
        if "/" in header and not kernels.fullmatch(header)
    ]
    assert not findings, report(findings)


def test_only_the_bindings_know_python() -> None:
    findings = [
        f"{path.relative_to(ROOT)} includes {header}"
        for path in sources()
        if folder_of(path) != "bindings"
        for header in includes(path)
        if PYTHON_HEADERS.match(header)
    ]
    assert not findings, report(findings)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(FRAMEWORK_HEADERS, id="frameworks"),
        pytest.param(FORBIDDEN_HEADERS, id="names and crypto"),
    ],
)
def test_headers_that_stand_nowhere(headers: re.Pattern[str]) -> None:
    findings = [
        f"{path.relative_to(ROOT)} includes {header}"
        for path in sources()
        for header in includes(path)
        if headers.match(header)
    ]
    assert not findings, report(findings)


def test_no_environment_no_names_no_crypto() -> None:
    findings = [
        f"{path.relative_to(ROOT)} uses {match.group(0)}"
        for path in sources()
        for match in FORBIDDEN_CALLS.finditer(code_of(path))
    ]
    assert not findings, report(findings)


def cmake_of(folder: str) -> str:
    return (NATIVE / folder / "CMakeLists.txt").read_text()


def libraries() -> dict[str, str]:
    """The folder of each library; most have one, of their own name."""
    named = re.compile(r"add_library\(hvd_(\w+)")
    return {name: folder for folder in LAYERS for name in named.findall(cmake_of(folder))}


def linked_layers(folder: str) -> set[str]:
    """The folders of native/ whose libraries the targets of a folder name in their links."""
    calls = re.findall(r"target_link_libraries\(([^)]*)\)", cmake_of(folder))
    names = {name for call in calls for name in re.findall(r"\bhvd_(\w+)", call)}
    return {libraries().get(name, name) for name in names} - {folder}


def reachable_layers(folder: str) -> set[str]:
    reached: set[str] = set()
    waiting = [folder]
    while waiting:
        for layer in linked_layers(waiting.pop()) & set(LAYERS) - reached:
            reached.add(layer)
            waiting.append(layer)
    return reached


@pytest.mark.parametrize("folder", LAYERS)
def test_the_link_graph_is_the_include_rule(folder: str) -> None:
    assert reachable_layers(folder) == ALLOWED[folder]


def part_of(header: str) -> str:
    """The part of the engine that a header, by path from native/, belongs to; else its name."""
    return header.removeprefix("engine/").partition("/")[0]


def includes_out_of_order(path: Path, part: str) -> list[str]:
    """The headers of the engine that a file of a part must not include."""
    allowed = ENGINE_PARTS[: ENGINE_PARTS.index(part) + 1]
    headers = [header for header in includes(path) if header.startswith("engine/")]
    return [header for header in headers if part_of(header) not in allowed]


def test_the_engine_consists_of_its_parts() -> None:
    folder = NATIVE / "engine"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == set(ENGINE_PARTS)
    files = {path.name for path in folder.iterdir() if path.is_file()}
    assert files == {"CMakeLists.txt", "engine.cc", "engine.h", "options.h"}


@pytest.mark.parametrize("part", ENGINE_PARTS)
def test_parts_of_the_engine_include_each_other_in_one_direction(part: str) -> None:
    files = [path for path in sources() if path.is_relative_to(NATIVE / "engine" / part)]
    assert files
    wrong = [f"{path}: {header}" for path in files for header in includes_out_of_order(path, part)]
    assert not wrong, report(wrong)


def test_an_include_against_the_order_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "queue.cc"
    source.write_text(
        '#include "engine/engine.h"\n#include "engine/watch/watch.h"\n'
        '#include "engine/messages/request.h"\n#include "engine/submission/check.h"\n'
    )
    assert includes_out_of_order(source, "submission") == [
        "engine/engine.h",
        "engine/watch/watch.h",
    ]


def class_size(text: str, name: str) -> tuple[int, int]:
    """How many functions, and how many data members, the class declares."""
    body = re.sub(r"//[^\n]*", "", text).split(f"class {name} {{", 1)[1].split("\n};", 1)[0]
    while re.search(r"\{[^{}]*\}", body):  # what functions do, and what members begin with
        body = re.sub(r"\s*(?:\{[^{}]*\};?)", ";", body)
    declared = re.sub(r"\b(?:public|private|protected):", "", body).split(";")
    declarations = [" ".join(each.split()) for each in declared if each.strip()]
    functions = [each for each in declarations if "(" in each]
    return len(functions), len(declarations) - len(functions)


def test_the_class_that_a_caller_sees_is_small() -> None:
    methods, members = class_size((NATIVE / "engine" / "engine.h").read_text(), "Engine")
    assert 15 <= methods <= MOST_ENGINE_METHODS
    assert 5 <= members <= MOST_ENGINE_MEMBERS


def test_functions_and_members_of_a_class_are_told_apart() -> None:
    text = """
class Small {
 public:
  Small(int a, int b);  // not; these
  [[nodiscard]] int a() const { return a_; }
  bool wait(Time until) {
    if (a_ > 0) { return true; }
    return false;
  }

 private:
  int a_ = 0;
  std::atomic<bool> b_{false};
};
"""
    assert class_size(text, "Small") == (3, 2)
