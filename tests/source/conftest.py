import shutil
from dataclasses import replace

import pytest

from escha_oscar.source.pull_request import PullRequest
from tests.support.pull_request import make_pull_repository, serving


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """The PR-shaped repository, written once; copy it before changing it."""
    return make_pull_repository(tmp_path_factory.mktemp("origin") / "pr.git")


@pytest.fixture
def server(template):
    with serving(template.path.parent) as running:
        yield running


@pytest.fixture
def own(template, tmp_path):
    """A copy of the template, free to change."""
    path = tmp_path / "origin/pr.git"
    shutil.copytree(template.path, path)
    return replace(template, path=path)


@pytest.fixture
def own_server(own):
    with serving(own.path.parent) as running:
        yield running


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def opened(template, cache):
    """Open the pinned commit of the template from its path, with overrides."""

    def open_it(**options):
        defaults = {"repository": str(template.path), "commit": template.pinned}
        return PullRequest.open(cache, **{**defaults, **options})

    return open_it
