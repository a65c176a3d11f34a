# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning files: what is refused and how, that those of the package hold, and a GPU's limits."""

import copy
import itertools
import json
import re

import pytest
from cases import raises

from fusedops.schedule import backward, forward, lookup
from fusedops.schedule.architectures import GPUS, PRODUCT_KERNELS, Gpu
from fusedops.schedule.backward import (
    GRADIENT_VALUES,
    choose_gradient,
    gradient_bucket,
    resident_rows,
)
from fusedops.schedule.features import ProductFeatures
from fusedops.schedule.forward import choose
from fusedops.schedule.forward_tile import Row, row_bucket
from fusedops.schedule.independent import choose_map, choose_map_gradient
from fusedops.schedule.launch import IMPLEMENTATIONS, LaunchConfig
from fusedops.schedule.tuning_file import TuningFileError, read, text_of

FILES = sorted(lookup.FOLDER.glob("*.json"))
COLUMNS = (
    1,
    8,
    33,
    64,
    100,
    256,
    257,
    500,
    511,
    512,
    768,
    1000,
    1023,
    1024,
    2000,
    2048,
    4095,
    4096,
)
COLUMNS += (4097, 5120, 8191, 8192, 9001, 12289, 16384, 20480, 24576, 30522, 32768, 40000)
COLUMNS += (50257, 65536)
COLUMNS += (65537, 80000, 98304, 128256, 131072, 151936, 163840, 180000, 196608, 200000, 250000)
COLUMNS += (262144, 262145, 300001, 524288, 600000)
BYTES = ((2, 4), (4, 4), (8, 8), (2, 8))
SUMS = ((), (1,), (1, 1), (4096,), (2000, 4096))


def content():
    """A small file that is right."""
    whole = LaunchConfig()._asdict()
    return {
        "format": 1,
        "arch": "sm_90",
        "device": {"name": "a GPU", "threads_per_sm": 2048, "l2_bytes": 1 << 20},
        "forward": [
            {
                "when": {"columns": {"max": 64}},
                "set": {"threads_per_block": 128},
                "why": "measured",
            },
            {"when": {}, "set": whole},
        ],
        "backward": [{"when": {}, "set": whole}],
        "independent": [{"when": {}, "set": whole}],
        "product": [{"when": {}, "set": {"implementation": "two_kernels"}}],
    }


def broken(change):
    found = copy.deepcopy(content())
    change(found)
    return json.dumps(found)


def row(found, number=0):
    return found["forward"][number]


