from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.load import load
from gateway.policy.problems import PolicyError

MAIN = """\
version: 1
include: [tenants/*.yaml]
backends: {a: {engine: echo}}
models: {m: {}}
limits: {free: {requests: 1/min}}
routes: [{name: r, use: a}]
"""


def policy_of(folder: Path, **files: str) -> Path:
    (folder / "tenants").mkdir()
    for name, text in files.items():
        (folder / "tenants" / f"{name}.yaml").write_text(text)
    path = folder / "policy.yaml"
    path.write_text(MAIN)
    return path


def test_maps_may_lie_in_files_of_their_own(tmp_path: Path) -> None:
    path = policy_of(
        tmp_path,
        acme='plans: {acme: {models: "*", limits: [free]}}\n',
        globex="limits: {big: {requests: 9/min}}\nplans: {globex: {models: [m], limits: [big]}}\n",
    )
    policy = load(path)
    assert [*policy.plans] == ["acme", "globex"]
    assert [limit.name for limit in policy.plans["globex"].limits] == ["big"]


def test_the_digest_is_of_all_files(tmp_path: Path) -> None:
    path = policy_of(tmp_path, acme='plans: {acme: {models: "*"}}\n')
    before = load(path).digest
    (tmp_path / "tenants/acme.yaml").write_text("plans: {acme: {models: [m]}}\n")
    assert load(path).digest != before


def test_a_mistake_is_shown_in_the_file_it_is_in(tmp_path: Path) -> None:
    path = policy_of(tmp_path, acme='plans:\n  acme: {models: "*", limits: [fre]}\n')
    with pytest.raises(PolicyError) as caught:
        load(path)
    assert str(caught.value).splitlines() == [
        f"{tmp_path}/tenants/acme.yaml:2:32  error[unknown-ref]  'fre' is not one of limits",
        '    2 |   acme: {models: "*", limits: [fre]}',
        "      |                                ^^^ did you mean 'free'?",
        "  write: free",
    ]


def test_a_name_given_in_two_files_shows_both(tmp_path: Path) -> None:
    path = policy_of(
        tmp_path,
        acme='plans: {acme: {models: "*"}}\n',
        more="limits: {free: {requests: 2/min}}\nplans: {acme: {models: [m]}}\n",
    )
    with pytest.raises(PolicyError) as caught:
        load(path)
    text = str(caught.value)
    assert "more.yaml:1:10  error[duplicate-key]  'free' is already one of limits" in text
    assert f"first here, in {path}" in text
    assert "more.yaml:2:9  error[duplicate-key]  'acme' is already one of plans" in text
    assert f"first here, in {tmp_path}/tenants/acme.yaml" in text


@pytest.mark.parametrize(
    ("included", "message"),
    [
        ("routes: [{name: x, use: a}]", "'routes' is not a key of an included file"),
        ("plan: {x: {models: [m]}}", "'plan' is not a key of an included file"),
        ("- a", "an included file is a map of backends, models, limits, plans"),
        ("plans: [", "not YAML"),
    ],
)
def test_an_included_file_holds_maps_only(tmp_path: Path, included: str, message: str) -> None:
    path = policy_of(tmp_path, acme='plans: {acme: {models: "*"}}\n', bad=included)
    with pytest.raises(PolicyError) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert message in problem.message
    assert caught.value.file_of(problem).endswith("bad.yaml")


def test_a_pattern_that_finds_nothing_is_a_mistake(tmp_path: Path) -> None:
    path = policy_of(tmp_path)
    with pytest.raises(PolicyError, match=r"no file fits 'tenants/\*\.yaml'"):
        load(path)
