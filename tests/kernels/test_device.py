"""The driver's version, asked of a driver that stands in for the real one."""

import ctypes

import pytest

from escha_oscar.kernels import _device


class Driver:
    def __init__(self, version, status=0):
        def query(into):
            into._obj.value = version
            return status

        self.cuDriverGetVersion = query


@pytest.mark.parametrize(
    ("driver", "version"), [(Driver(12080), 12080), (Driver(12080, status=1), 0), (object(), 0), (OSError(), 0)]
)
def test_driver_version(monkeypatch, driver, version):
    def load(name):
        assert name == "libcuda.so.1"
        if isinstance(driver, OSError):
            raise driver
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert _device.driver_version.__wrapped__() == version
