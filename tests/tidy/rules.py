"""Rules about the code itself: each takes a file's path and text and returns what breaks it.

Paths are relative to the package (`cold/log/commit_log.py`) for rules of the source, to the
repository for others. A finding is one line: path, line number, what is wrong.
"""

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Iterator

FUNCTION_LINES_MAX = 70
LINE_LENGTH_MAX = 100
NAMES_MAX = 12
MODULES_MAX = 16
FORBIDDEN_NAMES = frozenset(
    {
        *("utils", "util", "helpers", "helper", "common", "core"),
        *("base", "manager", "handler", "impl", "misc"),
    }
)
UNFINISHED = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
LAKE_ROOMS = ("format/", "cold/", "hot/", "ingest/", "query/")
FILE_MODULES = frozenset({"pathlib", "shutil", "tempfile", "fcntl", "mmap", "glob"})
FILE_CALLS = {
    "": {"open"},
    "io": {"open", "FileIO", "open_code"},
    "os": {
        *("chmod", "fdatasync", "fstat", "fsync", "ftruncate", "link", "listdir", "lstat"),
        *("makedirs", "mkdir", "open", "readlink", "remove", "removedirs", "rename", "renames"),
        *("replace", "rmdir", "scandir", "stat", "symlink", "truncate", "unlink", "utime", "walk"),
    },
    "os.path": {
        *("exists", "getmtime", "getsize", "isdir", "isfile", "islink", "lexists", "realpath"),
    },
    "pa": {"memory_map", "create_memory_map", "OSFile", "input_stream"},
}
# What is not a file of a lake, and who touches it.
FILES_ALLOWED = {
    ("hot/postgres/server/server_note.py", "os.chmod"): "passwords, which are of this user alone",
    ("hot/postgres/server/cluster.py", "shutil"): "a cluster that was not finished",
    (
        "hot/postgres/server/binaries.py",
        "os.chmod",
    ): "the lake's folder, for PostgreSQL to walk through",
    ("hot/postgres/server/binaries.py", "os.stat"): "PostgreSQL's programs, and who may read them",
    ("hot/postgres/server/binaries.py", "shutil"): "PostgreSQL's programs, copied for another user",
    ("cold/storage/cache.py", "os.makedirs"): "the user's own folder of local copies, with a mode",
    ("ingest/files/input_files.py", "glob"): "the files that a user names",
    ("ingest/files/input_files.py", "os.path.exists"): "the files that a user names",
    ("ingest/files/input_files.py", "os.path.isdir"): "the folders that a user names",
    ("ingest/files/input_files.py", "os.stat"): "the files that a user names",
    ("ingest/files/input_files.py", "os.walk"): "the folders that a user names",
    ("query/session.py", "os.path.isfile"): "a caller's own Parquet file",
    ("query/worker/shared_memory.py", "fcntl"): "sealed memory that is shared with workers",
    ("query/worker/shared_memory.py", "mmap"): "sealed memory that is shared with workers",
    ("query/spill.py", "open"): "what the system says of a process",
    ("query/spill.py", "os.scandir"): "folders of spilled rows that killed processes left",
    ("query/spill.py", "shutil"): "the folders of spilled rows",
    ("query/spill.py", "tempfile"): "the folders of spilled rows",
    ("query/worker/sandbox.py", "os.makedirs"): "the folders of tables, before a rule names them",
    ("query/worker/sandbox.py", "os.open"): "the paths that a rule of the kernel names",
    ("query/worker/sandbox.py", "os.path.exists"): "what the kernel says that it has",
    ("query/worker/sandbox.py", "os.path.isdir"): "the paths that a rule of the kernel names",
    ("query/worker/memory_limit.py", "mmap"): "a look at how much memory there is",
    ("query/worker/memory_limit.py", "open"): "what the system says of this process",
}
_PRAGMA = re.compile(r"\s*# (?:type: ignore|noqa)\b.*$")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def long_lines(path: str, text: str) -> list[str]:
    """A line has at most 100 characters, what is said to a checker not counted."""
    return [
        f"{path}:{number}: {len(line)} characters, at most {LINE_LENGTH_MAX}"
        for number, line in enumerate(text.splitlines(), start=1)
        if len(_PRAGMA.sub("", line)) > LINE_LENGTH_MAX
    ]