WRONG = {
    "an unknown part": (lambda f: f.update(extra=1), "unknown extra"),
    "a missing part": (lambda f: f.pop("backward"), "has no backward"),
    "another format": (lambda f: f.update(format=0), "format must be 1"),
    "a device without a name": (lambda f: f["device"].pop("name"), "device has no name"),
    "a device without threads": (
        lambda f: f["device"].update(threads_per_sm=0),
        "threads_per_sm must be",
    ),
    "rows that are no list": (lambda f: f.update(forward={}), "must be a list"),
    "an unknown feature": (lambda f: row(f)["when"].update(rows=1), "unknown rows; known are"),
    "a feature of the other pass": (lambda f: row(f)["when"].update(sums=1), "unknown sums"),
    "a feature of the wrong type": (
        lambda f: row(f)["when"].update(traffic=3),
        "traffic must be text",
    ),
    "an empty range": (
        lambda f: row(f)["when"].update(columns={"min": 9, "max": 8}),
        "holds nothing",
    ),
    "an unknown bound": (lambda f: row(f)["when"].update(columns={"most": 8}), "unknown most"),
    "an unknown field": (lambda f: row(f)["set"].update(blocks=1), "unknown blocks"),
    "a field of the wrong type": (
        lambda f: row(f)["set"].update(persistent=1),
        "persistent must be true or false",
    ),
    "a truth value as a number": (
        lambda f: row(f)["set"].update(min_threads_per_sm=True),
        "min_threads_per_sm must be an integer",
    ),
    "an unknown word": (
        lambda f: row(f)["set"].update(prefetch="soon"),
        "must be one of never, per_thread",
    ),
    "a negative number": (lambda f: row(f)["set"].update(prefetch_bytes=-1), "must be 0 at least"),
    "two units": (lambda f: row(f)["set"].update(rows_per_block=1), "which mean the same"),
    "nothing set": (lambda f: row(f).update(set={}), "decides nothing"),
    "a row that never counts": (
        lambda f: f["forward"].append(row(f)),
        r"forward[2]: rows_per_block is never used, since forward[0] comes first",
    ),
    "a row below one with fewer conditions": (
        lambda f: f["forward"].append({"when": {"columns": 100}, "set": {"eager_operands": False}}),
        r"forward[2]: eager_operands is never used, since forward[1] comes first",
    ),
    "a unit that takes the length of a row": (
        lambda f: f["independent"][0].update(set={"prefetch_bytes": 1}),
        "independent[0]: set has unknown prefetch_bytes",
    ),
    "a feature of a product": (lambda f: row(f)["when"].update(depth=8), "unknown depth"),
    "a field of a product": (
        lambda f: row(f)["set"].update(implementation="Together"),
        "unknown implementation",
    ),
    "the former name of a field": (
        lambda f: f["product"][0].update(set={"vehicle": "Together"}),
        "product[0]: set has unknown vehicle; known are implementation",
    ),
    "a product's unknown implementation": (
        lambda f: f["product"][0]["set"].update(implementation="InCircles"),
        "product[0]: set implementation must be one of two_kernels, Together",
    ),
    "a rival of two kernels": (
        lambda f: f["product"][0].update(
            set={"implementation": "two_kernels", "rival": "Together192"}
        ),
        "product[0]: set has a rival of 'two_kernels', whose time no model knows",
    ),
    "a rival for few rows": (
        lambda f: f["product"][0].update(set={"implementation": "Together", "rival": "FewRows"}),
        "product[0]: set rival must be",
    ),
    "a rival of nothing": (
        lambda f: f["product"][0].update(set={"rival": "Together192"}),
        "product[0]: set has a rival and no implementation",
    ),
    "products without rows": (lambda f: f.update(product=[]), "product: no row without conditions"),
    "a missing part of products": (lambda f: f.pop("product"), "has no product"),
    "a gap": (
        lambda f: row(f, 1)["set"].pop("prefetch"),
        "no row without conditions sets prefetch",
    ),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_what_is_refused(change, said):
    with raises(TuningFileError, "my.json", said):
        read(broken(change), "my.json", total=True)


@pytest.mark.parametrize("text", [b"", b"[", b"[]", b"null", b"\xff", b"[" * 100000, b"1"])
def test_what_is_no_file(text):
    with raises(TuningFileError, "my.json"):
        read(text, "my.json", total=True)


def test_a_file_that_is_asked_first_may_have_gaps():
    found = read(broken(lambda f: f["forward"].pop()), "my.json", total=False)
    assert len(found.rules["forward"]) == 1
    found = read(broken(lambda f: f.pop("independent")), "my.json", total=False)
    assert not found.rules["independent"]


def test_a_file_is_written_as_it_is_read():
    assert json.loads(text_of(content())) == content()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_files_of_the_package(path):
    text = path.read_text(encoding="utf-8")
    assert text == text_of(json.loads(text)), "as text_of writes it"
    found = read(text, path.name, total=True)
    assert path.stem == found.arch
    assert found.arch in GPUS
    for kind, rules in found.rules.items():
        said = [rule.content.get("why", "-").strip() for rule in rules]
        unsaid = [i for i, why in enumerate(said) if why in ("", "TODO")]
        assert not unsaid, f"{kind}: rows {unsaid} do not say why"


#: Rows of heads that share a rotation's tables.
OF_HEADS = {"paired": True, "sharing": 8}


def features_of(monkeypatch):
    """The features of all kinds of kernels."""
    seen = set()
    real = lookup.launch_config

    def noted(features, arch, gpu):
        seen.add(features)
        return real(features, arch, gpu)

    for module in ("forward", "backward", "independent"):
        monkeypatch.setattr(f"fusedops.schedule.{module}.launch_config", noted)
    for clusters, columns, (element_bytes, compute_bytes) in itertools.product(
        (1, 8, 16), COLUMNS, BYTES
    ):
        gpu = GPUS["sm_90"]._replace(cluster_limit=clusters)
        for streams, centred in itertools.product(("none", "columns", "many"), (False, True)):
            row = Row(columns, element_bytes, compute_bytes, streams=streams, centred=centred)
            for one in (row, row._replace(narrow_result=True), row._replace(**OF_HEADS)):
                forward._chosen.__wrapped__(one, "sm_90", gpu, None, None)
        for family, sums, bulk in itertools.product(GRADIENT_VALUES, SUMS, (False, True)):
            row = Row(columns, element_bytes, compute_bytes)
            for one in (row, row._replace(**OF_HEADS)):
                backward._chosen.__wrapped__(one, "sm_90", gpu, family, sums, None, None, bulk)
    for columns, (element_bytes, compute_bytes) in itertools.product(COLUMNS, BYTES):
        row = Row(columns, element_bytes, compute_bytes)
        for one in (row, row._replace(align=32), row._replace(**OF_HEADS)):
            choose_map(one, "sm_90", gpu)
        for sums, more in itertools.product((0, 1), (False, True)):
            choose_map_gradient(row, "sm_90", gpu, sums, False, more)
    return seen


@pytest.mark.thorough
def test_every_row_decides_something_somewhere(monkeypatch):
    """No row is overruled wherever it matches: by one row above (refused), or by several."""
    found = lookup.builtin("sm_90")
    deciding = set()
    for features in features_of(monkeypatch):
        decided = set()
        for rule in found.matching(features):
            if rule.sets - decided:
                deciding.add(id(rule))
            decided |= rule.sets
        assert decided == set(LaunchConfig._fields), features
    kinds = products(), products_of_few_rows(), products_of_eight_bits(), products_of_a_loss()
    for features in itertools.chain(*kinds):
        deciding.add(id(next(iter(found.matching(features)))))
    for kind, rules in found.rules.items():
        idle = [i for i, rule in enumerate(rules) if id(rule) not in deciding]
        assert not idle, f"{kind}: rows {idle} decide nothing"


def products_of_eight_bits():
    """Features of products of 8-bit factors: many tiles, few, and scales along K."""
    for change in ({}, {"wave_percent": 20}, {"along_k": True}):
        yield next(products())._replace(dtype="float8_e4m3fn", **change)


def products_of_a_loss():
    """Features of the product before a loss: many tiles, few, few rows, and little depth."""
    plain = next(products())._replace(row_sums=True, depth=1024)
    for change in ({}, {"wave_percent": 45}, {"filled_percent": 50}, {"depth": 1016}):
        yield plain._replace(**change)


def products_of_few_rows():
    """Features at sizes for which few rows have a kernel, and at one where they have none."""
    plain = next(products())
    sizes = (
        (16, 4096, 4096),
        (64, 512, 4096),
        (64, 4096, 4096),
        (192, 4096, 4096),
        (64, 14336, 4096),
        (128, 4096, 4096),
        (128, 14336, 4096),
        (256, 4096, 4096),
        (256, 14336, 4096),
    )
    for rows, columns, depth in sizes:
        yield plain._replace(rows=rows, columns=columns, depth=depth, wave_percent=50)


def products():
    """Features of products with and without all that the rows ask for."""
    numbers = 16384, 1024, 1024, 1, False, 387, 100
    plain = ProductFeatures(*numbers, False, False, 0, 0, False, "float16", "Map()")
    yield plain
    yield plain._replace(reads=1, writes=1, draws=True)
    yield plain._replace(wave_percent=48)
    for change in ({"wave_percent": 45}, {"depth": 4104}):
        yield plain._replace(**change)
    yield plain._replace(rows=128, depth=4104)
    for filled in (100, 56, 25):
        yield plain._replace(batches=64, filled_percent=filled)
    yield plain._replace(batches=64, filled_percent=25, copies=True)
    for copies in (True, False):
        yield plain._replace(batches=64, writes=1, depth=128, copies=copies)
    yield plain._replace(filled_percent=25)  # of one product
    many = plain._replace(batches=500, filled_percent=76)
    yield many
    for change in ({"masked": True}, {"reads": 1}):
        yield many._replace(**change)
    for depth in (4096, 4104):
        yield plain._replace(batches=8, grouped=True, depth=depth)
    for waves in (100, 99):
        yield plain._replace(batches=8, ragged_depth=True, depth=8192, wave_percent=waves)


def test_one_kernel_for_a_product_where_it_was_measured_to_be_faster():
    """The rows of sm_90 say what was measured, and what of it is known says what may be chosen."""
    gpu = GPUS["sm_90"]
    chosen = [lookup.product_config(one, "sm_90", gpu).config.implementation for one in products()]
    two = "two_kernels"
    assert chosen[:5] == ["Together", "Together", "InTurns", two, two]
    assert chosen[5:9] == ["FewRows", "Together", "InTurns", two]
    assert chosen[9:13] == ["InTurns", "Together", two, "Together"]
    assert chosen[13:16] == ["Together", "InTurns", "InTurns"]
    assert chosen[16:] == ["Together", two, "Together", two]
    chosen = [
        lookup.product_config(one, "sm_90", gpu).config.implementation
        for one in products_of_a_loss()
    ]
    assert chosen == ["Together", two, two, two]
    plain = {"dtype": "float16", "row_sums": False, "ragged_depth": False}
    known = {"reads": 1, "writes": 2, "draws": True, **plain}
    assert lookup.product_implementations("sm_90", gpu, **known) == {
        "two_kernels",
        "Together",
        "Together192",
        "InTurns",
        "FewRows",
    }
    deep = {"depth": 8192, **plain}
    assert lookup.product_implementations("sm_90", gpu, **deep) == {"two_kernels", "FewRows"}
    assert lookup.product_implementations("sm_90", gpu, **deep, columns=128) == {"two_kernels"}


def test_the_tilings_of_architectures_have_names_of_their_own():
    named = [name for kernel in PRODUCT_KERNELS.values() for name in kernel.tilings]
    assert sorted(named) == sorted({*named})
    assert ("two_kernels", *named) == IMPLEMENTATIONS


def test_which_file_serves_an_architecture():
    assert {arch: lookup.builtin(arch).arch for arch in GPUS} == dict.fromkeys(GPUS, "sm_90")
    known = ["sm_90", "sm_120", "sm_100"]
    served = {arch: lookup.nearest(arch, known) for arch in (*GPUS, "sm_139")}
    assert served == {
        **dict.fromkeys(("sm_80", "sm_86", "sm_89", "sm_90"), "sm_90"),
        **dict.fromkeys(("sm_100", "sm_103"), "sm_100"),
        **dict.fromkeys(("sm_120", "sm_121", "sm_139"), "sm_120"),
    }


def every_schedule(arch, gpu):
    for columns, (element_bytes, compute_bytes) in itertools.product(COLUMNS, BYTES):
        for streams in ("none", "columns", "many"):
            row = Row(columns, element_bytes, compute_bytes, streams=streams)
            yield choose(row, arch, gpu)
        for family, sums in itertools.product(GRADIENT_VALUES, SUMS):
            row = Row(columns, element_bytes, compute_bytes)
            yield choose_gradient(row, arch, gpu, family, sums)


@pytest.mark.thorough
@pytest.mark.parametrize("arch", GPUS)
def test_no_configuration_exceeds_a_gpu(arch):
    gpu = GPUS[arch]
    for schedule in every_schedule(arch, gpu):
        launch = schedule.launch
        resident = schedule.min_blocks_per_sm * schedule.threads_per_block
        assert resident <= launch.min_threads_per_sm <= gpu.threads_per_sm, schedule
        assert launch.persistent_threads_per_sm <= 2 * gpu.threads_per_sm, schedule
        assert schedule.shared_bytes <= gpu.shared_limit, schedule
        assert schedule.cluster <= gpu.cluster_limit, schedule
        assert not launch.relay_handshake or schedule.cluster > 1, schedule
        assert (launch.prefetch == "never") == (launch.prefetch_distance == 0), schedule
        if not gpu.bulk_copies:
            assert schedule.staged_bytes == 0, schedule


def test_a_small_gpu_holds_less():
    """Occupancy and persistent threads are cut to what an SM has, in as many waves as before."""
    small = GPUS["sm_90"]._replace(threads_per_sm=512)
    row = Row(1024, 2, 4, streams="columns", centred=True)
    assert choose(row, "sm_90", GPUS["sm_90"]).launch.min_threads_per_sm == 896
    assert choose(row, "sm_90", small).launch.min_threads_per_sm == 512
    row, wanted = Row(4096, 2, 4), ("norm", (4096,))
    for gpu, threads in ((GPUS["sm_90"], 4096), (GPUS["sm_120"], 3072), (small, 1024)):
        schedule = choose_gradient(row, "sm_90", gpu, *wanted)
        assert schedule.launch.persistent_threads_per_sm == threads
        assert resident_rows(schedule, 1) == threads // schedule.threads_per_block


def test_the_prefetch_distance_follows_the_size_of_the_cache():
    def distance(l2_bytes):
        gpu = GPUS["sm_90"]._replace(l2_bytes=l2_bytes)
        return choose(Row(4096, 2, 4), "sm_90", gpu).launch.prefetch_distance

    own = lookup.builtin("sm_90").device.l2_bytes
    assert [distance(size) for size in (own, 2 * own, own // 2, 1)] == [512, 1024, 256, 1]


def test_bulk_copies_are_not_clusters():
    """A device may have one and not the other; each is asked for what it does."""
    row = Row(12289, 2, 4, streams="none")
    clusters_alone = GPUS["sm_90"]._replace(bulk_copies=False)
    launch = choose(row, "sm_90", clusters_alone).launch
    assert (launch.prefetch, launch.smem_staged) == ("never", False)
    assert choose(row, "sm_90", GPUS["sm_90"]).launch.smem_staged
    bulk_alone = GPUS["sm_90"]._replace(cluster_limit=1)
    assert choose(Row(4096, 2, 4), "sm_90", bulk_alone).launch.prefetch == "bulk"
    long = choose_gradient(Row(65536, 2, 4), "sm_90", bulk_alone, "norm", ())
    assert (long.cluster, long.launch.prefetch) == (1, "never")


@pytest.mark.thorough
def test_the_tile_follows_from_the_cluster_limit_alone():
    """No other fact of a device decides bits."""
    for clusters in (1, 8, 16):
        facts = [
            gpu._replace(cluster_limit=clusters, bulk_copies=bulk)
            for gpu in (*GPUS.values(), Gpu(48 << 10, 1, 1024, 1 << 20))
            for bulk in (False, True)
        ]
        for columns, (element_bytes, compute_bytes) in itertools.product(COLUMNS, BYTES):
            for streams in ("none", "columns", "many"):
                row = Row(columns, element_bytes, compute_bytes, streams=streams)
                tiles = {choose(row, "sm_90", gpu).tile for gpu in facts}
                assert tiles == {row_bucket(row, clusters).tile}
            row = Row(columns, element_bytes, compute_bytes)
            tiles = {choose_gradient(row, "sm_90", gpu, "norm", (1,)).tile for gpu in facts}
            assert tiles == {gradient_bucket(row, clusters, "norm").bucket.tile}


def test_the_file_that_is_measured_has_figures():
    """A row that a measurement chose says what was measured."""
    rows = json.loads((lookup.FOLDER / "sm_90.json").read_text("utf-8"))
    of_both = [*rows["forward"], *rows["backward"]]
    assert sum("percent" in one for one in of_both) > len(of_both) / 2
    for one in of_both:
        for case, percent in one.get("percent", {}).items():
            assert re.match(r"[\w -]+ (float16|bfloat16|float32) \d+", case), case
            assert 50 < percent < 110, case
