"""K/V rotation files: Hadamard matrices, reading and judging files, and the calibrated fit. Needs torch when used."""

from escha_oscar.rotations._torch import loading_warning
from escha_oscar.rotations.files import (
    RotationFile,
    RotationFileError,
    file_name,
    load_rotation_file,
    write_rotation_files,
)
from escha_oscar.rotations.hadamard import hadamard_matrix, largest_block
from escha_oscar.rotations.inspect import Finding, Inspection, Role, inspect_rotation

__all__ = [
    "Finding",
    "Inspection",
    "Role",
    "RotationFile",
    "RotationFileError",
    "file_name",
    "hadamard_matrix",
    "inspect_rotation",
    "largest_block",
    "load_rotation_file",
    "loading_warning",
    "write_rotation_files",
]
