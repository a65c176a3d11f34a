# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A GPU that the compiler or the cache does not know is served by what was built for older ones."""

import warnings

import pytest
import torch
from cases import raises
from typer.testing import CliRunner

import fusedops as fo
from fusedops import _runtime
from fusedops.cli import app
from fusedops.errors import CompilerNotFound, MissingVariantError, UnknownArchError
from fusedops.generate import target as targets
from fusedops.generate.target import Target
from fusedops.plan import forward as plan
from fusedops.prebuild.recording import of_call
from fusedops.run import fallback_arch as serving
from fusedops.schedule.architectures import GPUS, Gpu

NEWER = Target("sm_139", Gpu(232448, 200, 2048, 60 << 20))  # of no GPU that is known


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Nothing is cached, and every warning is said anew."""
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    serving._say_once.cache_clear()


def serve(monkeypatch, own, columns=1000):
    """The target that serves a softmax on such a GPU, and its variant's image."""
    op = fo.Softmax()
    bound = op.bind(torch.empty(7, columns, dtype=torch.float16, device="meta"), {})
    monkeypatch.setattr(serving.Target, "of", classmethod(lambda cls, device: own))
    images = []
    monkeypatch.setattr(_runtime, "load_cuda", lambda image, *_, **__: images.append(image))

    def make(target):
        plan.describe(bound, target).variant.kernel()
        return target

    return serving.serve(torch.device("cuda", 0), make, lambda: of_call(bound)), images[0]


def test_a_gpu_newer_than_the_compiler_runs_ptx(monkeypatch):
    said = r"on sm_139 runs what was built for sm_121, translated .* PTX; .*knows sm_"
    with pytest.warns(RuntimeWarning, match=said):
        target, image = serve(monkeypatch, NEWER)
    gpu = Gpu(101376, 200, 2048, 60 << 20, cluster_limit=8, bulk_copies=True)
    assert target == Target("sm_121", gpu, translated=True)
    assert b".target sm_121" in image
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        serve(monkeypatch, NEWER, columns=1001)


OLD = ("got sm_75", "sm_80 or newer", "op.unfused", "CPU")


def old_gpu(monkeypatch):
    """As on a machine whose GPU is a T4."""
    found = {"name": "Tesla T4", "capability": (7, 5), "shared_per_block_optin": 65536}
    monkeypatch.setattr(targets, "device_info", lambda index: {**found, "multiprocessors": 40})
    targets._cuda_target.cache_clear()
    monkeypatch.setattr(_runtime, "load_cuda", lambda *_, **__: pytest.fail("nothing is loaded"))


def test_a_gpu_that_is_too_old_is_refused_at_the_call(monkeypatch):
    old_gpu(monkeypatch)
    op = fo.Softmax()
    bound = op.bind(torch.empty(7, 100, dtype=torch.float16, device="meta"), {})
    with raises(fo.UnsupportedError, "Softmax: ", "Tesla T4", *OLD):
        serving.serve(
            torch.device("cuda", 0),
            lambda target: plan.describe(bound, target).variant.kernel(),
            lambda: of_call(bound),
        )


@pytest.mark.parametrize("arch", ["sm_75", "sm_70", "sm_75a"])
def test_an_architecture_that_is_too_old_is_refused_by_name(arch):
    said = [f"got {arch}", *OLD[1:]]
    with raises(fo.UnsupportedError, *said):
        Target.named(arch)
    with raises(fo.UnsupportedError, *said):
        fo.export(fo.Softmax(), torch.empty(3, 4), arch=arch)
    operands = ["bias=float16:4", "p=0.1", "residual=float16:3,4", "gamma=float16:4"]
    given = [f"--operand={one}" for one in ("x=float16:3,4", *operands, "beta=float16:4")]
    for command in ("build", "export"):
        arguments = [command, "fusedops.flagship:ADD_NORM", "--arch", arch, *given]
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})
        assert result.exit_code == 2
        for part in said:
            assert part in " ".join(result.output.split())


