from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from escha_oscar.errors import UsageError
from escha_oscar.rotations import (
    RotationFileError,
    file_name,
    files,
    hadamard_matrix,
    load_rotation_file,
    write_rotation_files,
)


def layers(count: int = 4, dim: int = 8) -> dict[int, torch.Tensor]:
    return dict.fromkeys(range(count), hadamard_matrix(dim))


def saved(folder: Path, state: object) -> Path:
    path = folder / "k_file.pt"
    torch.save(state, path)
    return path


def refuse(path: Path) -> RotationFileError:
    with pytest.raises(RotationFileError) as caught:
        load_rotation_file(path)
    assert caught.value.path == str(path)
    return caught.value


def test_written_file_is_what_a_server_loads(tmp_path: Path) -> None:
    path = tmp_path / "new" / file_name("k", "hadamard", 8)
    write_rotation_files({path: (layers(), "hadamard")})
    state = torch.load(path, weights_only=True)
    assert path.name == "k_rotation_hadamard_hd8.pt"
    assert list(state["layers"]) == [0, 1, 2, 3]
    assert all(torch.equal(entry["rotation"], hadamard_matrix(8)) for entry in state["layers"].values())
    assert (state["format_version"], state["objective"]) == (1, "hadamard")


def test_layers_do_not_share_storage(tmp_path: Path) -> None:
    path = tmp_path / "k.pt"
    write_rotation_files({path: (layers(2), "hadamard")})
    loaded = load_rotation_file(path).layers
    loaded[0].zero_()
    assert torch.equal(loaded[1], hadamard_matrix(8))


def test_bytes_depend_on_content_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "a.pt", tmp_path / "sub" / "another name.pt"
    write_rotation_files({first: (layers(), "hadamard")})
    write_rotation_files({second: (layers(), "hadamard")})
    assert first.read_bytes() == second.read_bytes()
    write_rotation_files({first: (layers(), "hadamard")})
    assert first.read_bytes() == second.read_bytes()


def test_per_head_files_say_so(tmp_path: Path) -> None:
    path = tmp_path / "k.pt"
    write_rotation_files({path: ({3: hadamard_matrix(8).expand(2, 8, 8)}, "calibrated")})
    assert torch.load(path, weights_only=True)["format_version"] == 2
    assert load_rotation_file(path).layers[3].shape == (2, 8, 8)


def test_a_failure_in_the_second_file_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def full_disk(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    pair = {tmp_path / "k.pt": (layers(), "hadamard"), tmp_path / "v.pt": (layers(), "hadamard")}
    with pytest.raises(UsageError, match="cannot be written: No space left on device") as caught:
        write_rotation_files(pair)
    assert caught.value.path == str(tmp_path / "v.pt")
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_survives_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.pt"
    path.write_bytes(b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_rotation_files({path: (layers(), "hadamard")})
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("k.pt", b"old")]


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written") as caught:
        write_rotation_files({tmp_path / "file" / "k.pt": (layers(), "hadamard")})
    assert caught.value.path == str(tmp_path / "file" / "k.pt")


def test_a_folder_in_the_way_of_the_second_file_stops_the_first(tmp_path: Path) -> None:
    (tmp_path / "v.pt").mkdir()
    with pytest.raises(UsageError, match="is a directory"):
        write_rotation_files({tmp_path / name: (layers(), "hadamard") for name in ("k.pt", "v.pt")})
    assert [path.name for path in tmp_path.iterdir()] == ["v.pt"]


def test_too_much_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    with pytest.raises(UsageError, match="would be 1024 bytes"):
        write_rotation_files({tmp_path / "k.pt": (layers(), "hadamard")})
    assert list(tmp_path.iterdir()) == []


def test_string_keys_load_to_the_same_tensors_in_numeric_order(tmp_path: Path) -> None:
    entry = {"rotation": hadamard_matrix(8)}
    loaded = load_rotation_file(saved(tmp_path, {"layers": {"11": entry, "9": entry, "3": entry}}))
    assert list(loaded.layers) == [3, 9, 11]
    assert loaded.string_keys
    mixed = load_rotation_file(saved(tmp_path, {"layers": {"10": entry, 9: entry}}))
    assert list(mixed.layers) == [9, 10]
    plain = load_rotation_file(saved(tmp_path, {"layers": {10: entry, 9: entry}}))
    assert (list(plain.layers), plain.string_keys) == ([9, 10], False)


def test_a_layer_under_both_kinds_of_key_must_agree(tmp_path: Path) -> None:
    entry = {"rotation": hadamard_matrix(8)}
    assert list(load_rotation_file(saved(tmp_path, {"layers": {3: entry, "3": entry}})).layers) == [3]
    other = {"rotation": torch.eye(8)}
    assert "layer 3 is stored twice" in refuse(saved(tmp_path, {"layers": {3: entry, "3": other}})).message


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "an empty file"),
        (b"some text", "another kind of file"),
        (b"PK\x03\x04 and no more", "the beginning of an archive: it was cut off"),
        (b"PK\x05\x06" + bytes(18), "an archive that is damaged, or that holds other objects than tensors"),
    ],
    ids=["empty", "text", "cut off", "foreign"],
)
def test_a_refusal_says_what_the_file_is_and_quotes_no_advice_of_torch(data: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    error = refuse(path)
    assert error.found == kind
    assert "weights_only" not in str([error.message, error.found, error.sought, error.hint])


@pytest.mark.parametrize("version", [None, 1, 2, "identity-v1"])
def test_the_format_version_decides_nothing(tmp_path: Path, version: object) -> None:
    state = {"layers": {0: {"rotation": torch.eye(8)}}, "format_version": version}
    assert load_rotation_file(saved(tmp_path, state)).layers[0].shape == (8, 8)


def test_a_file_saved_from_a_gpu_loads_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.serialization, "location_tag", lambda _: "cuda:1")
    path = saved(tmp_path, {"layers": {0: {"rotation": hadamard_matrix(8)}}})
    assert load_rotation_file(path).layers[0].device.type == "cpu"


