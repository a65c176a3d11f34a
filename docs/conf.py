# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How the manual is built: ``sphinx-build -W --keep-going -n -b html docs build/docs``.

Sphinx with MyST (pages in Markdown) and the theme furo: a built site needs no network, its search
included. With ``-n`` every reference has to be found, those within docstrings included.
"""

import importlib
import inspect
import os
import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx.domains.python import PyObject

import fusedops

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE / "extensions"))

project = "fusedops"
author = "The fusedops authors"
copyright = "2026, The fusedops authors"
version = release = fusedops.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "command_reference"]
exclude_patterns = ["extensions"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"fusedops {release}"
html_static_path = ["static"]
html_css_files = ["fusedops.css"]
html_show_sourcelink = False
html_copy_source = False

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_preprocess_types = False
napoleon_attr_annotations = False
add_module_names = False

# One backtick in a docstring is a name: a link where the reference has it, else code.
default_role = "py:obj"
highlight_language = "none"
nitpick_ignore_regex = [
    # Types of other packages, whose pages are elsewhere: the site is built without a network.
    ("py:.*", r"(torch|os|collections|pathlib|typing|types|contextlib|enum|dataclasses|numpy)\b.*"),
    ("py:.*", r"(Tensor|Result|optional|sequence|callable)"),
]


#: The pages that files of the repository's root are on the site.
PAGES_OF = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "CHANGELOG.md": "changelog.md",
}


def _linked_from(folder, text, base):
    """Text of a page in this folder, whose links lead from another one; see `_with_files`."""

    def moved(match):
        mark, words, target, heading = match.groups("")
        path = (base / target).resolve()
        if not path.exists():  # A reference to a class, say; or MyST warns.
            return match[0]
        if path.is_relative_to(ROOT) and str(path.relative_to(ROOT)) in PAGES_OF:
            path = HERE / PAGES_OF[str(path.relative_to(ROOT))]
        link = os.path.relpath(path, folder)
        if path.is_dir():
            return words
        if path.suffix == ".md" and not path.is_relative_to(HERE):
            return f"{{download}}`{words.replace('`', '')} <{link}>`"
        return f"{mark}[{words}]({link}{heading})"

    return re.sub(r"(!?)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)", moved, text)


def _with_files(app, docname, source):
    """Put files of the root where pages ask for them; links to sources become downloads."""
    folder = (HERE / docname).parent
    text = _linked_from(folder, source[0], folder)
    _, asked, after = text.partition("<!-- include ")
    if asked:
        name, _, after = after.partition(" -->")
        text = _linked_from(folder, (ROOT / name).read_text(encoding="utf-8"), ROOT) + after
    source[0] = text


def _linked(app, what, name, obj, options, lines):
    """Make links of the pages that a docstring names, such as docs/explanation/dropout.md."""
    for at, line in enumerate(lines):
        line = re.sub(r"\bdocs/([\w/-]+)\.md", r":doc:`/\1`", line)
        # Several names with one text: with a space between them the first would be a type.
        lines[at] = re.sub(r"^:(ivar|param) ([^:]+):", lambda m: m[0].replace(", ", ","), line)


def _public(name):
    """The name under which the reference has something, given the one of where it is defined."""
    *module, last = name.split(".")
    homes = ("fusedops", "fusedops.nn", "fusedops.testing", "fusedops.functors")
    if module and not module[0].startswith("fusedops"):
        return None
    inside_nn = ".".join(module).startswith("fusedops.nn")
    for home in ("fusedops.nn", *homes) if inside_nn else homes:
        if hasattr(importlib.import_module(home), last):
            return f"{home}.{last}"
    return None


def _resolve(app, env, node, content):
    """Find a type by its public name; leave a word in one backtick as code."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    public = _public(target)
    if public:
        domain = env.get_domain("py")
        found = domain.resolve_xref(
            env, node["refdoc"], app.builder, "obj", public, node, content.deepcopy()
        )
        if found is not None:
            return found
    in_backticks = node.get("reftype") == "obj" and not node.get("refexplicit")
    internal = target.startswith("fusedops.") and re.search(r"\.[A-Z]\w*$", target)
    if in_backticks or internal:
        return nodes.literal(target, target.removeprefix("~")) if in_backticks else content
    return None


def _shorten(app, what, name, obj, options, signature, returned):
    """Leave out the signature of an exception's class, which says nothing."""
    if what == "class" and inspect.isclass(obj) and issubclass(obj, Exception):
        return "", None
    return None


def setup(app):
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("source-read", _with_files)
    app.connect("autodoc-process-docstring", _linked)
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-process-signature", _shorten)
