# SPDX-License-Identifier: BSD-3-Clause
"""torch's own operations on the GPU in software (../gpu.h), computed on the CPU.

A process of tests has this folder in PYTHONPATH. `import torch` then calls install(), because of
the entry point beside this file. The memory of the GPU is that of the host, so an operation runs on
CPU tensors that share the memory of its arguments. A stream that captures a graph keeps the
operation. It then computes nothing, and its results hold NaN until the graph is launched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# These only make tensors, or give others a new shape. torch's own kernels do this right.
KEPT = {
    "empty.memory_format", "empty_strided", "as_strided", "view", "view.dtype", "_reshape_alias",
    "resize_", "set_", "set_.source_Tensor", "set_.source_Storage",
    "set_.source_Storage_storage_offset", "record_stream", "is_set_to", "is_pinned", "_pin_memory",
    "unfold", "view_as_real", "view_as_complex", "alias",
}  # fmt: skip
ADDED = ("convolution_backward", "copy_")  # not registered for CUDA, but to be replaced too


def cudnn_convolution(
    x: Tensor, w: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *_: bool
) -> Tensor:
    # Not torch.convolution: torchalgo.enable() may have replaced it.
    geometry = (padding, stride, dilation, groups)
    y: Tensor = torch.ops.aten.mkldnn_convolution(x.float(), w.float(), None, *geometry)
    return y.to(x.dtype)


def cudnn_convolution_transpose(
    x: Tensor, w: Tensor, padding: Any, output_padding: Any, stride: Any, dilation: Any,
    groups: int, *_: bool,
) -> Tensor:  # fmt: skip
    geometry = (stride, padding, output_padding, dilation)
    pairs = zip(x.float().chunk(groups, 1), w.float().chunk(groups, 0), strict=True)
    parts = [
        torch.ops.aten.slow_conv_transpose2d(x, w, w.shape[2:], None, *geometry) for x, w in pairs
    ]
    return torch.cat(parts, 1).to(x.dtype)


def conv_depthwise2d(
    x: Tensor, w: Tensor, _: Any, bias: Tensor | None, stride: Any, padding: Any, dilation: Any
) -> Tensor:
    y = cudnn_convolution(x, w, padding, stride, dilation, x.size(1))
    return y if bias is None else y + bias.view(1, -1, 1, 1)


def cudnn_batch_norm(*args: Any) -> tuple[Tensor, ...]:
    return *torch.native_batch_norm(*args), torch.empty(0, dtype=torch.uint8)


def cudnn_batch_norm_backward(
    x: Tensor, dy: Tensor, weight: Tensor, mean: Any, var: Any, saved_mean: Any, saved_var: Any,
    eps: float, _: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    saved = (weight, mean, var, saved_mean, saved_var)
    result: tuple[Tensor, ...] = torch.ops.aten.native_batch_norm_backward(
        dy, x, *saved, True, eps, [True] * 3
    )
    return result


def batch_norm_elemt(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor, _: float
) -> Tensor:
    return torch.batch_norm(x, weight, bias, mean, inverse**-2, False, 0.0, 0.0, False)


def batch_norm_backward_reduce(
    dy: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, *wanted: bool
) -> tuple[Tensor, ...]:
    total = dy.sum((0, 2, 3))
    product = (dy * (x - mean.view(1, -1, 1, 1))).sum((0, 2, 3))
    is_input, is_weight, is_bias = wanted
    if weight is None and (is_weight or is_bias):
        raise RuntimeError("tensor does not have a device")  # torch makes them like the weight
    none = torch.empty(0)
    return (
        total if is_input else none, product if is_input else none,
        product * inverse if is_weight else none, total.clone() if is_bias else none,
    )  # fmt: skip


def batch_norm_backward_elemt(
    dy: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor, total: Tensor,
    product: Tensor, count: Tensor,
) -> Tensor:  # fmt: skip
    mean, inverse, weight, total, product = (
        each.view(1, -1, 1, 1) for each in (mean, inverse, weight, total, product)
    )
    rest = dy - (total + (x - mean) * inverse**2 * product) / count.sum()
    return rest * inverse * weight


# The CPU has no such operations.
OWN = {
    "cudnn_convolution": cudnn_convolution,
    "cudnn_convolution_transpose": cudnn_convolution_transpose,
    "_conv_depthwise2d": conv_depthwise2d,
    "cudnn_batch_norm": cudnn_batch_norm,
    "cudnn_batch_norm_backward": cudnn_batch_norm_backward,
    "batch_norm_elemt": batch_norm_elemt,
    "batch_norm_backward_reduce": batch_norm_backward_reduce,
    "batch_norm_backward_elemt": batch_norm_backward_elemt,
}
Enqueued = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_kept_alive: list[Any] = []  # callbacks of graphs, kept until the process ends


def on_host(tensor: Tensor) -> Tensor:
    """Returns a CPU tensor with the memory, sizes and strides of a CUDA tensor."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    found = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    host = torch.empty(0, dtype=tensor.dtype)
    return host.set_(found, tensor.storage_offset(), tensor.size(), tensor.stride())


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(each, change) for each in value)
    return change(value)


def generator_for(generator: torch.Generator) -> torch.Generator:
    """Returns a generator of the CPU for the next numbers of one of the GPU."""
    offset = generator.get_offset()
    generator.set_offset(offset + 4)
    return torch.Generator().manual_seed(generator.initial_seed() + offset)


