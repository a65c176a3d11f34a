# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning files: the fastest configurations by kernel features, validated when they are read.

A file is JSON:

    {"format": 1, "arch": "sm_90",
     "device": {"name": "NVIDIA H200", "threads_per_sm": 2048, "l2_bytes": 62914560},
     "forward": [row, ...], "backward": [row, ...], "independent": [row, ...],
     "product": [row, ...]}

and a row

    {"when": {"columns": {"max": 512}, "traffic": "none"}, "set": {"threads_per_block": 128},
     "percent": {"softmax float16 257": 84}, "why": "..."}

`when` names features (features.py): a number, text or truth value, a list of them, or a range with
`min`, `max` or both, which are included. `set` names fields of `LaunchConfig`, for a product those
of `ProductConfig`. Each field is taken from the first row that matches and sets it, so that a row
may decide one field and leave the others to the rows below it; a product has all from one row. Two
fields can be given in another unit: `threads_per_block` in place of `rows_per_block`, and
`prefetch_bytes` in place of `prefetch_distance`, in bytes on a device with `l2_bytes`. `percent`
has what was measured in percent of the ceiling, `why` the reason or what the alternatives gave,
`measured` on what and when; none of these is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

from fusedops.schedule.architectures import TILINGS
from fusedops.schedule.features import (
    BackwardFeatures,
    ForwardFeatures,
    IndependentFeatures,
    LaunchFeatures,
    ProductFeatures,
)
from fusedops.schedule.launch import (
    IMPLEMENTATIONS,
    PREFETCHES,
    SUM_STORAGES,
    LaunchConfig,
    ProductConfig,
)

__all__ = ["FORMAT", "KINDS", "Device", "Rule", "TuningFile", "TuningFileError", "read", "text_of"]

#: Raise it when what a row means changes: a file of another format is not used.
FORMAT = 1

#: What there are rows for: the passes of a row op, those that reduce no rows, and matrix products.
KINDS: dict[str, type[LaunchFeatures] | type[ProductFeatures]] = {
    "forward": ForwardFeatures,
    "backward": BackwardFeatures,
    "independent": IndependentFeatures,
    "product": ProductFeatures,
}

#: Fields in another unit, and the field of `LaunchConfig` that each stands for.
UNITS = {"threads_per_block": "rows_per_block", "prefetch_bytes": "prefetch_distance"}

_LAUNCH = {**get_type_hints(LaunchConfig), **dict.fromkeys(UNITS, int)}
_FIELDS = {
    "forward": _LAUNCH,
    "backward": _LAUNCH,
    # Whose features do not say how long a row is.
    "independent": {k: kind for k, kind in _LAUNCH.items() if k != "prefetch_bytes"},
    "product": get_type_hints(ProductConfig),
}
#: The tilings whose tiles run in waves, which may have a rival and be one.
_IN_WAVES = tuple(name for name, one in TILINGS.items() if one.several)
_WORDS = {
    "prefetch": PREFETCHES,
    "sum_storage": SUM_STORAGES,
    "implementation": IMPLEMENTATIONS,
    "rival": ("", *_IN_WAVES),
}
_LEAST = {"rows_per_block": 1, "threads_per_block": 1, "persistent_threads_per_sm": 1}
_NOTES = ("percent", "why", "measured")


class TuningFileError(ValueError):
    """An invalid tuning file; the message names the file, the row and the mistake."""


class Device(NamedTuple):
    """The device on which a file was measured, as far as figures depend on it."""

    name: str
    threads_per_sm: int
    l2_bytes: int


class Range(NamedTuple):
    """Numbers from `least` to `most`, both included; None stands for no bound."""

    least: int | None
    most: int | None

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, int)
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)

    def covers(self, other: Range | frozenset[Any]) -> bool:
        """Whether all of `other` is in this range."""
        if isinstance(other, frozenset):
            return all(value in self for value in other)
        below = self.least is None or (other.least is not None and other.least >= self.least)
        return below and (self.most is None or (other.most is not None and other.most <= self.most))


