import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from escha_oscar.errors import ExitCode, TargetError
from escha_oscar.mapping import DECODE_PATHS
from escha_oscar.target.locate import MAX_SOURCE, locate
from tests.support.wheels import DECODE, SKELETON, make_site_packages

INFO = "escha-1.0.2+qwen3moe.dist-info"


@pytest.fixture(autouse=True)
def no_pythonpath(monkeypatch, tmp_path):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def site(tmp_path):
    return make_site_packages(tmp_path, SKELETON)


def find(root, **options):
    return locate(**{"site_packages": root, "python": None, "allow_upstream": False, **options})


def refused(root, **options):
    with pytest.raises(TargetError) as caught:
        find(root, **options)
    assert caught.value.exit_code is ExitCode.TARGET
    return caught.value


def interpreter(folder: Path, root: Path, before: str = "") -> Path:
    """Write an executable that is this Python with ``root`` on its path, as a virtual environment has it."""
    program = folder / "python"
    path = f"{before}{os.pathsep}{root}" if before else str(root)
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


# what is found


@pytest.mark.parametrize(
    ("name", "version", "family", "warned"),
    [
        ("escha", "1.0.2+qwen3moe", "escha-moe", None),
        ("escha", "1.2.0+qwen3dense", "escha-dense", None),
        ("escha", "1.2.1+qwen3dense", "escha-dense", None),
        ("Escha", "1.2.2+Qwen3Dense", "escha-dense", None),
        ("escha", "1.3.0+qwen3dense", "escha-dense", "1.3.0+qwen3dense"),
        ("escha", "1.0.2+qwen3moe.cu128", "escha-moe", "1.0.2+qwen3moe.cu128"),
        ("escha", "2.0", "unknown", "2.0"),
        ("escha", "1.0.2+gemma", "unknown", "1.0.2+gemma"),
    ],
)
def test_builds_of_the_family_are_recognised(tmp_path, name, version, family, warned):
    target = find(make_site_packages(tmp_path, SKELETON, name=name, version=version))
    assert (target.distribution, target.family) == ("escha", family)
    assert [warned in text for text in target.warnings] == ([True] if warned else [])


def test_the_target_carries_resolved_places(tmp_path, site):
    (tmp_path / "link").symlink_to(site)
    target = find(tmp_path / "link")
    assert target.site_packages == site
    assert target.dist_info == site / INFO
    assert target.version == "1.0.2+qwen3moe"


@pytest.mark.parametrize(("version", "warnings"), [("0.5.9", 0), ("0.5.15", 0), ("0.5.8", 1), ("0.5.9+cu129", 1)])
def test_stock_sglang_needs_the_option(tmp_path, version, warnings):
    root = make_site_packages(tmp_path, SKELETON, name="sglang", version=version)
    assert "--allow-upstream" in refused(root).hint
    target = find(root, allow_upstream=True)
    assert (target.family, len(target.warnings)) == ("upstream", warnings)


def test_a_stranger_that_owns_sglang_needs_the_option_and_is_unknown(tmp_path):
    root = make_site_packages(tmp_path, SKELETON, name="someones-fork", version="1")
    assert "someones-fork 1" in refused(root).found
    assert find(root, allow_upstream=True).family == "unknown"


def test_the_newer_decode_location_is_accepted(tmp_path):
    files = {**SKELETON, DECODE_PATHS[1]: ""}
    del files[DECODE]
    assert find(make_site_packages(tmp_path, files)).family == "escha-moe"


def test_the_package_is_not_imported(tmp_path):
    files = {**SKELETON, "sglang/__init__.py": "raise ImportError('libcuda.so.1: cannot open shared object file')\n"}
    root = make_site_packages(tmp_path, files)
    assert find(root).site_packages == root
    assert find(None, python=interpreter(tmp_path, root)).site_packages == root
    assert not any(name.partition(".")[0] == "sglang" for name in sys.modules)


def test_other_distributions_do_not_matter(tmp_path, site):
    make_site_packages(tmp_path, {"sglang_router/__init__.py": ""}, name="sglang-router", version="0.2")
    (site / "broken-1.dist-info").mkdir()
    (site / "broken-1.dist-info/RECORD").write_bytes(b"\xff\xfe")
    (site / "~scha-1.0.2.dist-info").mkdir()
    assert find(site).distribution == "escha"