class Call:
    """One call of an operation with CUDA tensors, and with CPU tensors in their place."""

    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.op, self.pairs = op, []
        self.args = mapped(args, self._host_of)
        self.kwargs = {key: mapped(value, self._host_of) for key, value in kwargs.items()}

    def _host_of(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_cuda:
            host = on_host(value)
            self.pairs.append((value, host))
            return host
        if isinstance(value, torch.Generator) and value.device.type == "cuda":
            return generator_for(value)
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return value

    def run(self) -> Any:
        """Runs the operation. An argument that it gives another size gets memory for that."""
        results = self.op(*self.args, **self.kwargs)
        for gpu, host in self.pairs:
            if gpu.size() != host.size():
                resize_like(gpu, host)
                copy_bytes(host, gpu)
        return results

    def run_on_copies(self) -> Any:
        """Runs the operation without writing its arguments."""
        copies = {id(host): host.clone() for _, host in self.pairs}
        hosts = {id(copies[id(host)]): host for _, host in self.pairs}
        swap = lambda v: copies.get(id(v), v)  # noqa: E731
        results = self.op(
            *mapped(self.args, swap), **{k: mapped(v, swap) for k, v in self.kwargs.items()}
        )
        for gpu, host in self.pairs:
            if gpu.size() != copies[id(host)].size():
                resize_like(gpu, copies[id(host)])
                host.set_(on_host(gpu))
        return mapped(results, lambda v: hosts.get(id(v), v))

    def on_gpu(self, result: Any) -> Any:
        """Returns the CUDA tensor for a result: an argument, a view of one, or a new tensor."""
        if not isinstance(result, Tensor):
            return result
        for gpu, host in self.pairs:
            if result is host:
                return gpu
        for gpu, host in self.pairs:
            if result.numel() and shares_memory(result, host):
                return gpu.as_strided(result.size(), result.stride(), result.storage_offset())
        return torch.empty_strided(
            result.size(), result.stride(), dtype=result.dtype, device=self.device
        )

    @property
    def device(self) -> torch.device:
        """The GPU of the arguments; the current one if none is a tensor."""
        if self.pairs:
            return self.pairs[0][0].device
        return torch.device("cuda", torch.cuda.current_device())


def shares_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def resize_like(gpu: Tensor, host: Tensor) -> None:
    gpu.resize_(host.size())
    gpu.as_strided_(host.size(), host.stride())


def copy_bytes(source: Tensor, target: Tensor) -> None:
    size = source.untyped_storage().nbytes() - source.storage_offset() * source.element_size()
    room = target.untyped_storage().nbytes() - target.storage_offset() * target.element_size()
    size = min(size, room)
    if size:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), size)


def flat(value: Any) -> list[Any]:
    return (
        [x for each in value for x in flat(each)] if isinstance(value, (list, tuple)) else [value]
    )


def copy_new(results: Any, targets: Any) -> None:
    """Copies the results that do not lie in the memory of the GPU already."""
    for result, target in zip(flat(results), flat(targets), strict=True):
        if isinstance(result, Tensor) and result.data_ptr() != target.data_ptr():
            copy_bytes(result, target)


class Gpu:
    """The preloaded libraries."""

    def __init__(self) -> None:
        self.runtime = ctypes.CDLL("libcudart.so.13")
        self.runtime.software_gpu_enqueue_call.argtypes = [
            ctypes.c_void_p, Enqueued, ctypes.c_void_p,
        ]  # fmt: skip
        self.runtime.cudaStreamIsCapturing.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def is_capturing(self, stream: int) -> bool:
        status = ctypes.c_int()
        self.runtime.cudaStreamIsCapturing(stream, ctypes.byref(status))
        return status.value != 0

    def kernel(self, op: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `op` for CUDA tensors."""
        return lambda *args, **kwargs: self.call(op, args, kwargs)

    def call(self, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Call(op, args, kwargs)
        stream = torch._C._cuda_getCurrentRawStream(call.device.index)
        if not self.is_capturing(stream):
            results = call.run()
            moved = mapped(results, call.on_gpu)
            copy_new(results, moved)
            return moved
        moved = mapped(call.run_on_copies(), call.on_gpu)
        targets = [on_host(m) if isinstance(m, Tensor) else m for m in flat(moved)]
        host_args, host_kwargs = call.args, call.kwargs  # a graph keeps no CUDA tensor alive

        def replay(_: Any) -> None:
            for result, target in zip(flat(op(*host_args, **host_kwargs)), targets, strict=True):
                if isinstance(result, Tensor) and result.data_ptr() != target.data_ptr():
                    target.copy_(result)

        work = Enqueued(replay)
        _kept_alive.append(work)
        with torch.cuda.device(call.device):
            self.runtime.software_gpu_enqueue_call(stream, work, None)
        return moved


def install() -> None:
    """Registers the operations. Does nothing in a process without the preloaded libraries."""
    try:
        gpu = Gpu()
    except (OSError, AttributeError):
        return
    torch._C._jit_set_texpr_fuser_enabled(False)  # it would compile kernels with NVRTC
    library = torch.library.Library("aten", "IMPL")
    _kept_alive.append(library)
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    wanted = {name.removeprefix("aten::") for name in names if name.startswith("aten::")} - KEPT
    for name in sorted(wanted | set(ADDED)):
        library.impl(name, gpu.kernel(operation(name)), "CUDA", allow_override=True)


def operation(name: str) -> Callable[..., Any]:
    """Returns what computes the operation of torch's schema `name` on CPU tensors."""
    if name in OWN:
        return OWN[name]
    packet_name, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, packet_name)
    op = getattr(packet, overload or "default")
    wants_tensor = [str(argument.type) == "Tensor" for argument in op._schema.arguments]

    def compute(*args: Any, **kwargs: Any) -> Any:
        # A number in place of a tensor arrives here as a number: another overload takes it.
        pairs = zip(args, wants_tensor, strict=False)
        has_number = any(wanted and isinstance(value, (int, float)) for value, wanted in pairs)
        return (packet if has_number else op)(*args, **kwargs)

    return compute