class Rule(NamedTuple):
    """A row of a tuning file, checked."""

    when: Mapping[str, Range | frozenset[Any]]  # the values that each of some features must have
    fields: Mapping[str, Any]  # the values of fields, in the file's units
    content: Mapping[str, Any]  # the row as it stands in the file

    @property
    def sets(self) -> frozenset[str]:
        """The fields of `LaunchConfig` or `ProductConfig` that this row decides."""
        return frozenset(UNITS.get(name, name) for name in self.fields)

    def matches(self, features: LaunchFeatures | ProductFeatures) -> bool:
        """Whether this row applies to a kernel with these features."""
        return all(getattr(features, name) in wanted for name, wanted in self.when.items())

    def implies(self, other: Rule) -> bool:
        """Whether every kernel that this row is for is also one that `other` is for."""
        for name, wanted in other.when.items():
            own = self.when.get(name)
            if own is None:
                return False
            if isinstance(wanted, frozenset):
                if not isinstance(own, frozenset) or not own <= wanted:
                    return False
            elif not wanted.covers(own):
                return False
        return True


class TuningFile(NamedTuple):
    """A tuning file, checked."""

    where: str  # the file, for messages and for `explain`
    arch: str  # the architecture that it was measured on
    device: Device  # the device that it was measured on
    rules: Mapping[str, tuple[Rule, ...]]  # the rows of each of `KINDS`

    def matching(self, features: LaunchFeatures | ProductFeatures) -> Iterator[Rule]:
        """All rows that apply to a kernel with these features, in file order."""
        kind = next(name for name, one in KINDS.items() if isinstance(features, one))
        return (rule for rule in self.rules[kind] if rule.matches(features))


