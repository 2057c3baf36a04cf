"""Small changes of a Python module that a good test notices: conditions, borders, sums, what is left out.

Each mutant is the module with one change. What only people read is left alone: docstrings,
annotations, messages of errors, and so are assertions and zip's `strict`, which only hold what is
true anyway.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
}
_DELETED = (ast.Raise, ast.AugAssign, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Mutant:
    """One change of a module.

    Attributes:
        path: The module's file, relative to the checkout.
        number: Of the change among those of the module, in the order of `_sites`.
        line: Where it stands.
        function: The function or method around it, such as Block.slice; empty at the top.
        change: What was changed, such as `< to <=: a < b`.
        occurrence: How many equal changes stand before it in the same function.
    """

    path: str
    number: int
    line: int
    function: str
    change: str
    occurrence: int

    @property
    def name(self) -> str:
        """Names the mutant whatever lines stand before it."""
        return f"{self.path} {self.function} {self.change} #{self.occurrence}"


def find_mutants(path: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its source."""
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for number, site in enumerate(_sites(ast.parse(source))):
        key = (site.function, site.change)
        found.append(Mutant(path, number, site.line, *key, counts[key]))
        counts[key] += 1
    return found


def mutate(source: str, mutant: Mutant) -> str:
    """The module with the change made, as code without comments."""
    tree = ast.parse(source)
    for number, site in enumerate(_sites(tree)):
        if number == mutant.number:
            site.apply()
            return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    raise ValueError(f"{mutant.path} has no change {mutant.number}")


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, the same ones while their functions stay the same."""
    return sorted(mutants, key=lambda each: _draw(each, seed))[:count]


def _draw(mutant: Mutant, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{mutant.name}".encode(), digest_size=16).digest()


@dataclass(frozen=True)
class _Site:
    line: int
    function: str
    change: str
    apply: Callable[[], None]


def _sites(tree: ast.Module) -> Iterator[_Site]:
    """Every place where one change can be made; the tree may be changed by one of them."""
    return _walk(tree, "")


def _walk(node: ast.AST, function: str) -> Iterator[_Site]:
    if isinstance(node, (ast.JoinedStr, ast.Assert)) or (
        isinstance(node, ast.keyword) and node.arg == "strict"
    ):
        return
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        function = f"{function}.{node.name}".removeprefix(".")
    yield from _changes(node, function)
    if isinstance(node, ast.Raise):
        return  # its message is for people
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, ast.AST) or _is_docstring(child):
                continue
            if isinstance(value, list) and _can_go(child):
                yield _deletion(value, index, child, function)
            yield from _walk(child, function)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _can_go(node: ast.AST) -> bool:
    return isinstance(node, _DELETED) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )


def _deletion(body: list[ast.AST], index: int, node: ast.AST, function: str) -> _Site:
    def apply() -> None:
        body[index] = ast.Pass()

    assert isinstance(node, ast.stmt), "only statements are deleted"
    return _Site(node.lineno, function, f"left out: {_shown(node)}", apply)


def _changes(node: ast.AST, function: str) -> Iterator[_Site]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            yield _replaced(node, node.ops, index, _COMPARISONS[type(operator)](), function)
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _OPERATORS:
        yield _set(node, "op", _OPERATORS[type(node.op)](), function)
    elif isinstance(node, ast.BoolOp):
        yield _set(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And(), function)
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield _set(node, "test", ast.UnaryOp(ast.Not(), node.test), function)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield _set(node, "value", not node.value, function)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield _set(node, "value", node.value + 1, function)


def _set(node: ast.AST, field: str, value: object, function: str) -> _Site:
    before = getattr(node, field)
    assert isinstance(node, (ast.expr, ast.stmt)), "changed nodes have lines"
    shown = f"{_named(before)} to {_named(value)}: {_shown(node)}"
    return _Site(node.lineno, function, shown, lambda: setattr(node, field, value))


def _replaced(
    node: ast.Compare, operators: list[ast.cmpop], index: int, operator: ast.cmpop, function: str
) -> _Site:
    shown = f"{_named(operators[index])} to {_named(operator)}: {_shown(node)}"
    return _Site(node.lineno, function, shown, lambda: operators.__setitem__(index, operator))


def _named(value: object) -> str:
    if isinstance(value, ast.expr):
        return ast.unparse(value)
    return type(value).__name__ if isinstance(value, ast.AST) else repr(value)


def _shown(node: ast.expr | ast.stmt) -> str:
    return ast.unparse(node).partition("\n")[0][:100]
