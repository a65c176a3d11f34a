# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops build` and `fusedops record`: what they make, what they refuse, and how they end."""

from __future__ import annotations

import errno
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from typer.testing import CliRunner

import fusedops as fo
from fusedops import jit
from fusedops.cli import app
from fusedops.generate.target import Target
from fusedops.jit import cache as cache_module
from fusedops.jit import host, store
from fusedops.prebuild.recording import of_call


class TestTheCommands:
    """What they refuse, and how they end."""

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("COLUMNS", "200")

    def build(self, *arguments):
        return CliRunner().invoke(app, ["build", *map(str, arguments)])

    FLAGSHIP = (
        *("fusedops.flagship:ADD_NORM", "--operand", "x=T:300,64", "--operand", "bias=T:64"),
        *("--operand", "p=0.1", "--operand", "residual=float32:300,64"),
        *("--operand", "gamma=T:64", "--operand", "beta=T:64"),
    )

    SOFTMAX = ("--call", '{"op": "Softmax()", "x": "float32:2,8", "values": {}}')

    @pytest.mark.thorough
    def test_a_declaration_is_built_for_every_arch_and_dtype(self, tmp_path):
        result = self.build(*self.FLAGSHIP, "--arch", "sm_80,sm_90", "--dtype", "float16,bfloat16")
        assert result.exit_code == 0, result.output
        rows = re.findall(r"(sm_\d+) +│ +(\d+) +│ +(\d+) +│ +(\d+) +│ +(\d+)", result.output)
        assert [row[0] for row in rows] == ["sm_80", "sm_90"]
        assert all(int(row[1]) >= 12 and row[1] == row[2] for row in rows), rows
        entries = [p for p in (tmp_path / "cache").iterdir() if not p.name.startswith(".")]
        assert len(entries) == sum(int(row[1]) for row in rows)
        again = self.build(*self.FLAGSHIP, "--arch", "sm_90", "--dtype", "float16")
        assert re.search(r"sm_90 +│ +(\d+) +│ +0 +│ +\1 ", again.output)

    @pytest.mark.thorough
    def test_every_length_is_built_for(self):
        call = (
            "fusedops.flagship:ATTENTION",
            "--operand",
            "x=T:2,2,4,16",
            "--operand",
            "scale=0.5",
        )
        call += ("--operand", "pair_bias=T:1,2,4,16", "--operand", "padding=bool:2,1,1,16")
        given = (*call, "--operand", "p=0.1", "--no-backward", "--arch", "x86-64-v3")
        one, every = self.build(*given), self.build(*given, "--lengths", "64")
        assert (one.exit_code, every.exit_code) == (0, 0), every.output
        counts = [int(re.search(r"v3 +│ +(\d+)", found.output)[1]) for found in (one, every)]
        assert counts[1] == 3 * counts[0]  # for rows of up to 16, 32 and 64 columns
        assert re.search(r"\d+\.\d │$", every.output, flags=re.M)  # their size
        refused = self.build(*given, "--lengths", "64", "--dim", "1")
        assert refused.exit_code == 2
        assert "rows in the last dimension" in refused.output

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        ("arch", "dtype"),
        [(f"cpu, cpu,{Target.named('cpu').arch}", "float16"), ("cpu", "float16, float16")],
    )
    def test_what_is_named_twice_is_built_and_counted_once(self, arch, dtype):
        arguments = (*self.FLAGSHIP, "--no-backward")
        result = self.build(*arguments, "--arch", arch, "--dtype", dtype)
        assert result.exit_code == 0, result.output
        assert len(re.findall(r"│ +4 +│ +4 +│ +0 +│ +0 +│", result.output)) == 1, result.output

    def test_one_that_does_not_compile_keeps_no_other_from_it(self, tmp_path, monkeypatch):
        (tmp_path / "wrong.py").write_text(
            "import fusedops as fo\n"
            "wrong = fo.cpp_functor('wrong', forward='v +* nonsense')\n"
            "OP = fo.Softmax(load=[wrong()])\n"
        )
        monkeypatch.chdir(tmp_path)
        call = str(of_call(fo.Softmax().bind(torch.zeros(2, 8), {})))
        result = self.build(
            *("wrong:OP", "--operand", "x=float32:2,8", "--arch", "cpu", "--call", call)
        )
        assert result.exit_code == 1
        assert "wrong()], empty_row='zero'): its kernel for" in result.output
        assert "in: wrong(), load[0]" in result.output
        assert re.search(r"│ +3 +│ +0 +│ +1 +│", result.output), result.output

    @pytest.fixture
    def in_threads(self, monkeypatch):
        """Builds are done in this process, where a test can get at them."""
        monkeypatch.setattr(
            "fusedops.prebuild.build_all.ProcessPoolExecutor",
            lambda count, *_: ThreadPoolExecutor(1),
        )
        monkeypatch.setattr(store, "_unkept", {})
        store._say.cache_clear()

    @pytest.mark.filterwarnings("ignore:the cache folder:RuntimeWarning")
    def test_what_could_not_be_kept_is_no_success(self, tmp_path, monkeypatch, in_threads):
        write = cache_module._write

        def full(path, content):
            if tmp_path / "cache" in path.parents:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(path, content)

        monkeypatch.setattr(cache_module, "_write", full)
        for _ in range(2):  # what the process has kept for itself is not in the cache either
            result = self.build(*self.SOFTMAX, "--no-backward")
            assert result.exit_code == 1
            assert re.search(r"│ +2 +│ +0 +│ +0 +│ +2 +│", result.output), result.output
            assert "could not be kept: the cache folder" in result.output
            assert "cannot be written: No space left on device" in result.output

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((), "say what to build"),
            (("--operand", "x=float32:2,8"), "--operand belongs to a declaration"),
            (("fusedops.flagship:ATTENTION",), "--operand must give x"),
            (("no.such:OP", "--operand", "x=float32:2,8"), "no module 'no.such'"),
            (
                ("fusedops.flagship:ATTENTION", "--operand", "x=float32:2,8"),
                "missing; give --operand scale=DTYPE:",
            ),
            (
                (
                    *("fusedops.flagship:ADD_NORM", "--operand", "x=float32:2,8"),
                    *("--dtype", "float16"),
                ),
                "--dtype says what T stands for",
            ),
            (
                (
                    *("--call", '{"op": "Softmax()", "x": "float32:8", "values": {}}'),
                    *("--dtype", "float16"),
                ),
                "--dtype belongs to a declaration",
            ),
            *(
                (
                    (
                        *("--call", '{"op": "Softmax()", "x": "float32:8", "values": {}}'),
                        *("--arch", f"sm_90{letter}"),
                    ),
                    f"arch must be sm_90, got 'sm_90{letter}'",
                )
                for letter in "af"
            ),
            (("--call", "nonsense"), "not the signature of a call"),
            (
                ("--call", '{"op": "Softmax()", "x": "float32:8", "values": {}, "wanted": ["x"]}'),
                "not the signature of a backward pass: no ",
            ),
            (("--calls", "no_such_file"), "No such file"),
            (
                ("--call", '{"op": "Softmax()", "x": "float32:8", "values": {}}', "--arch", "sm_1"),
                "arch must be one of",
            ),
            (("--call", '{"op": "Nothing()", "x": "float32:8", "values": {}}'), "has no Nothing"),
            (
                (
                    "--call",
                    '{"op": "Softmax()", "x": "float32:8", "values": {}}',
                    "--import",
                    "nope",
                ),
                "No module named 'nope'",
            ),
        ],
    )
    def test_what_build_refuses(self, arguments, words):
        result = self.build(*arguments)
        assert result.exit_code == 2
        assert words in " ".join(result.output.replace("│", " ").split())

    def test_an_mlp_is_built_from_a_recording(self, tmp_path, monkeypatch):
        (tmp_path / "of_mlp.py").write_text("import fusedops as fo\nblock = fo.MLP()\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "1000")
        result = self.build("of_mlp:block", "--operand", "x=float32:2,8")
        assert result.exit_code == 2
        for part in ("must be a row op, Linear or Matmul", "fusedops record", "--calls"):
            assert part in result.output

    def test_a_call_that_runs_no_kernel_is_no_success(self):
        result = self.build("fusedops.flagship:ADD_NORM", *self.empty())
        assert result.exit_code == 1
        assert "there is nothing to build" in result.output

    def empty(self):
        return [word.replace("300,64", "0,64") for word in self.FLAGSHIP[1:]]

    def test_offline_builds_nothing(self, monkeypatch):
        monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
        assert "forbids to compile" in self.build(*self.FLAGSHIP).output

    @pytest.mark.filterwarnings("ignore:the cache folder")
    def test_a_cache_that_is_not_used_is_refused_with_the_reason(self, tmp_path):
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache").chmod(0o777)
        result = self.build(*self.FLAGSHIP)
        assert result.exit_code == 2
        assert "everybody may write to it" in " ".join(result.output.replace("│", " ").split())

    def test_a_functor_whose_module_is_not_imported_is_told(self):
        op = "LogSoftmax(load=[f()], empty_row='zero')  # - not.here:f@0123456789abcdef"
        result = self.build("--call", json.dumps({"op": op, "x": "float32:8", "values": {}}))
        said = " ".join(result.output.replace("│", " ").split())
        assert "import not.here before" in said
        assert "--import not.here" in said

    @pytest.mark.parametrize(
        ("name", "value"), [("FUSEDOPS_OFFLINE", "yes"), ("FUSEDOPS_VERBOSE", "2")]
    )
    def test_a_variable_that_is_wrong_is_told(self, monkeypatch, name, value):
        monkeypatch.setenv(name, value)
        result = self.build(*self.SOFTMAX)
        assert result.exit_code == 2, result.exception
        assert f"{name} must be 0 or 1, got '{value}'" in result.output

    def test_a_build_that_cannot_write_anywhere_ends_no_other(self, monkeypatch, in_threads):
        build = jit.build

        def full(source, **order):
            if "Scale" in order["declaration"]:
                raise OSError(errno.ENOSPC, "no folder for temporary files")
            return build(source, **order)

        monkeypatch.setattr(jit, "build", full, raising=False)
        scaled = of_call(fo.Softmax(load=[fo.Scale("s")]).bind(torch.zeros(2, 8), {"s": 2.0}))
        result = self.build(*self.SOFTMAX, "--call", str(scaled), "--no-backward")
        assert result.exit_code == 1
        assert re.search(r"│ +4 +│ +2 +│ +0 +│ +2 +│", result.output), result.output
        assert "was not built: [Errno 28] no folder for temporary files" in result.output

    def test_a_process_that_is_killed_is_told_with_the_table(self, tmp_path, monkeypatch):
        killing = tmp_path / "killing-c++"
        compiler = host.find_compiler()[0]
        killing.write_text(
            f'#!/bin/sh\nif [ "$1" = -v ]; then exec {compiler} -v; fi\nkill -9 $PPID\n'
        )
        killing.chmod(0o755)
        monkeypatch.setenv("CXX", str(killing))
        result = self.build(*self.SOFTMAX, "--no-backward")
        assert result.exit_code == 1, result.exception
        assert re.search(r"│ +2 +│ +0 +│ +0 +│ +2 +│", result.output), result.output
        assert "was killed, perhaps for want of memory" in result.output

    def test_record_tells_of_a_program_that_cannot_be_run(self, tmp_path):
        program = tmp_path / "program"
        program.write_bytes(b"\0 no program")
        program.chmod(0o755)
        result = CliRunner().invoke(app, ["record", "-o", str(tmp_path / "calls"), str(program)])
        assert result.exit_code == 2, result.exception
        assert "cannot be run" in result.output

    def test_record_only_adds_to_its_file(self, tmp_path):
        """What another process writes meanwhile stays, and so does what it writes to."""
        line, calls = self.SOFTMAX[1], tmp_path / "calls"
        calls.write_text(f"{line}\n{line}\n")
        script = tmp_path / "adds.py"
        script.write_text("pass")
        with calls.open("a") as other:
            arguments = ["record", "-o", str(calls), str(script)]
            result = CliRunner().invoke(app, arguments)
            other.write(f"{line}\n")
        assert "0 new calls, 1 in" in result.output
        assert calls.read_text() == f"{line}\n" * 3

    def test_record_counts_one_new_call(self, tmp_path):
        calls, script = tmp_path / "calls", tmp_path / "adds.py"
        line = f"{self.SOFTMAX[1]}\n"
        script.write_text(f"import pathlib; pathlib.Path({str(calls)!r}).write_text({line!r})")
        result = CliRunner().invoke(app, ["record", "-o", str(calls), str(script)])
        assert "1 new call, 1 in" in result.output

    def test_record_ends_as_the_program_does(self, tmp_path):
        script = tmp_path / "ends.py"
        script.write_text("import sys; sys.exit(int(sys.argv[1]))")
        arguments = ["record", "-o", str(tmp_path / "calls"), str(script), "7"]
        assert CliRunner().invoke(app, arguments).exit_code == 7
        assert CliRunner().invoke(app, ["record", "no-such-program"]).exit_code == 2
        (tmp_path / "calls").write_text("nonsense\n")
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert (tmp_path / "calls").read_text() == "nonsense\n"