def long_functions(path: str, text: str) -> list[str]:
    """A function has at most 70 lines."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines")
    return found


def missing_docstrings(path: str, text: str) -> list[str]:
    """Modules and what they offer say what they do; a protocol's methods may leave it to it."""
    tree = ast.parse(text)
    found = [] if ast.get_docstring(tree) else [f"{path}:1: the module has no docstring"]
    found += [
        f"{path}:{node.lineno}: {node.name} has no docstring"
        for node in _offered(tree.body)
        if not ast.get_docstring(node)
    ]
    return found


def _offered(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    for node in body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        yield node
        if isinstance(node, ast.ClassDef) and not _is_protocol(node):
            yield from _offered(node.body)


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).split("[")[0].endswith("Protocol") for base in node.bases)


def forbidden_name(path: str, text: str) -> list[str]:
    """A module is named for what it is about."""
    parts = path.removesuffix(".py").split("/")
    return [f"{path}: `{part}` says nothing" for part in parts if part in FORBIDDEN_NAMES]


def getters(path: str, text: str) -> list[str]:
    """A function says its effect; `get` says none."""
    return [
        f"{path}:{node.lineno}: {node.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, Function)
        and node.name.lstrip("_").startswith("get_")
        and node.name != "get_buffer"  # asyncio's own name
    ]


def async_code(path: str, text: str) -> list[str]:
    """Only the server is async."""
    if path.startswith("server/"):
        return []
    kinds = ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await
    return [
        f"{path}:{node.lineno}: async code"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds)
    ]


