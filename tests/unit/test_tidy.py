"""Statements about the source are true: names that they cite exist, exceptions have reasons."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.private_uses import REASONS, private_uses
from tests.source_trees import nodes_of, tree_of

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "cometmq"
CODE_FOLDERS = ("src", "tests", "examples", "benchmarks", "scripts")
# A module this long says in its docstring why it is not divided ("Longer than 500 lines: …").
MODULE_LINES = 500
LENGTH_REASON = f"Longer than {MODULE_LINES} lines: "
# So is a function, with its signature and docstring. These are longer, and say why or put a thing together.
FUNCTION_LINES = 70
LONGER_FUNCTIONS = {
    "store/get.py:MessageGetter._collect": "a call for each message would cost more than its work",
    "store/copying.py:RecordCopier.append_copies": "each call that would split the loop costs a tenth",
    "protocol/messages/plain_records.py:plain_messages": "a call for each field would cost as much as the work",
    "client/consuming/push_member.py:GroupMember.__init__": "makes the parts of a member, which know each other",
}
# A package has about a dozen modules beside its packages. These are lists, searched by name.
PACKAGE_MODULES = 15
LARGER_PACKAGES = {
    "cli/admin/commands": "a module for each subject of mqadmin's commands",
    "console/pages": "a module for each page of the console's menu",
}

SAID = re.compile(r'"""(?:.*?)"""|(?<!\S)# [^\n]*', re.DOTALL)
NOQA = re.compile(r"# noqa(?!: [A-Z]+\d+(, [A-Z]+\d+)* - \S)")
TYPE_IGNORE = re.compile(r"# type: ignore(?!\[[a-z-]+(,[a-z-]+)*\]  # \S)")
DECISION = re.compile(r"\bdecisions? (\d+)(?:(?:,| and) (\d+))?\b", re.IGNORECASE)
# A row of the list of decisions: number, title, date, page.
ROW = re.compile(r"^\| (\d+) \| (.+) \| (\d{4}-\d\d-\d\d) \| (.+) \|$", re.MULTILINE)
OF_INTERNALS = re.compile(r"\[[^\]]+\]\(\.\./internals/[\w-]+\.md\)")
INTERNALS = re.compile(r"docs/internals/[\w-]+\.md")
# `producer.py`, `client/producing/producer.py`, `tests/unit`, and a function of a file: `store/get.py:read`.
PATH = re.compile(r"`([\w./-]+?\.(?:py|pyi|md|json|html|toml|txt|conf))(?::([\w.]+))?(?:\(\))?`")
MODULE = re.compile(r"`(cometmq(?:\.\w+)+)(?:\(\))?`")
# A snake_case word or `Class.attribute` in back-ticks: some code must know it.
NAME = re.compile(r"`(_?[a-z]\w*_\w+)(?:\(\))?`")
ATTRIBUTE = re.compile(r"`([A-Z][a-z]\w+)\.(\w+)(?:\([^`]*\))?`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OPTIONS = re.compile(r"class \w*(Config|Options|Settings)\b")
IMAGE = re.compile(r'(?:src|srcset)="([^"#?:]+)"')

# What text speaks of and neither our code nor a test has: Spark's names, and examples.
FOREIGN = frozenset({"percentile_approx", "cometmq.a.b"}) | {
    # Of other clients, in docs/coming-from.md.
    *("auto_offset_reset", "beginning_offsets", "end_offsets", "get_watermark_offsets"),
    *("offsets_for_times", "seek_to_beginning", "store_offsets", "set_delay_time_level"),
    *("set_message_batch_max_size", "set_name_server_address", "set_session_credentials"),
    "set_thread_count",
}


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def markdown_files() -> list[Path]:
    own = [*ROOT.glob("*.md"), *(ROOT / ".github").glob("*.md")]
    return sorted(
        [*own, *(p for f in ("docs", "benchmarks", "examples") for p in (ROOT / f).rglob("*.md"))]
    )


@functools.cache
def divided(path: Path) -> tuple[tuple[tuple[int, str], ...], str]:
    """The comments and triple-quoted texts of a file with their lines, and what is left: its code.

    By one expression and without a parser, which would take ten seconds for all files.
    """
    text = path.read_text()
    said = []
    line, end = 1, 0
    for match in SAID.finditer(text):
        line += text.count("\n", end, match.start())
        end = match.start()
        said.append((line, match[0]))
    return tuple(said), SAID.sub(" ", text)


def prose() -> Iterator[tuple[Path, int, str]]:
    """Every text that cites: docstrings and comments of all code, and the pages."""
    for path in python_files(*CODE_FOLDERS):
        if path == Path(__file__):
            continue
        for line, text in divided(path)[0]:
            yield path, line, text
    for path in markdown_files():
        if path.name == "CHANGELOG.md":  # tells of what was
            continue
        yield path, 1, path.read_text()


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


@functools.cache
def names_of_code() -> frozenset[str]:
    """All identifiers, words of strings and names of files; not what comments and docstrings say."""
    found: set[str] = set()
    for path in python_files(*CODE_FOLDERS):
        found |= {path.stem, path.parent.name, *re.findall(r"\w+", divided(path)[1])}
    for path in (ROOT / "scripts").iterdir():
        if path.is_file():
            found |= set(re.findall(r"\w+", path.read_text()))
    return frozenset(found)


@functools.cache
def classes() -> dict[str, list[Path]]:
    """The files of src that define each class, at any depth."""
    found: dict[str, list[Path]] = {}
    for path in python_files("src"):
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(path)
    return found


@functools.cache
def words_of_class(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return all words in our classes of that name, and all words in the names of their bases."""
    words: set[str] = set()
    bases: set[str] = set()
    for path in classes()[name]:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and node.name == name:
                words.update(re.findall(r"\w+", ast.unparse(node)))
                bases.update(*(re.findall(r"\w+", ast.unparse(base)) for base in node.bases))
    return frozenset(words), frozenset(bases)


