# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What version 0.1 pickled can be read, though modules have other names now."""

import base64
import pickle
import subprocess
import sys
import zlib

import pytest
import torch

import fusedops as fo
from fusedops import renamed

#: Pickled with protocol 2 while all modules were in one folder; compressed, in base 64.
OLD = {
    "an op with masks": (
        "eNp1kElPwzAUhNPSltbsa1nv4UD+BNwQF3rxLXISm0ZNao+fLRYpEhwQ/GycCKmXcvBb5mk+jfzRz5UnWWhDidUv"
        "qTYstTLzZVUwRPHqGB6baeVq8crQW+nKL3OnLSXClm5eS1fmbJaLSjL0bz6x0WDAh1EUUathyHvtjBFlaxC1oAWx"
        "x1AZNoN53GAS80FwtBewzlxjq5MWUhps//j/QXfCk6gYdgJqt8Fe3AURVfm8xD4fh9lpc1tJ5XDAR2HVSpF0OHyI"
        "fPaNozXgwmqjvWP3fx3HgX3S4LSLZjCdTyn7wlmDcz4JiqyNe0vDx+KiC/0urcYlOVw94Tr5BUKceUE="
    ),
    "another": (
        "eNp1UclOwzAQTUtXs+875RgOVOLCHXFsT3DAtyqLnVgkcV48USlSJDggfhvjSyVUDh75zbx5b8b+aEeyNiLWpRlX"
        "ej7TJZtVIqxVFjN4/rJoD5vq5FlLyoM3htayJOsiIl2ZcR6YV8NeVBHrOUP75hNrDTo+73ielwlJ6E7avGtBpZKU"
        "0Jt4DgWZSgr0+cDeSZe3jjrgPQu1lEYQhhOvDv81nIoiodQwMOu43mCD952hy2KTtywqsGVWKVjvULEHF7Ft+3ca"
        "7PrO22S6FAZ7rj/AfvpnwoPUjfWNw1W6laI0F6Qi9hgYYjiy2scNTtzGMS1KgdNfapSyUGY6oLt7hjMTfuG8wQUf"
        "WpbIS1rM7K/g0j3hu6g0rgxh9ITr8Q8VAorI"
    ),
    "a norm": (
        "eNp9T7tOw0AQdF4QjjcJzy8wjT8BRJo0iCKVu2jPPuOT7NhzDxBIlqAA5Yf4ovAB0FFyHIrSIFZa7WpmZ3b3qZ1k"
        "Vou0qnWkqvtpVbOpEtzKImUIwhXpkl3Tg1A3lSoZWisms7PEVEpHpKTJS2FkwkaSNEP7/BmdBt24GwQBdxB6ceun"
        "xZrmfxgooWVqqWCTZYN1Z9FvsBHGfSdcDoB5H4XNuOcqFXVO2BpffgQ+/D5NdwLbfu4RO5a/Yvf/m6+yTM4Ew55b"
        "ud/gIPTet1SWhEE++H1CGMIwH1r+gsMGR2HccaioNY7HF+9fb/NF/ull2pDROJlbg9MJzqJvXUpxyA=="
    ),
    "a report of check": (
        "eNpdjk0PgjAMhsenOPz+FXjhT3jwYOLB065jVDECo2yEE4ke/N+OhWhiD23ztO/bPl1x7RTkslGpKEA86AUa2WqK"
        "ZP9CZ0A3YTEhJAdR8pbru6zRY85I0GeRqUJWDW8hx+Df6TBNKIbGazZglDB/VHAFOLcmAqlFfcE1xhb1uLC+UEIF"
        "tVa4PDnMNcBsrM7MM91NalwfyRQsHFW81uaHzY8GJqnC3MftF3bZG3ddln4AxmA8hQ=="
    ),
    "an explanation": (
        "eNqlVNt2GzUUdZJe3GnLpdxKuYmS0jGxTRI7IS3QUkoJMI1byk1cg2ZGjrQyI80ZaWL7YdaChxT4IL4IfoA3HjmS"
        "XRzWyhsPXtZldPbW3lvnp8VkWBme6sJ0+bjImGJWahXcOTKGRutnWKhhMaSLjUZDF7A0P1Tq0a4ugt2Sx5XM0gBO"
        "hPNN/AV32YSXA13mAZxszbeGlUqsLk2XldKKnFuZBLeGQ6l4AKcQ73QNzZCeRLw9lucMztAFN4aAnsD/mFsGZ/1S"
        "DOeq+BDO1/BYSJdwgRcGHt++8effv//6h/jLlzCWWQNP/FZZePIBXKCncC3lBzLh8JQ/kxQVPO0rszIR8Aw9g8Px"
        "1mZns9856MOz9LT7SOdFZTk854gnIhhmmtneegAX/UmcpfB8awaoSw6XxHnadDt8aHc1gr/Q8l+iZgZejJZmVbMq"
        "VwZeipp+fiCNtDyFl6PGIbxCV3BJKmIFJ7pMeUn0kIyvGpLKnCuD9pg2GbFsn6eEGdID8hBe9aAmETytMg6XPabQ"
        "xsJrfmglri4P/MVHYgJX6M0ZKYJCTQjCMRJXwyGihQi3ttnb6pMZzxapFBZwhCaElZyM0D/LFbzuUXXBS6ZSA1dr"
        "CENv0Bhax2fsfsYSdPsNdHulhvbU7dROCg4dcXGqo2A460ZLUfMhvDmVWXIDq/SClw6p7FW6Mo/YwZo/NpKpFbA+"
        "8JNM5tJCjxInLvehcyI6RZ2jKEaJeiZCuzj0/ZF4YhFkI/qxikUgHMHNGt4KBdIS3ah5CFtilV47lkGbKE1QyyMG"
        "XSd4jRINilGxLCPe/mtifSB6oi82IoIo5zzK9RrePoLyzv9Gefc/KJUPmKrymJcGbtRw0y9gMjHXBt6r4ZZ3bALv"
        "ezq3a/jgER3vwB2xKtbmJVEe411PS11oV+LDacD3eWFh+3jXI9wL4CMs/3ENn4T+e8VyDhENZk9VGuwGBu76vZFg"
        "FnboJRz2yIy7i+js9WFU8aYwQDrLPtF6pOBetIyaOoz7NXwaiki0xA694rKPrmNajS4xAMzi0zFkTx5w5RS1WCzR"
        "xQQeuMuJe1FjVuWzGj53VQKxI9weme79Al/468cs2R+xMoUv6WXXpEqWSq6sj9nY+aEVJ/u8VDxrE/8Qv/ItCLFc"
        "mGlrOmPuxcLX9KzjqUnMiWupFr6Z9gVslExZ+JZuu1C7rqqwq3aYb5qdmRwdV77tMN1N3QSzfXtl5d+okyFefd7Z"
        "vhMbO8sL00bEZSbVHnw/fTYoB3L7oVXF3X8A1X/k3A=="
    ),
    "an explanation for a GPU": (
        "eNqNVFt3FEUQ3lwJSzAKXhG1vbIrSSQXMSSKEUTUwRUD4nhdemd6t/vs7PTUdE9292HOwQc44V/4J/wvvusf8M1H"
        "qqsnmzz4wMOcU1VdU5evvqoH01G3MCLWmVkVoyzhKbdKp/Ubx2SoNX+HqRKmG+F0rVbTGcwc/ZTrYVtn9XYuOoVK"
        "4jrMNo4e8avf4mORt3Q+qMNcs1nCfCOcwSgiM3Di5tV//vvz4G/5bziHJmO5NbBwUFg4uQf1cB5tsdhXkYBT3mHQ"
        "vnIJFsNZlHkeSTgtF8MTqER6kBVWwDOR1WivdxPN7cZ6HZbIF7UYnm1WSXQu4LlmuOAeRNe2NeY70yRHbMbA2WCm"
        "CpoUg9TA88EC6fvKKCtieCGoPYQXw4toUimzUjCdxyJnustGFwyL1UCkBnEzy2zIk76IGTdsA156BC9TUhNJEReJ"
        "gFdIzUVPGStyOEclWIUvrx5BeOhdv3MowHkcx2slvN6gH/oqjeENeY5qtDIXPDbAginqNuNR38CbwTRpQxVbCW8F"
        "s/Js8IDgjWSRosPblTup8A427DQx4pGFdw/C00cQtztjKwy8F8xS8m6RJHABw7tgmRIRvjUee/iSgtpqVrG5xMrg"
        "/aDmx2cw7UV6SMU+ui1TCMLYwMrjChqjYpFaWK3+MsXAwAfhyWOwGbhUjU4PYA395j2TejipdVTnaMwOkw1fV4/j"
        "yPC3zYOiQ0wcyjF8GP6B0hqr8GMjts4IO5Q2WcWEHbbGCCHGGTIF1fUtJxjUO4mO+o4CzlZF2WFbbJ8nhXAO3sa6"
        "OkfrJKBrfUyZmDLMoblDjMKorItIeGXS6mWCRWci5yl29FEJW+EUWkZw5f/X+HbCI2TMNjJmp4SPGwRHbMeZgE/k"
        "kl8IyVG7GswEC4/gU78vCse4G56hsadW9QpdmMOi4TOJDPK4qoGycC1kKG8ybl2byH7WWLvMiCfNbWrA9QfX6RdP"
        "n8+D+0XH0DjSYtBxrd0o4Qsy4Doi0QzcLOHLBnU3hq+k6+DrEoKGxLplVe0tuSupGvmUNXwjKTM1ORA8hRYF/raE"
        "25PAD+E7uRsuuUpS4efn5w17mGoKU50nqkxSbTNl3fQm7nAH0yxWaXJjY7hLab4v4d6xND9g9U8dMvQhCyJAnOtM"
        "O4x+9GerLzILP/mT1sE+hzyP4eeW33CduWn+0vQad1cEfg1PuWOhWUcwd7Yt/OZPHM8Vx31rh6tuvO5yp3i5V6p7"
        "unLIxGWElrXu7d29ToT2d/k+lviXX32hEpX2gLf8gms3806z6Kw+AWmK6PI="
    ),
    "a signature": (
        "eNo9jEEOgjAURAsqKHgBTwBNDAvcGBNPwaY7U6WQEujn01bQhERvbsPC1bzMm8zHf1RWixJ6nWlZK27sIKLiT0jo"
        "F70Z/ZT5hBDoccUODgqoTMenVHS9ed0GGK/JWwyQUFwzz/kJNyx2WbXAzSm/5MczBixwzZO3VmgMZ9yycLk0EpTG"
        "3YzRMhi5MqLEmC66AamkqnFP7T37AeQIMdQ="
    ),
}