def test_record_rows_that_point_outside_own_nothing(tmp_path, site):
    make_site_packages(tmp_path, {"other.py": ""}, name="other", version="1")
    with (site / "other-1.dist-info/RECORD").open("a") as record:
        record.write(f"sglang/../../x.py,,\n../sglang/y.py,,\n{site}/sglang/z.py,,\n")
    assert find(site).distribution == "escha"


# what is refused: the folder


def test_no_such_directory(tmp_path):
    assert refused(tmp_path / "absent").path == str(tmp_path / "absent")


def test_an_environment_instead_of_its_site_packages(tmp_path):
    inner = tmp_path / "venv/lib/python3.12"
    root = make_site_packages(inner, SKELETON)
    assert refused(tmp_path / "venv").hint == f"--site-packages {root}"


def test_an_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no sglang/" in refused(tmp_path / "empty").message


def test_a_distribution_without_its_package(site):
    shutil.rmtree(site / "sglang")
    assert "no sglang/" in refused(site).message


def test_no_decode_attention_names_both_places(tmp_path):
    files = {path: text for path, text in SKELETON.items() if path != DECODE}
    assert all(path in refused(make_site_packages(tmp_path, files)).sought for path in DECODE_PATHS)


def test_a_namespace_package(tmp_path):
    files = {path: text for path, text in SKELETON.items() if path != "sglang/__init__.py"}
    error = refused(make_site_packages(tmp_path, files))
    assert "namespace" in error.message
    assert error.sought == "sglang/__init__.py"


def test_a_linked_package_names_the_other_tree(tmp_path, site):
    (site / "sglang").rename(tmp_path / "elsewhere")
    (site / "sglang").symlink_to(tmp_path / "elsewhere")
    assert refused(site).found == str(tmp_path / "elsewhere")


def test_a_folder_of_the_package_that_is_a_link_outside(tmp_path, site):
    (site / "sglang/srt").rename(tmp_path / "elsewhere")
    (site / "sglang/srt").symlink_to(tmp_path / "elsewhere")
    assert "link out of it" in refused(site).message


def test_a_file_that_is_a_link_to_an_installers_cache_is_fine(tmp_path, site):
    environ = site / "sglang/srt/environ.py"
    environ.rename(tmp_path / "cached.py")
    environ.symlink_to(tmp_path / "cached.py")
    assert find(site).family == "escha-moe"


@pytest.mark.parametrize("make", ["directory", "fifo", "device", "huge", "file-for-folder"])
def test_a_mapped_file_that_is_no_ordinary_file(site, make):
    environ = site / "sglang/srt/environ.py"
    environ.unlink()
    if make == "directory":
        environ.mkdir()
    elif make == "fifo":
        os.mkfifo(environ)
    elif make == "device":
        environ.symlink_to("/dev/zero")
    elif make == "huge":
        with environ.open("wb") as stream:
            stream.truncate(MAX_SOURCE + 1)
    else:
        (site / "sglang/srt/mem_cache").write_text("")
        environ = site / "sglang/srt/mem_cache/memory_pool.py"
    assert str(environ) in str(refused(site).path)


# what is refused: owners


def test_two_owners_are_both_named(tmp_path, site):
    make_site_packages(tmp_path, SKELETON, name="sglang", version="0.5.9")
    error = refused(site, allow_upstream=True)
    assert "escha 1.0.2+qwen3moe" in error.found
    assert "sglang 0.5.9" in error.found


def test_two_versions_of_the_owner_are_both_named(tmp_path, site):
    make_site_packages(tmp_path, {"other.py": ""}, version="1.2.1+qwen3dense")
    error = refused(site)
    assert "1.0.2+qwen3moe" in error.found
    assert "1.2.1+qwen3dense" in error.found


def test_a_missing_record(site):
    (site / INFO / "RECORD").unlink()
    error = refused(site)
    assert "RECORD is missing" in error.message
    assert error.path == str(site / INFO / "RECORD")


