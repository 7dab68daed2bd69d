"""A pretended GPU: tensors that claim to lie on cuda:0 over memory of the CPU, for tests without a device.

    with PretendedGpu() as gpu:
        with gpu.section("step"):
            ...
    gpu.mixed, gpu.launches["step"], gpu.waits["step"], gpu.peak_bytes, gpu.captures

Recorded, each with the line of kvbench that caused it: operations on tensors of both devices, which fail on a GPU;
sums of floats that torch lists as not deterministic there (`unordered`); launched operations of torch and launched
kernels of ours; waits of the host. The host waits where it reads numbers of
the device, where a shape depends on them, where it copies memory that is not pinned without `non_blocking`, and where
it synchronises: with an event, unless a wait since has been for that too.
`torch.cuda.CUDAGraph` is pretended too: what is launched during a capture is launched again, on the same memory, by a
replay, and a wait during a capture is an error.

The kernels of `kvbench.extras.triton` run in Triton's interpreter, on the memory behind their arguments.
"""

import contextlib
import sys
import time
import types
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from tests.repository import ROOT

GPU = torch.device("cuda", 0)
PACKAGE = f"{ROOT / 'kvbench'}/"
UNLAUNCHED = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_", "record_stream"),
        *("detach", "alias", "lift", "lift_fresh", "view", "_unsafe_view", "_reshape_alias"),
        *("sym_size", "sym_stride", "sym_numel"),
    )
)
"""Operations that allocate or describe memory; those whose result is a view launch nothing either."""
WAITING = frozenset(
    (
        *("_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "is_nonzero", "histc"),
        *("_unique2", "unique_dim", "unique_consecutive"),
    )
)
"""Operations whose result the host has to know before it goes on."""
INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
COPIES = frozenset(("_to_copy", "copy_", "_copy_from"))
NO_CUDA = ("not linked with support for cuda", "driver version is insufficient")
"""What a torch built for the CPU says of a device it has not, and one built for CUDA on a machine without a driver."""
KERNELS = {
    "column_sums": ("_column_sums",),
    "ragged_decode": ("_over_splits", "_merge"),
    "row_sums": ("_row_sums",),
    "tail": ("_append", "_with_tail"),
    "slots": ("_append_pair", "_evict", "_reorder", "_turned"),
    "pooled": ("_pooled",),
    "norms": ("_weighed", "_leverages", "_cur"),
    "caote": ("_caote",),
    "cosines": ("_key_diff", "_newest_alike", "_redundancy", "_rkv"),
    "lagkv": ("_deviations", "_lag_scores"),
    "triattention": ("_triattention",),
}
"""Our kernels by module."""


class GpuTensor(torch.Tensor):
    """A tensor that claims to lie on the GPU; `held` is the memory behind it."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "GpuTensor":
        tensor = torch.Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=GPU,
        )
        tensor.held = held
        return tensor

    def __repr__(self, **_: Any) -> str:
        return f"gpu({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert PretendedGpu.active is not None, f"{func} outside the pretended GPU"
        return PretendedGpu.active.call(func, args, kwargs or {})


class _Dispatch(TorchDispatchMode):
    def __init__(self, gpu: "PretendedGpu") -> None:
        super().__init__()
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE  # otherwise torch would initialise CUDA
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._gpu.call(func, args, kwargs or {})


class _Function(TorchFunctionMode):
    def __init__(self, gpu: "PretendedGpu") -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._gpu.function(func, args, dict(kwargs or {}))


class PretendedGpu:
    """Pretends a GPU of `total` bytes while it is entered.

    interpret: whether our kernels compute; otherwise their results are zeros.
    """

    active: ClassVar["PretendedGpu | None"] = None

    def __init__(self, total: int = 80 << 30, interpret: bool = True) -> None:
        self.total, self.interpret = total, interpret
        self.mixed: Counter[str] = Counter()
        self.unordered: Counter[str] = Counter()
        self.waits: dict[str, Counter[str]] = defaultdict(Counter)
        self.launches: dict[str, Counter[str]] = defaultdict(Counter)
        self.live_bytes = self.peak_bytes = self.captures = 0
        self.captured_on: list[Any] = []
        self._name = "start"
        self._references: Counter[int] = Counter()
        self._sizes: dict[int, int] = {}
        self._dispatch, self._stack = _Dispatch(self), contextlib.ExitStack()
        self._captured: list[Callable[[], None]] | None = None
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Count under this name."""
        before, self._name = self._name, name
        try:
            yield
        finally:
            self._name = before

    def launched(self, section: str) -> int:
        """Operations and kernels launched in a section."""
        return self.launches[section].total()

    def waited(self, section: str) -> int:
        """Waits of the host in a section."""
        return self.waits[section].total()

    @property
    def all_waits(self) -> int:
        """Waits of the host in all sections."""
        return sum(waits.total() for waits in self.waits.values())

    def wait(self, what: str) -> None:
        """Count a wait of the host. Raises RuntimeError during a capture, as CUDA does."""
        if self._captured is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what} at {_caller()}")
        self.waits[self._name][f"{what} at {_caller()}"] += 1

    def _launch(self, name: str) -> None:
        self.launches[self._name][f"{name} at {_caller()}"] += 1

    def _wrap(self, held: torch.Tensor) -> GpuTensor:
        storage = held.untyped_storage()
        key = storage._cdata
        if not self._references[key]:
            if self.live_bytes + storage.nbytes() > self.total:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {storage.nbytes()} bytes.")
            self._sizes[key] = storage.nbytes()
            self.live_bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self._references[key] += 1
        tensor = GpuTensor(held)
        weakref.finalize(tensor, self._release, key)
        return tensor

    def _release(self, key: int) -> None:
        self._references[key] -= 1
        if not self._references[key]:
            del self._references[key]
            self.live_bytes -= self._sizes.pop(key)

    def _wrapped(self, result: Any) -> Any:
        return tree_map(lambda part: self._wrap(part) if isinstance(part, torch.Tensor) else part, result)

    def _run(self, work: Callable[[], Any], written: Sequence[torch.Tensor] = ()) -> Any:
        """Run an operation that was launched; in a capture add it to the graph, after which nothing is `written`."""
        if self._captured is not None:
            self._before += [(tensor, tensor.clone()) for tensor in written]
        result = work()
        if self._captured is not None:
            outputs = [part for part in tree_flatten(result)[0] if isinstance(part, torch.Tensor)]

            def again() -> None:
                for output, fresh in zip(outputs, tree_flatten(work())[0], strict=False):
                    if output.data_ptr() != fresh.data_ptr():
                        output.copy_(fresh)

            self._captured.append(again)
        return result

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation of aten on the memory behind its tensors, and record what it would do on a GPU."""
        name = func._schema.name.removeprefix("aten::")
        flat, spec = tree_flatten((args, kwargs))
        tensors = [part for part in flat if isinstance(part, torch.Tensor)]
        on_cpu = [part for part in tensors if not isinstance(part, GpuTensor)]
        on_gpu = len(tensors) - len(on_cpu)
        device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        if not on_gpu and (device is None or device.type != "cuda"):
            return func(*args, **kwargs)
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
        if composite and name != "is_nonzero":
            with self._dispatch:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        self._record_mix(name, args, on_gpu, on_cpu)
        if name in ("cumsum", "cumsum_") and args[0].is_floating_point():
            self.unordered[f"{name} at {_caller()}"] += 1
        self._record_waits(name, args, kwargs, device, on_gpu, on_cpu)
        plain_args, plain = tree_unflatten([_plain(part) for part in flat], spec)
        plain = {key: value for key, value in plain.items() if key != "pin_memory"}

        if name in ("empty", "new_empty", "empty_like") and not self.interpret:
            return self._returned(func, args, kwargs, func(*plain_args, **plain).zero_())

        def work() -> Any:
            if name == "histc" and not plain_args[0].is_floating_point():  # CUDA has it for integers
                return func(plain_args[0].float(), *plain_args[1:], **plain).to(plain_args[0].dtype)
            return func(*plain_args, **plain)

        returns = func._schema.returns
        view = any(part.alias_info is not None and not part.alias_info.is_write for part in returns)
        if view or name in UNLAUNCHED:
            result = work()
        else:
            self._launch(name)
            given = zip(func._schema.arguments, plain_args, strict=False)
            aliases = [(argument.alias_info, part) for argument, part in given]
            written = [part for alias, part in aliases if alias is not None and alias.is_write]
            result = self._run(work, written)
        if name == "_local_scalar_dense" or (device is not None and device.type == "cpu"):
            return result
        return self._returned(func, args, kwargs, result)

    def _returned(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """The result of an operation: the arguments that it wrote to themselves, everything else on the GPU."""
        written: dict[str, Any] = {}
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[index] if index < len(args) else kwargs.get(argument.name)
                written |= dict.fromkeys(argument.alias_info.before_set, given)

        def back(part: Any, declared: Any) -> Any:
            if declared.alias_info is not None and declared.alias_info.is_write:
                return next(written[letter] for letter in declared.alias_info.before_set)
            return self._wrapped(part)

        returns = func._schema.returns
        if len(returns) == 1:
            return back(result, returns[0])
        if not returns:
            return result
        return type(result)(back(part, declared) for part, declared in zip(result, returns, strict=True))

    def _record_mix(self, name: str, args: Any, on_gpu: int, on_cpu: list[torch.Tensor]) -> None:
        """CUDA takes tensors of the CPU only as numbers, as indices of a tensor on the GPU, and in copies."""
        indices = name in INDEXING and isinstance(args[0], GpuTensor)
        if indices and name not in ("index", "_unsafe_index"):
            indices = isinstance(args[2], GpuTensor) or args[2].dim() == 0
        if on_gpu and not indices and name not in COPIES and any(part.dim() for part in on_cpu):
            self.mixed[f"{name} at {_caller()}"] += 1

    def _record_waits(
        self, name: str, args: Any, kwargs: Any, device: torch.device | None, on_gpu: int, on_cpu: list[torch.Tensor]
    ) -> None:
        if name in WAITING:
            self.wait(name)
        if name in INDEXING:
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self.wait(f"{name} by a mask")
            if not all(isinstance(index, GpuTensor) for index in indices):
                self.wait(f"{name} by an index on the CPU")
        moved = name == "_to_copy" and device is not None and (device.type == "cpu" or on_cpu)
        if moved and not kwargs.get("non_blocking"):
            self.wait(f"copy to {device}")
        if name == "copy_" and on_gpu == 1 and on_cpu and not _non_blocking(args, kwargs):
            self.wait("copy between devices")
        if name == "repeat_interleave" and isinstance(args[0], GpuTensor) and kwargs.get("output_size") is None:
            self.wait(name)

    def function(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What does not reach aten, or would ask for real CUDA."""
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if kwargs.get("device") is not None:
            kwargs["device"] = _device(kwargs["device"])
            if func in (torch.tensor, torch.as_tensor, torch.asarray) and kwargs["device"].type == "cuda":
                result = func(*args, **{key: value for key, value in kwargs.items() if key != "device"})
                return result if isinstance(result, GpuTensor) else result.to(GPU)
        if name == "to":
            args = tuple(_device(part) if isinstance(part, str | torch.device) else part for part in args)
        if name == "cuda":
            return args[0].to(GPU)
        if func is torch.nn.functional.scaled_dot_product_attention and isinstance(first, GpuTensor):
            return self._attention(func, args, kwargs)
        if name == "__setitem__" and not isinstance(first, GpuTensor):
            first[tree_map(_plain, args[1])] = args[2].cpu() if isinstance(args[2], GpuTensor) else args[2]
            return None
        if isinstance(first, GpuTensor):
            if name in ("untyped_storage", "data_ptr"):
                return getattr(first.held, name)()
            if name in ("tolist", "__float__", "__int__", "__index__"):
                self.wait(name)
                return getattr(first.held, name)()
            if name == "numpy":
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
            if name == "contiguous":
                return (
                    first if first.held.is_contiguous(**kwargs) else first.clone(memory_format=torch.contiguous_format)
                )
            if name == "nonzero":
                nonzero = torch.ops.aten.nonzero.default(first)
                return nonzero.unbind(1) if kwargs.get("as_tuple") else nonzero
            if name == "__getitem__":
                return self._getitem(first, args[1])
            if name == "__setitem__":
                return self._setitem(first, args[1], args[2])
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if not any(reason in str(error) for reason in NO_CUDA):
                raise
            self._launch(name)
            if name in WAITING:
                self.wait(name)
            arrays, named = tree_map(_plain, args), tree_map(_plain, kwargs)
            written = [arrays[0]] if name.endswith("_") else []  # in place, e.g. copy_
            return self._wrapped(self._run(lambda: func(*arrays, **named), written))

    def _indices(self, what: str, index: Any) -> tuple[Any, bool]:
        """An index as torch takes it, and whether it gathers; records what it costs."""
        plain, gathers = [], False
        for part in index if isinstance(index, tuple) else (index,):
            single = isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype not in (torch.bool, torch.uint8)
            if isinstance(part, list | range):
                gathers = True
                self.wait(f"{what} by a list")
            elif single:
                if isinstance(part, GpuTensor):
                    self.wait(f"{what} by a single number")
            elif isinstance(part, torch.Tensor):
                gathers = True
                if not isinstance(part, GpuTensor):
                    self.wait(f"{what} by an index on the CPU")
                elif part.dtype in (torch.bool, torch.uint8):
                    self.wait(f"{what} by a mask")
            plain.append(int(_plain(part)) if single else list(part) if isinstance(part, range) else _plain(part))
        return (tuple(plain) if isinstance(index, tuple) else plain[0]), gathers

    def _getitem(self, tensor: GpuTensor, index: Any) -> GpuTensor:
        plain, gathers = self._indices("index", index)
        if not gathers:
            return self._wrap(tensor.held[plain])
        self._launch("index")
        return self._wrap(self._run(lambda: tensor.held[plain]))

    def _setitem(self, tensor: GpuTensor, index: Any, value: Any) -> None:
        fills = isinstance(index, torch.Tensor) and index.dtype == torch.bool and not isinstance(value, torch.Tensor)
        plain, gathers = (_plain(index), False) if fills else self._indices("index_put", index)
        if isinstance(value, torch.Tensor) and not isinstance(value, GpuTensor) and value.dim():
            if gathers:
                self.mixed[f"index_put_ at {_caller()}"] += 1
            self.wait("copy between devices")
        self._launch("index_put_" if gathers else "copy_" if isinstance(value, torch.Tensor) else "fill_")
        self._run(lambda: tensor.held.__setitem__(plain, _plain(value)), [tensor.held])

    def _attention(self, func: Any, args: Any, kwargs: dict[str, Any]) -> GpuTensor:
        """torch's fused attention is one kernel."""
        from torch.nn.attention.bias import CausalBias

        arrays = [part for part in (*args, *kwargs.values()) if isinstance(part, torch.Tensor)]
        if not all(isinstance(part, GpuTensor | CausalBias) for part in arrays):
            self.mixed[f"scaled_dot_product_attention at {_caller()}"] += 1
        self._launch("scaled_dot_product_attention")
        plain, named = [_plain(part) for part in args], {key: _plain(part) for key, part in kwargs.items()}
        return self._wrap(self._run(lambda: func(*plain, **named)))

    def _kernel(self, name: str, kernel: Any) -> Any:
        """A kernel of ours whose launches are counted."""
        gpu = self

        class Launcher:
            def __getitem__(self, grid: Any) -> Callable[..., None]:
                def launch(*args: Any, **kwargs: Any) -> None:
                    tensors = [part for part in args if isinstance(part, torch.Tensor)]
                    if not all(isinstance(part, GpuTensor) for part in tensors):
                        gpu.mixed[f"{name} at {_caller()}"] += 1
                    gpu._launch(name)
                    plain = [_plain(part) for part in args]
                    if gpu.interpret:
                        with _disable_current_modes():
                            tensors = [part for part in plain if isinstance(part, torch.Tensor)]
                            gpu._run(lambda: kernel[grid](*plain, **kwargs), tensors)

                return launch

        return Launcher()

    def _cuda(self) -> dict[str, Any]:
        """What replaces the functions of torch.cuda."""
        gpu = self

        class Event:
            def __init__(self, **_: Any) -> None:
                self.record()

            def record(self, stream: Any = None) -> None:
                self.at, self.waits_before = time.perf_counter(), gpu.all_waits

            def synchronize(self) -> None:
                if self.waits_before == gpu.all_waits:  # a later wait was for this too
                    gpu.wait("synchronize an event")

            def elapsed_time(self, other: "Event") -> float:
                return 1000 * (other.at - self.at)

        class Graph:
            def __init__(self) -> None:
                self.work: list[Callable[[], None]] = []

            def replay(self) -> None:
                gpu._launch("graph")
                with _disable_current_modes():
                    for again in self.work:
                        again()

        @contextlib.contextmanager
        def graph(cuda_graph: Graph, stream: Any = None, **_: Any) -> Iterator[None]:
            gpu.captured_on.append(stream)
            gpu._captured = cuda_graph.work
            gpu.captures += 1
            try:
                yield
            finally:
                gpu._captured = None
                for tensor, before in reversed(gpu._before):  # a capture runs nothing
                    tensor.copy_(before)
                gpu._before.clear()

        class Stream:
            cuda_stream, device = 0, GPU

            def __init__(self, *_: Any, **__: Any) -> None:
                pass

            def synchronize(self) -> None:
                pass

            def wait_stream(self, other: Any) -> None:
                pass

        properties = types.SimpleNamespace(
            name="Pretended GPU", total_memory=self.total, major=9, minor=0, multi_processor_count=132
        )
        constants = {
            "is_available": True,
            "is_initialized": True,
            "device_count": 1,
            "current_device": 0,
            "get_device_name": "Pretended GPU",
            "get_device_properties": properties,
            "get_device_capability": (9, 0),
            "is_bf16_supported": True,
            "current_stream": Stream(),
            **dict.fromkeys(("empty_cache", "set_device", "_lazy_init", "init")),
            "set_per_process_memory_fraction": None,
            **dict.fromkeys(("_exchange_device", "_maybe_exchange_device"), 0),
        }
        return {name: lambda *_, _value=value, **__: _value for name, value in constants.items()} | {
            "mem_get_info": lambda device=None: (max(0, gpu.total - gpu.live_bytes), gpu.total),
            "memory_reserved": lambda device=None: gpu.live_bytes,
            "memory_allocated": lambda device=None: gpu.live_bytes,
            "max_memory_reserved": lambda device=None: gpu.peak_bytes,
            "max_memory_allocated": lambda device=None: gpu.peak_bytes,
            "synchronize": lambda device=None: gpu.wait("synchronize"),
            "reset_peak_memory_stats": lambda device=None: setattr(gpu, "peak_bytes", gpu.live_bytes),
            "get_rng_state": lambda device=None: torch.get_rng_state(),
            "set_rng_state": lambda state, device=None: None,
            "is_current_stream_capturing": lambda: gpu._captured is not None,
            "device_of": lambda tensor: contextlib.nullcontext(),
            "stream": lambda other: contextlib.nullcontext(),
            "Event": Event,
            "Stream": Stream,
            "CUDAGraph": Graph,
            "graph": graph,
        }

    def __enter__(self) -> "PretendedGpu":
        import torch.nn.attention.bias as bias

        PretendedGpu.active = self
        original = bias.CausalBias.__new__

        def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return original(cls, *args, **kwargs)

        enter = self._stack.enter_context
        for name, value in self._cuda().items():
            enter(patch.object(torch.cuda, name, value))
        for file, names in KERNELS.items():
            module = import_module(f"kvbench.extras.triton.{file}")
            for name in names:
                enter(patch.object(module, name, self._kernel(name, getattr(module, name))))
        enter(patch.object(bias.CausalBias, "__new__", staticmethod(new)))
        enter(patch.object(torch.version, "cuda", torch.version.cuda or "13.0"))
        torch.__future__.set_overwrite_module_params_on_conversion(True)  # Module.to makes new parameters
        self._stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        enter(torch.inference_mode())
        enter(self._dispatch)
        enter(_Function(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
        PretendedGpu.active = None


def _plain(part: Any) -> Any:
    """The memory behind a tensor of the GPU; its device for the GPU; anything else as it is."""
    if isinstance(part, GpuTensor):
        return part.held
    return torch.device("cpu") if isinstance(part, torch.device) else part


def _device(named: Any) -> torch.device:
    device = torch.device("cuda", named) if isinstance(named, int) else torch.device(named)
    return GPU if device.type == "cuda" else device


def _non_blocking(args: Any, kwargs: Any) -> bool:
    return bool(args[2] if len(args) > 2 else kwargs.get("non_blocking"))


def _caller() -> str:
    """The innermost line of kvbench on the stack, else of transformers."""
    frame, second = sys._getframe(2), "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            return f"{name.removeprefix(PACKAGE)}:{frame.f_lineno}"
        if second == "?" and "/transformers/" in name:
            second = f"transformers/{name.rsplit('/transformers/', 1)[1]}:{frame.f_lineno}"
        frame = frame.f_back
    return second
