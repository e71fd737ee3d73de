"""Compiles functions with Numba, and gives them unchecked access to memory.

In:   functions of numbers and arrays
Out:  the same, compiled to run without the interpreter's lock

- Compiled code is cached beside the module. If that folder is not writable, it is cached in the
  user's cache folder (or in `NUMBA_CACHE_DIR`). Without any of them each process compiles again.
  The cache is valid until one of the compiled modules changes.
- Compiled code allocates nothing: the caller passes the arrays to fill.
- Reads and writes in this module check no bounds: the caller has compared the position with the
  end.
"""

import functools
import hashlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])
Bytes = npt.NDArray[np.uint8]

_NAMES = ("numba_support", "protobuf_wire", "scan_items", "scan_metrics", "scan_records")
_MODULES = (
    "thermocline.ingest.otlp.part_count",
    "thermocline.ingest.prometheus.scan_request",
    *(f"thermocline.ingest.otlp.compiled.{name}" for name in _NAMES),
)


def compile_native(function: Function) -> Function:
    """Compile a function at its first call."""
    return _compile(function, is_inlined=False)


def inline_native(function: Function) -> Function:
    """Compile a function into each of its callers: for small functions and those run per point."""
    return _compile(function, is_inlined=True)


def _compile(function: Function, *, is_inlined: bool) -> Function:
    # Compiled code allocates nothing, so it needs no reference counts of arrays. Counting is atomic
    # and took more than half of the time of a scan.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
    options["forceinline"] = is_inlined
    try:
        made: Any = numba.njit(cache=True, **options)(function)
        made._cache._cache_file._source_stamp = _source_hash()  # noqa: SLF001
    except RuntimeError:  # no folder for the cache is writable
        made = numba.njit(**options)(function)
    return cast("Function", made)


@functools.cache
def _source_hash() -> str:
    """Return a hash of the source of all compiled modules.

    Numba uses a cached function if its file has the same modification time. That misses changes in
    functions that it calls, and files of two installations may have the same time.
    """
    hashed = hashlib.blake2b(digest_size=16)
    for name in _MODULES:
        found = importlib.util.find_spec(name)
        loader: Any = found.loader if found else None
        hashed.update((loader.get_source(name) or "").encode() if loader else b"")
    return hashed.hexdigest()


def _read_byte(_typing: Any, data: Any, _at: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        found = builder.load(_element_address(context, builder, signature.args, values))
        return builder.zext(found, ir.IntType(64))

    return types.int64(data, types.intp), emit


def _read_fixed64(_typing: Any, data: Any, _at: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address = _element_address(context, builder, signature.args, values)
        return builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(data, types.intp), emit


def _write_fixed64(_typing: Any, data: Any, _at: Any, _value: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address = _element_address(context, builder, signature.args, values)
        address = builder.bitcast(address, ir.IntType(64).as_pointer())
        builder.store(values[2], address, align=1)
        return context.get_dummy_value()

    return types.void(data, types.intp, types.uint64), emit


def _element_address(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    array = context.make_array(kinds[0])(context, builder, values[0])
    return builder.gep(array.data, [values[1]])


read_byte: Callable[[Bytes, int], int] = cast("Any", intrinsic(_read_byte))
read_fixed64: Callable[[Bytes, int], np.uint64] = cast("Any", intrinsic(_read_fixed64))
write_fixed64: Callable[[Bytes, int, np.uint64], None] = cast("Any", intrinsic(_write_fixed64))
