"""Data only: the pin, the file table and the wheels that are known."""

from escha_oscar.mapping.pin import PIN
from escha_oscar.mapping.table import ROWS, copies, merges, row_for
from escha_oscar.mapping.wheels import DECODE_PATHS, FAMILIES, Family

__all__ = ["DECODE_PATHS", "FAMILIES", "PIN", "ROWS", "Family", "copies", "merges", "row_for"]
