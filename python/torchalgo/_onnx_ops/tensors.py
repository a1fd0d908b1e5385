# SPDX-License-Identifier: BSD-3-Clause
"""Reads the tensors of a file, also those whose data lie in other files of its folder.

The data are compared with the sizes before memory is allocated.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from torchalgo._onnx_ops.refusal import DamagedError, DataError, NotSupportedError, TooLargeError

# The numbers of TensorProto.DataType.
DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32,
    7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip
# The fields that hold the elements of a tensor without raw data. Half floats are stored as bits.
_FIELDS = {
    1: "float_data", 2: "int32_data", 3: "int32_data", 5: "int32_data", 6: "int32_data",
    7: "int64_data", 9: "int32_data", 10: "int32_data", 11: "double_data", 16: "int32_data",
}  # fmt: skip
_IS_BITS = (10, 16)
_EXTERNAL = 1
MOST_DIMS = 16
MOST_SIZE = 1 << 40


def dtype_of(number: int, what: str) -> torch.dtype:
    """Returns the dtype with this number of TensorProto.DataType."""
    if number not in DTYPES:
        raise NotSupportedError(
            f"{what} has the data type {number}, expected one of {sorted(DTYPES)}"
        )
    return DTYPES[number]


class Tensors:
    """Reads the tensors of one model.

    Args:
        folder: the folder of the model. Data files outside of it are refused.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[tuple[Any, ...], torch.Tensor] = {}
        self._file_bytes: dict[str, int] = {}
        self._used_bytes = 0

    def read(self, proto: Any, what: str) -> torch.Tensor:
        """Returns a tensor of the file.

        Args:
            what: the text that names the tensor in an error.
        """
        dims = [int(size) for size in proto.dims]
        dtype = dtype_of(proto.data_type, what)
        if len(dims) > MOST_DIMS or any(not 0 <= size <= MOST_SIZE for size in dims):
            raise DamagedError(
                f"{what} has the sizes {dims[:MOST_DIMS]}, expected fewer or smaller"
            )
        if proto.HasField("segment"):
            raise NotSupportedError(f"{what} is a segment of a tensor")
        count = math.prod(dims)
        if proto.data_location == _EXTERNAL:
            return self._external(proto, count, dtype, dims, what)
        if proto.HasField("raw_data"):
            _check_length(len(proto.raw_data), count, dtype, what)
            return _from_bytes(bytearray(proto.raw_data), dtype, dims)
        values = getattr(proto, _FIELDS[proto.data_type])
        if len(values) != count:
            raise DataError(
                f"{what} has {len(values)} elements, expected {count} for its sizes {dims}"
            )
        return _from_values(values, proto.data_type, dims, what)

    def _external(
        self, proto: Any, count: int, dtype: torch.dtype, dims: list[int], what: str
    ) -> torch.Tensor:
        given = {entry.key: entry.value for entry in proto.external_data}
        if not all(isinstance(each, str) for pair in given.items() for each in pair):
            raise DamagedError(f"{what}: the place of its data is no text in UTF-8")
        location = given.get("location", "")
        offset = _number(given.get("offset", "0"), what)
        key = location, offset, dtype, tuple(dims)
        if key in self._read:
            return self._read[key]
        with _open_inside(self._folder, location, what) as file:
            size = os.fstat(file.fileno()).st_size
            length = _number(given.get("length", str(size - offset)), what)
            if offset + length > size:
                raise DataError(
                    f"{what} is at bytes {offset} to {offset + length} of {location}, which has"
                    f" {size} bytes"
                )
            _check_length(length, count, dtype, what)
            self._check_budget(location, size, length, what)
            file.seek(offset)
            data = bytearray(length)
            if file.readinto(data) != length:
                raise DataError(f"{what}: {location} became shorter while it was read")
        tensor = _from_bytes(data, dtype, dims)
        self._read[key] = tensor
        return tensor

    def _check_budget(self, location: str, size: int, length: int, what: str) -> None:
        """Refuses files that name the same bytes so often that they would fill the memory."""
        self._file_bytes[location] = size
        self._used_bytes += length
        if self._used_bytes > 2 * sum(self._file_bytes.values()):
            raise TooLargeError(f"{what}: the tensors have more bytes than the data files have")


def _open_inside(folder: Path, location: str, what: str) -> Any:
    """Opens a data file. Refuses paths that leave the folder, links, and what is no file."""
    path = PurePosixPath(location)
    is_inside = location and not path.is_absolute() and ".." not in path.parts
    if not is_inside or "\\" in location or "\0" in location:
        raise DataError(
            f"{what}: the data file {location!r} is refused, expected a path below the folder of"
            " the model"
        )
    at = folder
    try:
        for part in path.parts:
            at = at / part
            if stat.S_ISLNK(os.lstat(at).st_mode):
                raise DataError(f"{what}: {location!r} is refused, because {part} is a link")
        if not stat.S_ISREG(os.lstat(at).st_mode):
            raise DataError(f"{what}: {location!r} is no file")
        return os.fdopen(os.open(at, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb")
    except OSError as problem:
        raise DataError(
            f"{what}: the data file {location!r} cannot be read: {problem.strerror}"
        ) from None


def _number(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise DataError(f"{what}: {text[:40]!r} is not an offset or a length of its data")
    return int(text)


def _check_length(length: int, count: int, dtype: torch.dtype, what: str) -> None:
    if length != count * dtype.itemsize:
        raise DataError(
            f"{what} has {length} bytes of data, expected {count * dtype.itemsize} for its sizes"
        )


def _from_bytes(data: bytearray, dtype: torch.dtype, dims: list[int]) -> torch.Tensor:
    if not data:
        return torch.empty(dims, dtype=dtype)
    if dtype == torch.bool:  # a byte of a bool may be 0 or 1 only
        return (torch.frombuffer(data, dtype=torch.uint8) != 0).reshape(dims)
    return torch.frombuffer(data, dtype=dtype).reshape(dims)


def _from_values(values: Any, number: int, dims: list[int], what: str) -> torch.Tensor:
    dtype = DTYPES[number]
    if dtype.is_floating_point and number not in _IS_BITS:
        return torch.tensor(values, dtype=dtype).reshape(dims)
    wide = torch.tensor(values, dtype=torch.int64)
    if number in _IS_BITS:
        if wide.numel() and not (int(wide.min()) >= 0 and int(wide.max()) < 1 << 16):
            raise DamagedError(f"{what} has an element that is not a number of 16 bits")
        return wide.to(torch.uint16).view(dtype).reshape(dims)
    if dtype == torch.bool:
        return (wide != 0).reshape(dims)
    narrow = wide.to(dtype)
    if not torch.equal(narrow.to(torch.int64), wide):
        raise DamagedError(f"{what} has an element that does not fit {dtype}")
    return narrow.reshape(dims)
