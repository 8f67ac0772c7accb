import pytest

from escha_oscar.errors import ExitCode, UsageError
from escha_oscar.mapping import PIN
from escha_oscar.source._remote import parse_remote


def test_the_pinned_repository_goes_over_https_only():
    remote = parse_remote(PIN.repository)
    assert (remote.location, remote.protocol, remote.is_local) == (PIN.repository, "https", False)
    assert remote.fetch_args == ("--", PIN.repository)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x.git", "http://localhost/x.git", "http://[::1]/x.git"])
def test_plain_http_is_for_this_machine(url):
    assert parse_remote(url).protocol == "http"


@pytest.mark.parametrize(
    "repository",
    [
        "",
        "--upload-pack=touch x",
        "-x",
        "ext::sh -c touch% x",
        "ext://x",
        "http://example.com/x.git",
        "http://localhost.example.com/x.git",
        "http://127.0.0.1@example.com/x.git",
        "git://example.com/x.git",
        "ssh://example.com/x.git",
        "git@example.com:x.git",
        "ftp://example.com/x",
        "file://elsewhere/x.git",
        "https:///x.git",
        "https://example.com/\nx",
        "\x1b[31mx",
        "/no/such/place",
        "https://[broken/x",
        "x" * 5000,
    ],
)
def test_everything_else_is_refused(repository):
    with pytest.raises(UsageError) as caught:
        parse_remote(repository)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "https" in caught.value.sought


def test_a_file_that_is_no_bundle_is_refused(tmp_path):
    (tmp_path / "x").write_text("# v1 git bundle\n")
    with pytest.raises(UsageError, match="bundle"):
        parse_remote(str(tmp_path / "x"))


def test_credentials_are_not_shown_and_do_not_change_the_place():
    secret, plain = (parse_remote(f"https://{user}example.com/a.git?t=1") for user in ("me:secret@", ""))
    assert secret.display == "https://example.com/a.git"
    assert secret.key == plain.key


def test_keys_tell_repositories_apart_and_are_plain_names():
    keys = {parse_remote(f"https://example.com/{path}").key for path in ("a/x.git", "b/x.git", "..", "x%2f..", "a b")}
    assert len(keys) == 5
    assert not any(set(key) & set("/\\ ") or key.startswith(".") for key in keys)


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "a")
    with pytest.raises(UsageError):
        parse_remote(str(tmp_path / "a"))
