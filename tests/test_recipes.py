# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The formulas that the pages tell people to write, as the pages have them, at awkward values."""

import ast
import re
from itertools import product
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RISKY = re.compile("sqrt|log|reciprocal|pow|div")

TINY, HUGE = torch.finfo(torch.float32).smallest_normal, torch.finfo(torch.float32).max
POSITIVE = (1e-45, TINY, 1e-12, 1.0, HUGE, torch.inf)
ANY = (0.0, *POSITIVE, *(-one for one in POSITIVE), torch.nan)
#: What a recipe's names may hold: `amax` all that a call may give, the others what the page allows.
VALUES = {
    "x": ANY,
    "amax": (0.0, *POSITIVE, torch.nan),
    "scale": (64.0,),
    "cap": (1e-3, -1.0, 1e20),
    "a": (1e-3, -1.0, 1.0),
    "hits": (0.0, 1.0),
    "target": (-100, 0, 3),
    "r1": (0.0, 1.0, 1e20),
    "r2": (0.0, TINY, 1.0, 1e30),
}


def is_risky(node):
    """Whether a piece of code divides tensors, or takes a root or a logarithm."""
    for one in ast.walk(node):
        divides = isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div)
        if divides and not isinstance(one.right, ast.Constant | ast.JoinedStr):  # parts of a path
            return True
        called = getattr(one, "func", None)
        if isinstance(called, ast.Attribute) and re.match(RISKY, called.attr):
            return True
    return False


def recipes():
    """Each risky function, lambda and right-hand side of the pages: its name and its AST."""
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S):
            for node in ast.parse(block).body:
                name = node.targets[0] if isinstance(node, ast.Assign) else node
                name = getattr(name, "name", getattr(name, "id", ""))
                inner = [one for one in ast.walk(node) if isinstance(one, ast.Lambda)]
                whole = isinstance(node, ast.FunctionDef | ast.Assign) and not inner
                for one in inner or [node] * whole:
                    if is_risky(one):
                        yield pytest.param(one, id=f"{page.name}-{name}")


class Here:
    """Stands for fusedops in a recipe: the coordinates of one row of three elements."""

    @staticmethod
    def position(dim):
        return torch.tensor(2) if dim == -2 else torch.arange(3)


def computed(recipe, values):
    """What a recipe makes of tensors, by the names of its arguments."""
    space = {"torch": torch, "fo": Here, **values}
    if isinstance(recipe, ast.FunctionDef):
        bare = ast.FunctionDef(**{**vars(recipe), "decorator_list": []})
        exec(compile(ast.Module([bare], []), "page", "exec"), space)
        return space[recipe.name](**values)
    if isinstance(recipe, ast.Lambda):
        return eval(compile(ast.Expression(recipe), "page", "eval"), space)(**values)
    return eval(compile(ast.Expression(recipe.value), "page", "eval"), space)


def arguments(recipe):
    if hasattr(recipe, "args"):
        return [one.arg for one in recipe.args.args]
    names = {one.id for one in ast.walk(recipe.value) if isinstance(one, ast.Name)}
    return sorted(names - {"torch", "fo"})


@pytest.mark.parametrize("recipe", [*recipes()])
def test_a_recipe_makes_no_nan(recipe):
    """Of a value that is a number it makes no NaN; and a scale for the next call is usable."""
    names = arguments(recipe)
    assert set(names) <= set(VALUES), "say here what the recipe's names may hold"
    for given in product(*(VALUES[name] for name in names)):
        values = dict(zip(names, map(torch.tensor, given), strict=True))
        got = computed(recipe, values)
        if "amax" in values:
            assert got.isfinite(), given
            assert (1 / got).isfinite(), given
        elif not any(one.isnan() or one.isinf() for one in values.values()):
            assert not got.isnan().any(), given


def test_the_recipes_are_found():
    found = {one.id for one in recipes()}
    assert found >= {
        "results-of-8-bits.md-next_scale",
        "masks-and-biases.md-kerple",
        "write-a-functor.md-softcap",
    }