EQUAL = {
    "an op with masks": fo.Softmax(
        load=[fo.Scale("s"), fo.Mask("m", keep=True), fo.Causal()], store=[fo.Dropout("p")]
    ),
    "another": fo.LogSoftmax(
        load=[fo.Window(2, 0), fo.Lengths("n"), fo.Alibi("a")], store=[fo.Cast(torch.bfloat16)]
    ),
    "a norm": fo.LayerNorm(
        load=[fo.Bias("b"), fo.Residual("r", save="z")],
        store=[fo.Affine("gamma", "beta")],
        stats=True,
    ),
}


def pickled(name):
    return zlib.decompress(base64.b64decode(OLD[name]))


@pytest.mark.parametrize("name", EQUAL)
def test_an_op_of_then_is_the_op_of_now(name):
    op = pickle.loads(pickled(name))
    assert op == EQUAL[name]
    assert op.text == EQUAL[name].text
    assert pickle.loads(pickle.dumps(op)) == op


@pytest.mark.parametrize("name", [name for name in OLD if name not in EQUAL])
def test_a_result_of_then_is_read(name):
    found = pickle.loads(pickled(name))
    assert type(found).__module__ not in renamed.NAMES
    assert str(found)
    again = pickle.dumps(found)
    assert not any(f"c{old}\n".encode() in again for old in renamed.NAMES)
    assert str(pickle.loads(again)) == str(found)