def test_a_malformed_record_names_its_line(site):
    with (site / INFO / "RECORD").open("ab") as record:
        record.write(b"sglang/x.py\n")
    error = refused(site)
    assert error.path == str(site / INFO / "RECORD")
    assert error.line == len((site / INFO / "RECORD").read_bytes().splitlines())


@pytest.mark.parametrize("text", ["", "Name: escha\n", "Name: escha\nVersion: one\n", "\x00\xff"])
def test_malformed_metadata(site, text):
    (site / INFO / "METADATA").write_text(text)
    assert refused(site).path == str(site / INFO / "METADATA")


def test_a_package_that_nobody_owns(tmp_path, site):
    make_site_packages(tmp_path, {"other.py": ""}, name="other", version="1")
    for path in (site / INFO).iterdir():
        path.unlink()
    (site / INFO).rmdir()
    assert "belongs to no distribution" in refused(site).message
    (site / "sglang-0.5.9.egg-info").mkdir()
    assert "sglang-0.5.9.egg-info" in refused(site).found


# what is refused: editable installs and shadows


def checkout(tmp_path):
    tree = tmp_path / "checkout"
    (tree / "sglang").mkdir(parents=True)
    (tree / "sglang/__init__.py").write_text("")
    return tree


def test_an_editable_direct_url(site):
    url = {"url": "file:///home/u/sglang", "dir_info": {"editable": True}}
    (site / INFO / "direct_url.json").write_text(json.dumps(url))
    error = refused(site)
    assert "editable" in error.message
    assert error.found == "/home/u/sglang"


@pytest.mark.parametrize("text", ['{"url": "file:///w.whl", "archive_info": {}}', '{"dir_info": {}}', "[]"])
def test_other_direct_urls_are_fine(site, text):
    (site / INFO / "direct_url.json").write_text(text)
    assert find(site).distribution == "escha"


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\x00"])
def test_a_malformed_direct_url(site, text):
    (site / INFO / "direct_url.json").write_text(text)
    assert refused(site).path.endswith("direct_url.json")


@pytest.mark.parametrize(
    "name", ["__editable___sglang_0_5_9_finder.py", "__editable__.escha-1.0.pth", "sglang.egg-link"]
)
def test_marks_of_an_editable_install(site, name):
    (site / name).write_text("")
    error = refused(site)
    assert "editable" in error.message
    assert error.path == str(site / name)


@pytest.mark.parametrize(
    "name", ["__editable___sglang_router_0_1_finder.py", "__editable__.sglang_router-1.0.pth", "sglang-router.egg-link"]
)
def test_an_editable_install_of_something_else_is_fine(site, name):
    (site / name).write_text("")
    assert find(site).distribution == "escha"


def test_a_pth_line_that_adds_another_tree(tmp_path, site):
    (site / "dev.pth").write_text(f"# comment\nimport os\n\n{checkout(tmp_path)}\n")
    error = refused(site)
    assert (error.path, error.found) == (str(site / "dev.pth"), str(tmp_path / "checkout"))


def test_a_pth_line_that_adds_a_zipped_egg(site):
    with zipfile.ZipFile(site / "sglang-0.5.egg", "w") as egg:
        egg.writestr("sglang/__init__.py", "")
    (site / "easy-install.pth").write_text("./sglang-0.5.egg\n")
    assert "sglang-0.5.egg" in refused(site).found


def test_harmless_pth_files(tmp_path, site):
    (site / "a.pth").write_bytes(b"\xff\xfe\x00junk\n" + b"x" * 5000 + b"\nimport sys; sys.exit(9)\n.\n/nowhere\n")
    assert find(site).distribution == "escha"


def test_a_tree_first_on_pythonpath_prints_both(tmp_path, site, monkeypatch):
    tree = checkout(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'absent'}{os.pathsep}{tree}")
    error = refused(site)
    assert error.path == str(site / "sglang")
    assert str(tree / "sglang") in error.found
    assert "PYTHONPATH" in error.hint


def test_a_single_module_and_a_zip_shadow_too(tmp_path, site, monkeypatch):
    (tmp_path / "mod").mkdir()
    (tmp_path / "mod/sglang.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mod"))
    assert "sglang.py" in refused(site).found
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        archive.writestr("sglang/__init__.py", "")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib.zip"))
    assert "lib.zip" in refused(site).found


