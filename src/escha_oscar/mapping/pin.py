"""The commit of sglang PR #32129 that the table was written for."""

from escha_oscar.model import Pin

PIN = Pin(
    repository="https://github.com/sgl-project/sglang.git",
    pull_request=32129,
    commit="4b28b26bb4cca06984a97bacba25eb43cfd44145",
    prefix="python",
)
