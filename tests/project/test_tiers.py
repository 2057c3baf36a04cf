"""Every test is in one of three tiers, and what a test reaches says which is the least that it needs.

Names are followed through the functions and fixtures of a test's own file, and through those of the
folders above it.
"""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
TIERS = ("pure", "processes", "engines")
# Who reaches one of these names needs the tier.
STARTS = {
    "processes": {"subprocess", "Popen", "Program", "run_python", "run_program", "DataLoader"},
    "engines": {"run_ranks", "run_nodes", "train_tiny_run", "start_ranks", "start_engine", "Soak"},
}


def names_in(node):
    """Names that code uses, and those of a function's parameters, which may be fixtures."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.arg):
            yield each.arg


def definitions(path):
    """Functions, classes and constants of a file, by name; None for what it imports, which hides a fixture."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(dict.fromkeys(alias.asname or alias.name for alias in node.names))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found.update(
                {target.id: node for target in node.targets if isinstance(target, ast.Name)}
            )
    return found


def reached_tier(name, known, seen):
    """The highest tier that anything behind a name needs."""
    for tier in ("engines", "processes"):
        if name in STARTS[tier]:
            return TIERS.index(tier)
    if known.get(name) is None or name in seen:
        return 0
    seen.add(name)
    return max((reached_tier(each, known, seen) for each in names_in(known[name])), default=0)


def marked_tier(node, tree):
    """The tier that a test's marks or its file's name; the first where none does."""
    file_marks = [
        each.value for each in tree.body if isinstance(each, ast.Assign) and is_pytestmark(each)
    ]
    text = " ".join(ast.unparse(each) for each in [*node.decorator_list, *file_marks])
    return max((TIERS.index(tier) for tier in TIERS if f"pytest.mark.{tier}" in text), default=0)


def is_pytestmark(node):
    return [getattr(target, "id", None) for target in node.targets] == ["pytestmark"]


def each_test():
    """Path and name of every test, the tier that it is marked for, and the one that it needs."""
    for path in sorted(TESTS.rglob("test_*.py")):
        known = {}
        for folder in reversed([each for each in path.parents if each.is_relative_to(TESTS)]):
            if (folder / "conftest.py").exists():
                known.update(definitions(folder / "conftest.py"))
        tree = ast.parse(path.read_text())
        known.update(definitions(path))
        always = [
            name
            for name, node in known.items()
            if node and "autouse=True" in ast.unparse(node)[:200]
        ]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                needed = max(reached_tier(name, known, set()) for name in [node.name, *always])
                yield path.relative_to(TESTS), node.name, marked_tier(node, tree), needed


def test_every_test_is_in_the_tier_that_it_needs():
    too_low = [
        f"{path}::{name}: mark it {TIERS[needed]}"
        for path, name, marked, needed in each_test()
        if marked < needed
    ]
    assert too_low == []


def test_what_a_test_reaches_is_followed_through_helpers_and_fixtures(tmp_path):
    path = tmp_path / "test_x.py"
    path.write_text(
        "import subprocess\ndef run(): subprocess.run('x')\ndef ready(): run()\n"
        "def test_a(ready): pass\ndef test_b(): 'subprocess'\ndef test_c(): start_ranks()\n"
    )
    known = definitions(path)
    assert [reached_tier(name, known, set()) for name in ("test_a", "test_b", "test_c")] == [
        1,
        0,
        2,
    ]
