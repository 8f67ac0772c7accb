import random
import stat
import zipfile

import pytest

from escha_oscar.errors import TargetError
from escha_oscar.target import record
from escha_oscar.target.unpack import unpack_wheel
from tests.support.wheels import SKELETON, make_wheel, wheel_content

INFO = "escha-1.0.2+qwen3moe.dist-info"


def packed(tmp_path, members, name="w.whl"):
    """Write (ZipInfo or name, data) pairs as they are, however hostile."""
    wheel = tmp_path / name
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, data in members:
            archive.writestr(member, data)
    return wheel


def good():
    return list(wheel_content(SKELETON, "escha", "1.0.2+qwen3moe").items())


def test_a_wheel_lands_with_its_record(tmp_path):
    wheel = make_wheel(tmp_path, {**SKELETON, "sglang/a.py": "x = 1\n"})
    info = unpack_wheel(wheel, tmp_path / "site")
    assert info == tmp_path / "site" / INFO
    assert (tmp_path / "site/sglang/a.py").read_text() == "x = 1\n"
    rows = {e.path: e.digest for e in record.parse((info / "RECORD").read_bytes())}
    assert rows["sglang/a.py"] == record.digest(b"x = 1\n")
    assert stat.S_IMODE((tmp_path / "site/sglang/a.py").stat().st_mode) == 0o644


def test_data_schemes_land_where_an_installer_puts_them(tmp_path):
    files = {**SKELETON, "escha-1.data/purelib/sglang/p.py": "p\n", "escha-1.data/scripts/tool": "#!python\n"}
    info = unpack_wheel(make_wheel(tmp_path, files), tmp_path / "site")
    assert (tmp_path / "site/sglang/p.py").read_text() == "p\n"
    paths = {e.path for e in record.parse((info / "RECORD").read_bytes())}
    assert "sglang/p.py" in paths
    assert not any(".data/" in path for path in paths)
    assert not list((tmp_path / "site").glob("*.data"))


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py", "sglang/../../evil.py", "a\\b.py", "c:evil.py"])
def test_a_member_that_leaves_the_folder_is_refused(tmp_path, name):
    info = zipfile.ZipInfo(name)
    info.filename = name
    with pytest.raises(TargetError):
        unpack_wheel(packed(tmp_path, [*good(), (info, b"evil")]), tmp_path / "site")
    assert not (tmp_path / "site").exists()
    assert not (tmp_path / "evil.py").exists()


def test_a_data_member_that_leaves_the_folder_is_refused(tmp_path):
    members = [*good(), ("escha-1.data/purelib/../../../evil.py", b"evil")]
    with pytest.raises(TargetError):
        unpack_wheel(packed(tmp_path, members), tmp_path / "site")
    assert not (tmp_path / "evil.py").exists()


def test_a_link_is_refused(tmp_path):
    link = zipfile.ZipInfo("sglang/link.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(TargetError, match="link") as caught:
        unpack_wheel(packed(tmp_path, [*good(), (link, b"/etc/passwd")]), tmp_path / "site")
    assert "link.py" in caught.value.found


def test_a_name_that_differs_only_in_case_is_refused(tmp_path):
    with pytest.raises(TargetError, match="twice"):
        unpack_wheel(packed(tmp_path, [*good(), ("sglang/SRT/__init__.py", b"")]), tmp_path / "site")


def test_content_that_differs_from_the_record_is_refused(tmp_path):
    members = [(name, b"changed" if name == "sglang/srt/environ.py" else data) for name, data in good()]
    with pytest.raises(TargetError, match="differs from its RECORD") as caught:
        unpack_wheel(packed(tmp_path, members), tmp_path / "site")
    assert caught.value.path.endswith("sglang/srt/environ.py")


def test_a_flipped_byte_in_the_archive_is_refused(tmp_path):
    wheel = make_wheel(tmp_path, {**SKELETON, "sglang/big.py": "value = 1\n" * 500})
    data = bytearray(wheel.read_bytes())
    at = data.index(b"sglang/big.py") + len(b"sglang/big.py") + 4
    data[at] ^= 0xFF
    wheel.write_bytes(bytes(data))
    with pytest.raises(TargetError):
        unpack_wheel(wheel, tmp_path / "site")


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + b"\0" * 18])
def test_a_file_that_is_no_wheel_is_refused(tmp_path, content):
    wheel = tmp_path / "w.whl"
    wheel.write_bytes(content)
    with pytest.raises(TargetError, match="wheel"):
        unpack_wheel(wheel, tmp_path / "site")


def test_a_missing_wheel_is_named(tmp_path):
    with pytest.raises(TargetError) as caught:
        unpack_wheel(tmp_path / "absent.whl", tmp_path / "site")
    assert caught.value.path == str(tmp_path / "absent.whl")


def test_an_existing_file_is_not_overwritten(tmp_path):
    (tmp_path / "site/sglang").mkdir(parents=True)
    (tmp_path / "site/sglang/__init__.py").write_text("mine\n")
    with pytest.raises(TargetError, match="exists"):
        unpack_wheel(make_wheel(tmp_path, SKELETON), tmp_path / "site")
    assert (tmp_path / "site/sglang/__init__.py").read_text() == "mine\n"


def test_a_file_that_the_record_does_not_list_is_refused(tmp_path):
    with pytest.raises(TargetError, match="does not list") as caught:
        unpack_wheel(packed(tmp_path, [*good(), ("sitecustomize.py", b"evil")]), tmp_path / "site")
    assert "sitecustomize.py" in caught.value.found
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_one_kind_of_error(tmp_path, seed):
    chance = random.Random(seed)
    sound = make_wheel(tmp_path, {**SKELETON, "sglang/a.py": "x = 1\n" * 50}).read_bytes()
    for number in range(60):
        data = bytearray(sound)
        data[chance.randrange(len(data))] = chance.randrange(256)
        wheel = tmp_path / f"{number}.whl"
        wheel.write_bytes(bytes(data[: chance.randrange(len(data))] if number % 8 == 0 else data))
        site = tmp_path / f"site{number}"
        try:
            unpack_wheel(wheel, site)
        except TargetError:
            continue
        assert (site / "sglang/a.py").read_text() == "x = 1\n" * 50