def has_attribute(name: str, attribute: str) -> bool:
    """Whether class `name` is not ours, or one of that name has it or inherits it."""
    if name not in classes():
        return True
    words, bases = words_of_class(name)
    if attribute in words:
        return True
    return any(has_attribute(base, attribute) for base in bases - {name} if base in classes())


def resolves(cited: str, citing: Path) -> Path | None:
    """The file a text means: from the root, the package, its own folder, or by the end of its path."""
    for base in (ROOT, PACKAGE, SOURCE, citing.parent):
        if (base / cited).exists():
            return base / cited
    parts = Path(cited).parts
    for path in all_files():
        if path.parts[-len(parts) :] == parts:
            return path
    return None


@functools.cache
def all_files() -> tuple[Path, ...]:
    listed = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True
    )
    return tuple(ROOT / line for line in listed.splitlines())


def defines(path: Path, dotted: str) -> bool:
    """Whether a file has the function, class, method or constant `dotted`."""
    body: list[ast.stmt] = tree_of(path).body
    for part in dotted.split("."):
        for node in body:
            named = getattr(node, "name", None) == part or (
                isinstance(node, ast.Assign | ast.AnnAssign)
                and part in re.findall(r"\w+", ast.unparse(node).partition("=")[0])
            )
            if named:
                body = getattr(node, "body", [])
                break
        else:
            return False
    return True


