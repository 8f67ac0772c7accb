"""Installers share inodes: only the environment that is integrated may change."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from escha_oscar.errors import DriftError
from escha_oscar.installed.apply import apply_plan
from escha_oscar.installed.revert import revert
from tests.support.environments import FILES, LINKED, MERGED, condition, make_plan, snapshot


def test_a_conda_like_package_cache_and_a_second_environment_keep_their_bytes(tmp_path: Path, site: Path) -> None:
    """conda hard-links every file of a package, its metadata too, from one cache into every environment."""
    (site / LINKED).unlink()
    (site / LINKED).write_text(str(FILES[LINKED]))
    other, cache = tmp_path / "other", tmp_path / "pkgs"
    for copy in (cache, other):
        shutil.copytree(site, copy, copy_function=os.link)
    stock, twins = snapshot(site), (snapshot(other), snapshot(cache))
    summary = apply_plan(make_plan(site))
    assert len(summary.shared) == 5
    assert (snapshot(other), snapshot(cache)) == twins
    assert all((site / path).stat().st_nlink == 1 for path in MERGED)
    revert(site)
    assert snapshot(site) == stock
    assert (snapshot(other), snapshot(cache)) == twins


def test_a_linked_site_packages_has_one_state(tmp_path: Path, site: Path) -> None:
    stock = snapshot(site)
    (tmp_path / "lib64").symlink_to(site)
    apply_plan(make_plan(tmp_path / "lib64"))
    assert condition(site) is condition(tmp_path / "lib64")
    assert apply_plan(make_plan(site)).already
    revert(tmp_path / "lib64")
    assert snapshot(site) == stock


def test_a_link_whose_cache_was_cleaned_still_reverts_to_the_link(tmp_path: Path, site: Path) -> None:
    text = (site / LINKED).readlink()
    apply_plan(make_plan(site))
    shutil.rmtree(tmp_path / "cache")
    assert apply_plan(make_plan(site)).already
    revert(site)
    assert (site / LINKED).readlink() == text
    assert not (site / LINKED).exists()


def test_a_dangling_link_is_refused_as_changed(tmp_path: Path, site: Path) -> None:
    (tmp_path / "cache/linked.py").unlink()
    before = snapshot(site)
    with pytest.raises(DriftError, match="changed since the plan"):
        apply_plan(make_plan(site))
    assert snapshot(site) == before