#: Modules of version 0.1, pickled with protocol 2.
OLD_MODULES = {
    "norm": (
        "eNrdlM9zFEUUx2d/hITmVwiC/BLx90ZlDZsFsioEBRN1Icpw6QvV1TvTm2nonZ7X3cNWqNqqeFhZrOI/4OARb144"
        "UOVpU+XZf8SzV7t7kgoxscqzc5iZ7vfp9+Z933uzXo66uWaxzHQ9TVHINI9zKm7RNaZWpOohCGZ/gNIAyjU8FQSB"
        "UZSnPF2FyggfsGuSUUV7zDCloTqAiRreZ3f7jK8mBvZFRqooqZPccKERUayTcxFvn0Ew+S+IYamWijxsIJiqbTLa"
        "PugqQ0RIGpOukj3SWTNMI9gfkUjGLNKIpe4FAcIzpSAYr5fHPyGx8dv42dLGy/P3x8+/P1W3m7c3fqm45wCCGp62"
        "H5wpaWQkBXloE+EyhZJD8CFrEtwYwQhLY05TKI9HGDkd1jJGNH/ENFQGUK3hCbupE6kMTLTLuGJXPLUKtKu46pxI"
        "K9lku5rnLmwNTzq6SAeCIj20ZNMydzdzhBI+bJlWc77RalxpzTWb83NNKBxHWQ6VdnnFQPWOc3cPgr3gEq2Xg61r"
        "vL7ob3DAF0hQw9OLcPBHOBTC4SEcCWG6HbTLQzjaLg1h5klkxRAsMlYLjb5TMVMsvskjg+DYbAivGTgewolR4hav"
        "P4aTIZzyeXY41XA6mUymasn+BOHp/1ERFhYuteYbC/+tCFvwjiIUF5xJrO5nQ3hjCOdCeLPQ/bzT/a0nXtG3DbwT"
        "wruFvO89hvdD+CD340c6ebfrZq02gFl8xu2kMiWZE0zbmTFbANHMwIcRIW6cbK0JQXYHwUf34OMhXAihjo95fzR6"
        "0KfKzqRiJJHygYZPfNg5fGSHvbBd9LYGPuFsXJNuLsROBuZXvA6kK9UrB5v+4CV8epeJ9LlJiHOwquGyx67gs7sx"
        "Kvp0TZOI2r6MYcGDLTzzKridw6fe/Bk+t6d5R8jPPXoVH3WoNtQwEttG33R0zVsX8fF/WLdDXffEF0Vm/s+0J/al"
        "x24UNduFSb0V8Kbnviqq3ZNxLmx3Lw1g2Y9Ian/JVNiOt8cTmjH42vXON74jWabh2+Vrv/7+188v/nzqlWGC9WxT"
        "9LlmhHa7PGXQHuGSmzW4tbz4R9GQfmyoyBIKt5evb3apHzvFTK5S+6WK0R6sjPJO/W8A7+1m"
    ),
    "softmax": (
        "eNptkstuEzEUhqeFXpiWXmmhF8odEtqGR6gQSF1UAqlsvEGW47ETKx57jo9HgcVIsEDqY/UR+ki1nVZpSGdhjf//"
        "O/+xZ86fWS5rFIWtsGNM/tl7Ybyy5oeVvmS/csjaf2GmgdkWWcyyzDumjDI9eHBBlsKeVsyxUnjhEB42MJcg2q2l"
        "jMp8AwtkLyrGGloFSWHMvwUoCg+LnIa90l4ZSvOg5PDoJ+T/YOkclslmymN8MGSuoJUTtG/tAOEx51ZrweNZMf/u"
        "CuFE8VXxUL3SPodVsjpROCpa60dvnWxHTyGVtdaTDGx8IyvRldbdKdxMhU/I7pRFh8r3aQzoIWwlbJvsT2NMD9lv"
        "pJyFQxfwNIHPyMZdcHy5nWTvkoN77YmWewndJ+sRRc+8oEX4CjdBz5N7QLb+c8etXiTi5ehm2rLifuxVwl6PfuYU"
        "ZvG24ZvEvR2NQWmLWguEdw28J3NBwXB9AR9OTy6z9JCZsFTQOj25uhHmw8JZjUxDezyYsjbcW4edkuEA8y8JyOFj"
        "GM3DBo5aKZxp1TNwTJbDe9d6b8tjp3p9D52UaqWM0/bpLKu7dbdzDcmp9Gc="
    ),
}

