import subprocess
import sys
import zipfile

import pytest

from escha_oscar import __version__
from escha_oscar.errors import SourceError
from escha_oscar.source.bundled import Bundled


@pytest.fixture
def bundled(tmp_path):
    (tmp_path / "donor/sglang/srt").mkdir(parents=True)
    (tmp_path / "donor/sglang/srt/environ.py").write_bytes(b"a = 1\r\n")
    (tmp_path / "secret.py").write_text("")
    return Bundled.open(tmp_path / "donor")


def test_a_file_is_read_as_bytes(bundled):
    assert bundled.read("sglang/srt/environ.py") == b"a = 1\r\n"


@pytest.mark.parametrize("path", ["sglang/srt/absent.py", "sglang/srt", "sglang/srt/environ.py/x", "other"])
def test_what_is_no_file_reads_as_none(bundled, path):
    assert bundled.read(path) is None


@pytest.mark.parametrize("path", ["../secret.py", "sglang/../../secret.py", "/etc/passwd", "a\\b", ""])
def test_a_path_stays_in_the_tree(bundled, path):
    with pytest.raises(SourceError):
        bundled.read(path)


def test_the_tree_is_named_with_the_tools_version(bundled):
    assert (bundled.id.kind, bundled.id.commit) == ("bundled", None)
    assert __version__ in bundled.id.description


def test_it_reads_from_a_zipped_package(tmp_path):
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.writestr("donor/sglang/a.py", "z = 1\n")
    assert Bundled.open(zipfile.Path(tmp_path / "p.zip", "donor/")).read("sglang/a.py") == b"z = 1\n"


def test_opening_it_needs_no_git(tmp_path):
    code = (
        "import sys; from escha_oscar.source.bundled import Bundled; Bundled.open().read('sglang/x.py');"
        "print('git' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