def unfinished(path: str, text: str) -> list[str]:
    """What is open is an issue, not a note in the code."""
    pattern = re.compile(rf"\b({'|'.join(UNFINISHED)})\b")
    return [
        f"{path}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def file_access(path: str, text: str) -> list[str]:
    """Only `disk.py` touches the files of a lake."""
    return [
        f"{path}:{number}: {name}"
        for number, name in file_uses(path, text)
        if (path, name) not in FILES_ALLOWED
    ]


def file_uses(path: str, text: str) -> list[tuple[int, str]]:
    """Return where a module of the lake's rooms touches any file, and by what."""
    if not path.startswith(LAKE_ROOMS):
        return []
    return [(node.lineno, name) for node in ast.walk(ast.parse(text)) for name in _touches(node)]


def _touches(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.split(".")[0] in FILE_MODULES)
    elif isinstance(node, ast.ImportFrom) and node.module:
        if node.module.split(".")[0] in FILE_MODULES:
            yield node.module
        room = "pa" if node.module == "pyarrow" else node.module
        names = FILE_CALLS.get(room, frozenset())
        yield from (f"{node.module}.{a.name}" for a in node.names if a.name in names)
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        room, _, name = called.rpartition(".")
        if name in FILE_CALLS.get(room, frozenset()):
            yield called


def named_in(document: str) -> list[tuple[str, str]]:
    """Return the rooms and modules that an architecture document names in backticks.

    Each comes with the room that its section is about (`### `lake/``), or nothing: inside it, a
    bare module may be one of that room's.
    """
    found, room = [], ""
    for line in document.splitlines():
        if line.startswith("#"):
            heading = re.fullmatch(r"#+ `(\w+/)`.*", line)
            room = heading.group(1) if heading else ""
        found += [(name, room) for name in re.findall(r"`([\w/]+(?:\.py|/))`", line)]
    return found


# The first column of CONTRIBUTING.md's "Plain English".
BANNED_WORDS = re.compile(
    r"\b(whoever|whomever|nobody|somebody|everybody|anew|mend(?:s|ed|ing)?|for ever"
    r"|(?:leav(?:e|es|ing)|left) (?:\w+ )?away|(?:of|on) (?:its|our|their) own|who is late"
    r"|is no error|(?:\w+ that|which|who) is none|gives? up|g(?:iv(?:ing|en)|ave) up|let go"
    r"|in the way of|at the door|behind the back|(?:is|are|be|been) told"
    r"|for not at all|for good|keeps? no other|(?:is|are) (?:its|their) own)\b",
    re.IGNORECASE,
)
# A function's name says what it does. A bare past participle says only that something was done.
PARTICIPLES = frozenset(
    {
        *("told", "made", "seen", "taken", "given", "found", "kept", "sent"),
        *("shown", "known", "done", "gone", "begun", "spoken", "written", "chosen", "bound"),
        *("left", "meant", "said", "brought"),
    }
)
NOT_PARTICIPLES = frozenset({"seed", "feed", "need", "embed", "speed", "exceed", "proceed", "shed"})
SUBJECT_LENGTH_MAX = 69
NOT_VERBS = frozenset(
    {
        *("A", "All", "An", "And", "At", "Both", "Each", "Every", "For", "If", "In", "It", "More"),
        *("New", "No", "Not", "Now", "On", "One", "Only", "Some", "Than", "That", "The", "Then"),
        *("There", "Two", "We", "What", "When", "Where", "Which", "Who", "With"),
    }
)


_NAME = re.compile(r"[A-Z_.]")
FILE_ENDINGS = (".json", ".md", ".py", ".sql")
# What the prose names and another program, protocol or library defines.
NOT_OURS = frozenset(
    {
        *("Allow", "Authorization", "ETag", "Host", "Upgrade", "NOTIFY_SOCKET", "RLIMIT_AS"),
        *("NUMBA_CACHE_DIR", "ResourceMetrics", "ScopeMetrics", "google.rpc.RetryInfo"),
        *("RetryInfo", "contains_range", "_created", "AT", "NaN", "Infinity", "A", "Z", "a_2"),
        *("PT5S", "P1DT90S", "TCCV", "tck_price"),
        *("THERMOCLINE_POSTGRES", "THERMOCLINE_HOT_BYTES_MAX"),  # built from the settings' names
    }
)


def private_words(path: str, text: str) -> list[str]:
    """Text names the actor; CONTRIBUTING.md lists the words that we do not use.

    The user `nobody` of the operating system is called by its name.
    """
    return [
        f"{path}:{number}: {found[0]}"
        for number, line in enumerate(text.splitlines(), start=1)
        for found in BANNED_WORDS.finditer(line.replace("`nobody`", "").replace('"nobody"', ""))
    ]


def participle_names(path: str, text: str) -> list[str]:
    """A function is named by a verb, or by the noun that it returns."""
    return [
        f"{path}:{node.lineno}: {node.name}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, Function)
        and _is_participle(node.name.strip("_"))
        and not any(ast.unparse(one).endswith("property") for one in node.decorator_list)
    ]


def _is_participle(name: str) -> bool:
    return name in PARTICIPLES or (
        "_" not in name and name.endswith("ed") and name not in NOT_PARTICIPLES
    )


def stale_names(texts: dict[str, str]) -> list[str]:
    """A name in backticks exists in the code: renaming a thing renames it in the prose, too.

    It is a name if it has a capital, an underscore or a dot. A class or constant must be a name
    in the code; other names may also be words of a text, such as a field of a format.
    """
    names, words = set(dir(builtins)), set()
    prose = []
    for path, text in texts.items():
        documented = {node.lineno for node in ast.walk(ast.parse(text)) if _is_prose(node)}
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                names.add(token.string)
            elif token.type == tokenize.COMMENT or token.start[0] in documented:
                prose.append((path, token.start[0], token.string))
            else:
                words.update(re.findall(r"\w+", token.string))
    return [
        f"{path}:{line}: {name}"
        for path, line, text in prose
        for name in re.findall(r"`(\w+(?:\.\w+)*)(?:\(\))?`", text)
        if _NAME.search(name)
        and not name.endswith(FILE_ENDINGS)
        and name not in NOT_OURS
        and any(
            part not in (names if part[:1].isupper() else names | words) for part in name.split(".")
        )
    ]


def _is_prose(node: ast.AST) -> bool:
    value = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(value, ast.Constant)


def public_classes(text: str) -> list[str]:
    """Return the public classes that a module defines at its top."""
    return [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def imports_of(text: str) -> list[str]:
    """Return the top-level modules that a module imports, but for relative imports."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(node.module.split(".")[0])
    return found


def poor_subjects(subjects: list[str]) -> list[str]:
    """Return the subjects that are long, end with a full stop or begin with no imperative."""
    return [
        subject
        for subject in subjects
        if len(subject) > SUBJECT_LENGTH_MAX
        or subject.endswith(".")
        or not re.match(r"[A-Z][a-z]+ ", subject)
        or re.match(r"[A-Z][a-z]*(?:[^e]ed|ied|[^r]ing|[^s]s) ", subject)
        or subject.split()[0] in NOT_VERBS
    ]