MODULES = {
    "norm": lambda: fo.nn.ResidualLayerNorm(2, 1e-6, p=0.25, alpha=2.0, return_stream=True),
    "softmax": lambda: fo.nn.AttentionSoftmax(
        scale=0.125, p=0.25, causal=fo.Causal("bottom-right")
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_then_is_the_module_of_now(name):
    module = pickle.loads(zlib.decompress(base64.b64decode(OLD_MODULES[name])))
    wanted = MODULES[name]()
    assert type(module) is type(wanted)
    assert repr(module) == repr(wanted)
    assert module.op() is wanted.op()
    x = torch.randn(3, 2)
    given = (x, x) if name == "norm" else (x,)
    for got, want in zip(module.eval()(*given), wanted.eval()(*given), strict=True):
        assert torch.equal(got, want)
    assert repr(pickle.loads(pickle.dumps(module))) == repr(wanted)


@pytest.mark.thorough
def test_old_names_are_not_in_the_way():
    """They are neither imported with the package nor shown, and the new modules are no copies."""
    program = (
        "import sys, fusedops\n"
        "from fusedops.renamed import NAMES\n"
        "assert not NAMES.keys() & sys.modules.keys()\n"
        "from fusedops.check import Report as old\n"
        "from fusedops.testing import Report\n"
        "assert old is Report and old.__module__ == 'fusedops.testing.report'\n"
        "import importlib.util\n"
        "assert importlib.util.find_spec('fusedops.nothing') is None\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_only_public_names_are_shown():
    import fusedops.explain.forward
    import fusedops.testing

    assert fusedops.testing.check
    shown = {name for name in dir(fo) if not name.startswith("__")}
    assert shown == set(fo.__all__)
    assert "__version__" in dir(fo)


def test_results_of_several_outputs():
    """Their class is made for each declaration, so it is none that pickle could import."""
    result = fo.Softmax(lse=True)(torch.randn(3, 8))
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is type(result)
    assert torch.equal(again.y, result.y)
    assert torch.equal(again.lse, result.lse)