def test_a_namespace_folder_or_the_tree_itself_on_pythonpath_is_no_shadow(tmp_path, site, monkeypatch):
    (tmp_path / "ns/sglang").mkdir(parents=True)
    (tmp_path / "same").symlink_to(site)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'ns'}{os.pathsep}{tmp_path / 'same'}")
    assert find(site).distribution == "escha"


def test_the_interpreters_own_path_is_searched(tmp_path, site):
    assert find(None, python=interpreter(tmp_path, site)).site_packages == site


def test_a_tree_that_shadows_the_interpreters_wheel(tmp_path, site):
    tree = checkout(tmp_path)
    error = refused(None, python=interpreter(tmp_path, site, before=str(tree)))
    assert error.path == str(site / "sglang")
    assert str(tree / "sglang") in error.found


def test_a_tree_in_the_working_directory_is_warned_of(tmp_path, site, monkeypatch):
    monkeypatch.chdir(checkout(tmp_path))
    assert "checkout" in find(site).warnings[0]


def test_a_real_virtual_environment(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    packages = next((tmp_path / "venv/lib").glob("python3*/site-packages"))
    make_site_packages(tmp_path, SKELETON)
    for path in (tmp_path / "site-packages").iterdir():
        path.rename(packages / path.name)
    assert find(None, python=tmp_path / "venv/bin/python").site_packages == packages.resolve()


# interpreters


@pytest.mark.parametrize(
    "script", ["exit 3", "echo not json", "echo '[1]'", "kill -9 $$"], ids=["fails", "babbles", "lies", "dies"]
)
def test_an_interpreter_that_does_not_answer(tmp_path, script):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert refused(None, python=program).path == str(program)


def test_an_interpreter_whose_start_prints(tmp_path, site):
    (tmp_path / "early").mkdir()
    (tmp_path / "early/sitecustomize.py").write_text("print('hello')\n")
    program = interpreter(tmp_path, site, before=str(tmp_path / "early"))
    assert find(None, python=program).site_packages == site


@pytest.mark.parametrize("name", ["absent", "plain", "."])
def test_no_interpreter(tmp_path, name):
    (tmp_path / "plain").write_text("")
    assert "no such interpreter" in refused(None, python=tmp_path / name).message


def test_an_interpreter_without_sglang(tmp_path):
    (tmp_path / "bare").mkdir()
    assert "no sglang" in refused(None, python=interpreter(tmp_path, tmp_path / "bare")).message


def test_the_running_interpreter_is_the_default():
    assert refused(None).path == sys.executable


# privilege


def foreign(path, monkeypatch):
    """Make this process root and ``path`` somebody else's, whoever runs the tests."""
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    return f"owner {path.stat().st_uid}"


def test_root_leaves_another_users_tree_alone(site, monkeypatch):
    owner = foreign(site, monkeypatch)
    assert refused(site).found == owner
    assert find(site, for_writing=False).distribution == "escha"


def test_root_does_not_run_another_users_interpreter(tmp_path, site, monkeypatch):
    program = interpreter(tmp_path, site)
    owner = foreign(program, monkeypatch)
    error = refused(None, python=program)
    assert (error.path, error.found) == (str(program), owner)


# unreadable metadata


@pytest.mark.parametrize("name", ["METADATA", "direct_url.json"])
def test_metadata_that_never_ends_is_not_read(site, name):
    path = site / INFO / name
    path.unlink(missing_ok=True)
    with path.open("wb") as stream:
        stream.truncate(5 * 2**20)
    assert "too large" in refused(site).message


def test_metadata_that_is_a_pipe_is_not_opened(site):
    (site / INFO / "METADATA").unlink()
    os.mkfifo(site / INFO / "METADATA")
    assert refused(site).path == str(site / INFO / "METADATA")


def test_metadata_that_is_missing(site):
    (site / INFO / "METADATA").unlink()
    assert refused(site).path == str(site / INFO / "METADATA")


def test_a_name_too_long_for_the_system(tmp_path):
    assert "cannot read" in refused(tmp_path / ("x" * 300)).message