def module_exists(dotted: str) -> bool:
    """Whether `cometmq.a.b` is a module, or a name of one."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        path = SOURCE.joinpath(*parts[:cut])
        for file in (path.with_suffix(".py"), path / "__init__.pyi", path / "__init__.py"):
            if file.is_file():
                rest = parts[cut:]
                return not rest or rest[0] in re.findall(r"\w+", file.read_text())
    return False


@functools.cache
def decisions() -> dict[int, tuple[str, str]]:
    """The title and the page of each number, as the list of decisions has them."""
    text = (ROOT / "docs" / "decisions" / "README.md").read_text()
    return {int(number): (title, page) for number, title, _, page in ROW.findall(text)}


# Each of these finds what it is for, so that none of them can silently find nothing.


def suppression_faults(line: str) -> list[str]:
    return [
        f"{kind} without a code and its reason behind it"
        for kind, pattern in (("noqa", NOQA), ("type: ignore", TYPE_IGNORE))
        if pattern.search(line)
    ]


@pytest.mark.parametrize("command", [["format", "--check"], ["check"]])
def test_the_tree_is_formatted_and_linted(command: list[str]) -> None:
    """CI fails for one unformatted line after three quarters of an hour; `make test` fails at once."""
    ruff = Path(sys.executable).parent / "ruff"
    ran = subprocess.run(
        [ruff, *command, "--quiet", "."], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}\nscripts/check --fix mends it"


def citation_faults(text: str, citing: Path) -> list[str]:
    faults = []
    numbers = decisions()
    for match in DECISION.finditer(text):
        faults += [f"no decision {n}" for n in match.groups() if n and int(n) not in numbers]
    faults += [f"no file {name}" for name in INTERNALS.findall(text) if not (ROOT / name).exists()]
    for cited, inner in PATH.findall(text):
        file = resolves(cited, citing)
        if file is None:
            if cited.endswith(".py"):  # others are what programs and users write
                faults.append(f"no file {cited}")
        elif inner and not defines(file, inner):
            faults.append(f"no {inner} in {cited}")
    modules, names = set(MODULE.findall(text)) - FOREIGN, set(NAME.findall(text)) - FOREIGN
    faults += [f"no {name}" for name in sorted(modules) if not module_exists(name)]
    faults += [f"no code knows {name}" for name in sorted(names - names_of_code())]
    faults += [
        f"{name} has no {attribute}"
        for name, attribute in ATTRIBUTE.findall(text)
        if not has_attribute(name, attribute)
    ]
    return faults


def test_a_suppression_without_a_reason_is_found() -> None:
    assert suppression_faults("x = 1  # noqa: F401")
    assert suppression_faults("x = 1  # noqa")
    assert suppression_faults("x = 1  # type: ignore[misc]")
    assert not suppression_faults("x = 1  # noqa: F401, E501 - pytest finds it")
    assert not suppression_faults("x = 1  # type: ignore[misc]  # mypy infers none")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("see decision 999", "no decision 999"),
        ("decisions 13 and 998", "no decision 998"),
        (f"see docs/internals/{'nowhere'}.md", "no file docs/internals/nowhere.md"),
        ("`broker/nowhere.py` does it", "no file broker/nowhere.py"),
        ("`store/get.py:no_such`", "no no_such in store/get.py"),
        ("`cometmq.nowhere.thing`", "no cometmq.nowhere.thing"),
        (f"see `delay{'_'}replay`", f"no code knows delay{'_'}replay"),
        ("`Request.ext()` decodes it", "Request has no ext"),
    ],
)
def test_a_citation_of_what_is_not_there_is_found(text: str, fault: str) -> None:
    assert citation_faults(text, PACKAGE / "errors.py") == [fault]


def test_a_citation_of_what_is_there_is_none() -> None:
    text = (
        "decision 13, `store/get.py`, `cometmq.aio.Producer`, `RequestDecoder.decode`, `java_hash`"
    )
    assert citation_faults(text, PACKAGE / "errors.py") == []


def test_every_suppression_has_its_reason() -> None:
    faults = [
        f"{place(path, line)}: {fault}"
        for path in python_files(*CODE_FOLDERS)
        if path != Path(__file__)
        for line, text in divided(path)[0]
        for fault in suppression_faults(text)
    ]
    assert not faults, "\n".join(faults)


def test_what_texts_cite_exists() -> None:
    faults = [
        f"{place(path, line)}: {fault}"
        for path, line, text in prose()
        for fault in citation_faults(text, path)
    ]
    assert not faults, "\n".join(faults)


def test_links_and_pictures_of_pages_lead_somewhere() -> None:
    faults = []
    for page in markdown_files():
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in [*LINK.findall(text), *IMAGE.findall(text)]:
            file = target.partition("#")[0]
            if file and "://" not in file and not (page.parent / file).exists():
                faults.append(f"{page.relative_to(ROOT)}: {target}")
    assert not faults, "\n".join(faults)


def test_each_decision_has_its_page_and_none_a_file() -> None:
    folder = ROOT / "docs" / "decisions"
    assert [path.name for path in folder.glob("*.md")] == ["README.md"]
    rows = ROW.findall((folder / "README.md").read_text())
    numbers = [int(number) for number, *_ in rows]
    assert numbers == sorted(set(numbers))
    assert [(title, page) for _, title, _, page in rows if LINK.search(title)] == []
    assert [page for *_, page in rows if not OF_INTERNALS.fullmatch(page)] == []


def test_each_page_of_internals_is_in_their_list() -> None:
    folder = ROOT / "docs" / "internals"
    listed = LINK.findall((folder / "README.md").read_text())
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert pages - set(listed) == set()


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    pages = (path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    # README.md is the list for readers of the repository.
    wanted = [page for page in pages if page != "README.md"]
    assert [page for page in wanted if f": {page}\n" not in menu] == []


@pytest.mark.parametrize("page", ["getting-started.md"])
def test_programs_of_the_guides_are_those_of_the_readme(page: str) -> None:
    """The README's are run by tests."""
    program = re.compile(r"```python\n.*?```", re.DOTALL)
    known = program.findall((ROOT / "README.md").read_text())
    found = program.findall((ROOT / "docs" / page).read_text())
    assert found
    assert [text for text in found if text not in known] == []