def read(text: str | bytes, where: str, *, total: bool) -> TuningFile:
    """Read and check a tuning file.

    Args:
        text: Its content.
        where: Its name, for messages.
        total: Whether all of `KINDS` must be there, and each field have a row without conditions,
            so that no kernel is left without a value.

    Raises:
        TuningFileError: It is no such file: not JSON, of another format, with unknown names or
            wrong types, with a row that no kernel can reach, or with a gap.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TuningFileError(f"{where} is no JSON: {error}") from None
    names = {"format", "arch", "device", *KINDS}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else content
        raise TuningFileError(f"{where}: format must be {FORMAT}, got {found!r}")
    _check_names(where, content, names, names if total else names - KINDS.keys())
    if not isinstance(content["arch"], str):
        raise TuningFileError(f"{where}: arch must be text, got {content['arch']!r}")
    rules = {kind: _rules(f"{where}, {kind}", kind, content.get(kind, []), total) for kind in KINDS}
    return TuningFile(where, content["arch"], _device(where, content["device"]), rules)


def _device(where: str, content: Any) -> Device:
    hints = get_type_hints(Device)
    where = f"{where}, device"
    if not isinstance(content, dict):
        raise TuningFileError(f"{where} must be an object, got {content!r}")
    _check_names(where, content, {*hints, "driver", "date"}, set(hints))
    for name, kind in hints.items():
        if type(content[name]) is not kind or (kind is int and content[name] < 1):
            raise TuningFileError(f"{where}: {name} must be {_said(kind)}, got {content[name]!r}")
    return Device(**{name: content[name] for name in hints})


def _rules(where: str, kind: str, rows: Any, total: bool) -> tuple[Rule, ...]:
    if not isinstance(rows, list):
        raise TuningFileError(f"{where} must be a list of rows, got {rows!r}")
    rules: list[Rule] = []
    for index, row in enumerate(rows):
        at = f"{where}[{index}]"
        rule = _rule(at, kind, row)
        for name in sorted(rule.sets):
            for before, earlier in enumerate(rules):
                if name in earlier.sets and rule.implies(earlier):
                    raise TuningFileError(
                        f"{at}: {name} is never used, since {kind}[{before}] comes first wherever "
                        "this row matches; move it up or leave it out"
                    )
        rules.append(rule)
    if total:
        given: frozenset[str] = frozenset().union(*(rule.sets for rule in rules if not rule.when))
        wanted = ("implementation",) if kind == "product" else LaunchConfig._fields
        if missing := [name for name in wanted if name not in given]:
            raise TuningFileError(
                f"{where}: no row without conditions sets {', '.join(missing)}, so kernels that no "
                "other row is for would have no value; add one at the end"
            )
    return tuple(rules)


def _rule(at: str, kind: str, row: Any) -> Rule:
    if not isinstance(row, dict):
        raise TuningFileError(f"{at} must be an object, got {row!r}")
    _check_names(at, row, {"when", "set", *_NOTES}, {"when", "set"})
    for part in ("when", "set"):
        if not isinstance(row[part], dict):
            raise TuningFileError(f"{at}: {part} must be an object, got {row[part]!r}")
    hints = get_type_hints(KINDS[kind])
    _check_names(f"{at}: when", row["when"], set(hints), set())
    _check_names(f"{at}: set", row["set"], set(_FIELDS[kind]), set())
    if not row["set"]:
        raise TuningFileError(f"{at}: set decides nothing; name a field of it")
    when = {
        name: _condition(f"{at}: when {name}", hints[name], wanted)
        for name, wanted in row["when"].items()
    }
    for name, value in row["set"].items():
        _check_value(f"{at}: set {name}", name, _FIELDS[kind][name], value)
    if "rival" in row["set"] and "implementation" not in row["set"]:
        raise TuningFileError(f"{at}: set has a rival and no implementation; name what it is of")
    if row["set"].get("rival") and (first := row["set"]["implementation"]) not in _IN_WAVES:
        raise TuningFileError(
            f"{at}: set has a rival of {first!r}, whose time no model knows; the implementation "
            f"must be one of {', '.join(_IN_WAVES)}"
        )
    for unit, name in UNITS.items():
        if unit in row["set"] and name in row["set"]:
            raise TuningFileError(f"{at}: set has {unit} and {name}, which mean the same; keep one")
    return Rule(when, row["set"], row)


def _condition(at: str, kind: type, wanted: Any) -> Range | frozenset[Any]:
    if isinstance(wanted, dict) and kind is int:
        _check_names(at, wanted, {"min", "max"}, set())
        least, most = wanted.get("min"), wanted.get("max")
        if any(bound is not None and type(bound) is not int for bound in (least, most)):
            raise TuningFileError(f"{at}: min and max must be integers, got {wanted!r}")
        if (least is None and most is None) or (
            least is not None and most is not None and least > most
        ):
            raise TuningFileError(f"{at}: the range {wanted!r} holds nothing, or has no bound")
        return Range(least, most)
    values = wanted if isinstance(wanted, list) else [wanted]
    if not values or any(type(value) is not kind for value in values):
        form = " or a range with min or max" if kind is int else ""
        raise TuningFileError(f"{at} must be {_said(kind)}, a list of them{form}, got {wanted!r}")
    return frozenset(values)


def _check_value(at: str, name: str, kind: Any, value: Any) -> None:
    if type(value) is not kind:
        raise TuningFileError(f"{at} must be {_said(kind)}, got {value!r}")
    if name in _WORDS and value not in _WORDS[name]:
        words = ", ".join(word or "an empty word" for word in _WORDS[name])
        raise TuningFileError(f"{at} must be one of {words}, got {value!r}")
    if kind is int and value < _LEAST.get(name, 0):
        raise TuningFileError(f"{at} must be {_LEAST.get(name, 0)} at least, got {value!r}")


def _check_names(
    at: str, content: Mapping[str, Any], known: set[str], needed: Sequence[str] | set[str]
) -> None:
    if unknown := sorted(content.keys() - known):
        names = ", ".join(sorted(known))
        raise TuningFileError(f"{at} has unknown {', '.join(unknown)}; known are {names}")
    if missing := sorted(set(needed) - content.keys()):
        raise TuningFileError(f"{at} has no {', '.join(missing)}")


def _said(kind: type) -> str:
    return {int: "an integer", str: "text", bool: "true or false"}[kind]


def text_of(content: Mapping[str, Any]) -> str:
    """The text of a tuning file with this content: a line for each part of a row."""
    lines = [f' "{name}": {json.dumps(content[name])},' for name in ("format", "arch", "device")]
    for kind in KINDS:
        rows = [
            "  {" + ",\n   ".join(f'"{part}": {json.dumps(row[part])}' for part in row) + "}"
            for row in content.get(kind, ())
        ]
        inner = "[\n" + ",\n".join(rows) + "\n ]" if rows else "[]"
        lines.append(f' "{kind}": {inner},')
    return "{\n" + "\n".join(lines).rstrip(",") + "\n}\n"
