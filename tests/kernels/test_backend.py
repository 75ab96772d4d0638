"""Spaces, and the registry with packages that are broken in one way each."""

from __future__ import annotations

import sys

import pytest
from fp4tune.kernels.backend import (
    Backend,
    Constraint,
    Parameter,
    Space,
    UnavailableBackend,
    config_key,
    get_backend,
    load_backends,
)
from fp4tune.kernels.device import detect
from fp4tune.kernels.errors import NotFoundError, UnsupportedError
from fp4tune.kernels.problem import parse_shape

GOOD = """
from fp4tune.kernels.cpu_dequant import CpuDequant

class Good(CpuDequant):
    name = "third.good"
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution with one module and its entry points on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = set()

    def put(module, source, entry_points, distribution=None):
        modules.add(module)
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{distribution or module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution or module}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[fp4tune.backends]", *lines, ""]))

    yield put
    for module in modules:
        sys.modules.pop(module, None)


def reason(name):
    backend = load_backends()[name]
    assert isinstance(backend, UnavailableBackend)
    availability = backend.probe(detect("cpu"))
    assert not availability.available
    assert "cpu.dequant" in load_backends(), "the others must load"
    return availability.reason


def test_a_third_party_backend_is_found(install):
    install("third_good", GOOD, {"third.good": "third_good:Good"})
    assert get_backend("third.good").probe(detect("cpu")).available
    assert list(load_backends()) == sorted(load_backends())


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_library_at_all", "ModuleNotFoundError: No module named 'no_such_library_at_all'."),
        ("raise OSError('libcuda.so.1: cannot open shared object file')", "OSError: libcuda.so.1: cannot open"),
        ("def broken(:", "SyntaxError"),
        ("class Bad:\n    def __init__(self):\n        raise RuntimeError('no licence')", "RuntimeError: no licence."),
        ("Other = 1", "AttributeError"),
    ],
)
def test_one_that_cannot_be_loaded_says_why(install, source, said):
    install("third_bad", source, {"third.bad": "third_bad:Bad"})
    assert reason("third.bad").startswith("Loading third_bad:Bad of third_bad failed: ")
    assert said in reason("third.bad")


def test_one_that_is_no_backend_says_so(install):
    install("third_no", "class No:\n    name = 'third.no'", {"third.no": "third_no:No"})
    assert "third_no:No of third_no is no backend" in reason("third.no")


def test_one_with_another_name_says_so(install):
    install("third_name", GOOD, {"third.name": "third_name:Good"})
    assert "is registered as third.name, and calls itself third.good" in reason("third.name")


def test_a_name_claimed_twice_is_refused_and_names_both(install):
    install("third_one", GOOD, {"third.good": "third_one:Good"})
    install("third_two", GOOD, {"third.good": "third_two:Good"})
    assert reason("third.good").startswith("Two packages register it, as third_")
    assert "third_one:Good" in reason("third.good")
    assert "third_two:Good" in reason("third.good")


def test_the_same_claim_twice_is_one(install):
    """An editable install beside a build directory shows a distribution twice."""
    install("third_good", GOOD, {"third.good": "third_good:Good"})
    install("third_good", GOOD, {"third.good": "third_good:Good"}, distribution="third_good_again")
    assert get_backend("third.good").probe(detect("cpu")).available


def test_an_unavailable_backend_refuses_everything(install):
    install("third_bad", "raise OSError('broken')", {"third.bad": "third_bad:Bad"})
    backend, problem, cpu = get_backend("third.bad"), parse_shape("1x16x16"), detect("cpu")
    assert isinstance(backend, Backend)
    assert backend.versions(cpu) == {}
    assert backend.seeds(problem, cpu) == ()
    for call in (
        lambda: backend.space(problem, cpu),
        lambda: backend.default(problem, cpu),
        lambda: backend.prepare(problem, None, {}),
    ):
        with pytest.raises(UnsupportedError, match="third.bad cannot be used. Loading third_bad:Bad"):
            call()


def test_an_unknown_name_lists_those_there_are():
    with pytest.raises(NotFoundError, match=r"no backend 'nope'; there are .*cpu\.dequant.*torch\.dequant"):
        get_backend("nope")


# --- spaces ------------------------------------------------------------------------------------------------------

SPACE = Space(
    (Parameter("tile", (64, 128)), Parameter("stages", (1, 2, 3)), Parameter("swap", (False, True))),
    (Constraint("tile 128 takes at most 2 stages", lambda c: c["tile"] != 128 or int(c["stages"]) <= 2),),
)


def test_a_space_lists_exactly_its_members():
    configs = list(SPACE)
    assert SPACE.size == 12
    assert len(configs) == len({config_key(c) for c in configs}) == 10
    assert all(c in SPACE for c in configs)


@pytest.mark.parametrize(
    "config",
    [
        {"tile": 128, "stages": 3, "swap": True},
        {"tile": 96, "stages": 1, "swap": True},
        {"tile": 64, "stages": 1},
        {"tile": 64, "stages": 1, "swap": True, "more": 1},
        {"tile": 64, "stages": True, "swap": True},
        {"tile": 64.0, "stages": 1, "swap": True},
        {"tile": 64, "stages": 1, "swap": 1},
        "tile",
        None,
    ],
)
def test_what_is_not_in_a_space(config):
    assert config not in SPACE


def test_a_config_key_does_not_depend_on_the_order():
    assert config_key({"b": 1, "a": True}) == config_key({"a": True, "b": 1}) == '{"a":true,"b":1}'