def test_a_long_module_says_why_it_is_not_divided() -> None:
    faults = []
    for path in python_files("src"):
        lines = len(path.read_text().splitlines())
        says = LENGTH_REASON in " ".join((ast.get_docstring(tree_of(path)) or "").split())
        if lines > MODULE_LINES and not says:
            faults.append(f"{path.relative_to(ROOT)}: {lines} lines and no {LENGTH_REASON!r}")
    assert not faults, "\n".join(faults)


def long_functions(body: ast.AST, most: int, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The dotted names of all functions at any depth that have more than `most` lines, and the lines."""
    for node in ast.iter_child_nodes(body):
        name = prefix
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > most and not isinstance(node, ast.ClassDef):
                yield name, lines
            name += "."
        yield from long_functions(node, most, name)


def test_a_long_function_is_found() -> None:
    text = "class A:\n  if True:\n    async def f(self):\n      def g():\n        return 1\n      return g\n"
    assert list(long_functions(ast.parse(text), 3)) == [("A.f", 4)]
    assert list(long_functions(ast.parse(text), 1)) == [("A.f", 4), ("A.f.g", 2)]


def test_no_function_is_longer_than_it_should_be_without_a_reason() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{name}": lines
        for path in python_files("src/cometmq")
        for name, lines in long_functions(tree_of(path), FUNCTION_LINES)
    }
    assert found.keys() == LONGER_FUNCTIONS.keys(), found


def test_no_package_has_more_modules_than_a_reader_can_survey_without_a_reason() -> None:
    modules = Counter(
        path.parent.relative_to(PACKAGE).as_posix()
        for path in python_files("src/cometmq")
        if path.name != "__init__.py"
    )
    larger = {package: count for package, count in modules.items() if count > PACKAGE_MODULES}
    assert larger.keys() == LARGER_PACKAGES.keys(), larger


def test_a_test_uses_a_private_name_only_for_a_reason() -> None:
    """See by public means what the test shows, or give the reason in tests/private_uses.py."""
    assert private_uses() == {path: names for path, (_, names) in REASONS.items()}


def options() -> Iterator[tuple[Path, str, str]]:
    """The fields of all records of options and settings in src, but for those that peers read."""
    for path in python_files("src"):
        if path.parent.name == "model" or not OPTIONS.search(path.read_text()):
            continue
        for node in nodes_of(path):
            if not isinstance(node, ast.ClassDef):
                continue
            if not OPTIONS.search(f"class {node.name}("):
                continue
            if "__struct_fields__" in ast.unparse(node):  # it reads all of its own
                continue
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield path, node.name, field.target.id


def test_every_option_is_read() -> None:
    # As an attribute, as the value of a keyword argument, or by getattr with its name.
    reads = re.compile(r"\.(\w+)\b(?!\s*=[^=])|=(\w+)|[\"'](\w+)[\"']")
    read: set[str] = set()
    for path in python_files("src"):
        for match in reads.finditer(divided(path)[1]):
            read.update(filter(None, match.groups()))
    found = list(options())
    assert len(found) > 100
    dead = [f"{p.relative_to(ROOT)}: {c}.{f}" for p, c, f in found if f not in read]
    assert not dead, "\n".join(dead)