class Canary:
    """Unpickling this would create a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.target,)


def test_a_pickled_class_is_refused_and_never_run(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    for path in (saved(tmp_path, {"layers": {0: Canary(target)}}), tmp_path / "raw.pt"):
        if path.name == "raw.pt":
            path.write_bytes(pickle.dumps(Canary(target)))
        assert refuse(path).message == "is no rotation file"
    assert not target.exists()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        pytest.param([1], "no rotation file", id="list"),
        pytest.param({"k": 1}, "no rotation file", id="no layers"),
        pytest.param({"layers": {}}, "no rotation file", id="no layer"),
        pytest.param({"layers": {"a": {"rotation": torch.eye(4)}}}, "layer id 'a'", id="word key"),
        pytest.param({"layers": {-1: {"rotation": torch.eye(4)}}}, "layer id -1", id="negative"),
        pytest.param({"layers": {True: {"rotation": torch.eye(4)}}}, "layer id True", id="boolean"),
        pytest.param({"layers": {0: torch.eye(4)}}, "layer 0 has no rotation tensor", id="bare tensor"),
        pytest.param({"layers": {0: {"rotation": torch.ones(4)}}}, "layer 0 is no rotation", id="vector"),
        pytest.param({"layers": {0: {"rotation": torch.ones(4, 8)}}}, "layer 0 is no rotation", id="not square"),
        pytest.param({"layers": {0: {"rotation": torch.ones(4, 4).int()}}}, "layer 0 is no rotation", id="integers"),
        pytest.param({"layers": {0: {"rotation": torch.eye(4).to(torch.float8_e4m3fn)}}}, "is no rotation", id="fp8"),
        pytest.param({"layers": {0: {"rotation": torch.eye(4, device="meta")}}}, "is no rotation", id="meta"),
        pytest.param({"layers": {0: {"rotation": torch.eye(4).to_sparse()}}}, "is no rotation", id="sparse"),
        pytest.param({"layers": {0: {"rotation": torch.eye(4) / 0}}}, "layer 0 is empty or not finite", id="NaN"),
        pytest.param({"layers": {0: {"rotation": torch.ones(0, 0)}}}, "layer 0 is empty or not finite", id="empty"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, state: object, message: str) -> None:
    assert message in refuse(saved(tmp_path, state)).message


@pytest.mark.parametrize("damage", ["empty", "truncated", "text", "foreign zip"])
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    path = saved(tmp_path, {"layers": {0: {"rotation": torch.eye(64)}}})
    if damage == "foreign zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", "b")
    else:
        path.write_bytes({"empty": b"", "truncated": path.read_bytes()[:5000], "text": b"hello"}[damage])
    assert refuse(path).message == "is no rotation file"


def test_paths_that_are_no_files_are_usage_errors(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.pt", Path("/dev/null")):
        with pytest.raises(UsageError):
            load_rotation_file(path)