def test_within_a_generation_machine_code_runs(monkeypatch):
    with pytest.warns(RuntimeWarning, match="on sm_129 runs what was built for sm_121, as machine"):
        target, image = serve(monkeypatch, NEWER._replace(arch="sm_129"))
    assert target.arch == "sm_121"
    assert image.startswith(b"\x7fELF")


def test_a_cache_that_was_filled_for_an_older_gpu_serves_offline(monkeypatch):
    op = fo.Softmax()
    bound = op.bind(torch.empty(7, 1000, dtype=torch.float16, device="meta"), {})
    built = plan.describe(bound, Target.named("sm_80")).variant.build()
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    with pytest.warns(RuntimeWarning, match="on sm_100 runs what was built for sm_80, translated"):
        target, image = serve(monkeypatch, Target.named("sm_100"))
    # What the device has, less what kernels of sm_80 cannot use.
    gpu = Gpu(166912, 148, 2048, 126 << 20)
    assert target == Target("sm_80", gpu, translated=True)
    assert image == built.read("kernel.ptx")


def test_nothing_older_serves_an_older_gpu(monkeypatch):
    """And the message says how to fill the cache for the GPU that there is."""
    op = fo.Softmax()
    bound = op.bind(torch.empty(7, 1000, dtype=torch.float16, device="meta"), {})
    plan.describe(bound, Target.named("sm_90")).variant.build()
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    with pytest.raises(MissingVariantError, match="fusedops build --arch sm_80 --call"):
        serve(monkeypatch, Target.named("sm_80"))


@pytest.mark.parametrize("kind", [MissingVariantError, CompilerNotFound, UnknownArchError])
def test_the_error_is_that_of_the_own_target(monkeypatch, kind):
    def make(target):
        raise kind(f"none for {target.arch}")

    bound = fo.Softmax().bind(torch.empty(7, 8), {})
    for own, words in (
        (Target.named("sm_90"), "^none for sm_90; or build it"),
        (NEWER, "^none for sm_139$"),  # which no command can name
    ):
        monkeypatch.setattr(serving.Target, "of", classmethod(lambda cls, device, own=own: own))
        with pytest.raises(kind, match=words):
            serving.serve(torch.device("cuda", 0), make, lambda: of_call(bound))


def test_other_errors_are_not_worked_around(monkeypatch):
    def make(target):
        raise ValueError(target.arch)

    bound = fo.Softmax().bind(torch.empty(7, 8), {})
    monkeypatch.setattr(serving.Target, "of", classmethod(lambda cls, device: NEWER))
    with pytest.raises(ValueError, match=r"^sm_139$"):
        serving.serve(torch.device("cuda", 0), make, lambda: of_call(bound))


def test_what_is_translated_keeps_to_the_clusters_of_the_gpu():
    """A kernel of sm_90 may have clusters of 16 blocks, for which not every later GPU has room."""
    blocks = {
        own: {target.arch: target.gpu.cluster_limit for target in Target.named(own).older()}
        for own in ("sm_90", "sm_100", "sm_120")
    }
    assert blocks["sm_120"] == {
        **dict.fromkeys(("sm_90", "sm_100", "sm_103"), 8),
        **dict.fromkeys(("sm_80", "sm_86", "sm_89"), 1),
    }
    assert blocks["sm_100"]["sm_90"] == 16
    assert set(blocks["sm_90"].values()) == {1}


def test_what_was_built_ahead_serves_where_a_tuned_kernel_cannot_be_had(monkeypatch):
    own = Target("sm_90", GPUS["sm_90"]._replace(name="NVIDIA Test GPU"))
    monkeypatch.setattr(serving.Target, "of", classmethod(lambda cls, device: own))

    def make(target):
        if target.gpu.name:
            raise MissingVariantError("it was tuned here, and never built")
        return target

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = serving.serve(torch.device("cuda", 0), make, lambda: None)
    assert found == own._replace(gpu=GPUS["sm_90"])
