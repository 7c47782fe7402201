"""Results go to the CPU as they come: from a GPU in a thread beside the model, on a stream of its own.

Copying in the model's own thread would make it wait for every layer. A few layers may be under way at a time, so the
GPU holds no more than that. A copy goes through memory that the GPU can write to by itself, and from there to new
memory by all cores: touching new memory takes longest, and one core alone would be slower than the model.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from sightline.lens.cpu.buffers import together, trim
from sightline.watching.record.layer import Arriving

# Layers whose results may be under way to the CPU at a time.
_UNDER_WAY = 4
# On the CPU: bytes of a layer from which on they have memory of their own. A step of generation has few, and there may
# be more steps than the system has pieces of memory to give.
_LARGE = 1 << 20
# Layers of that size after which the heap is trimmed: what stays of each, however small, keeps the model's memory from
# being used again as a whole.
_TRIM = 16
# Bytes up to which a copy needs no thread: it goes to memory that the GPU writes into by itself, and lies there.
PINNED = 4 << 20
# Bytes that are copied at a time.
_STAGE = 32 << 20


class Packed:
    """Tensors of several layers as one piece of memory, and where each lies in it."""

    def __init__(self, layers: list[dict[str, Tensor]]) -> None:
        # What several layers share is taken along once; wider numbers first, so that each lies where it may.
        every = {id(x): x for layer in layers for x in layer.values()}
        tensors = sorted(every.values(), key=lambda x: -x.element_size())
        flat = [x.contiguous().view(-1).view(torch.uint8) for x in tensors]
        ends = itertools.accumulate(x.numel() for x in flat)
        place = {id(x): (end - one.numel(), end) for x, one, end in zip(tensors, flat, ends)}
        self.layout = [{n: (*place[id(x)], x.dtype, x.shape) for n, x in layer.items()} for layer in layers]
        self.bytes = torch.cat(flat)
        self.arriving: dict[str, Tensor] | Arriving | None = None
        self.pinned: Tensor | None = None
        self.ready: torch.cuda.Event | None = None
        self.here: Tensor | None = None
        self.lock = threading.Lock()

    def start(self) -> None:
        """Copy it without waiting, in the model's own stream."""
        self.pinned = torch.empty(self.bytes.shape, dtype=torch.uint8, device="cpu", pin_memory=True)
        self.pinned.copy_(self.bytes, non_blocking=True)
        self.ready = torch.cuda.Event()
        self.ready.record(torch.cuda.current_stream(self.bytes.device))

    def get(self) -> Tensor:
        """All of it, on the CPU."""
        with self.lock:
            if self.here is None:
                if self.pinned is not None and self.ready is not None:
                    self.ready.synchronize()
                    self.here = self.pinned.clone()
                else:
                    assert self.arriving is not None
                    self.here = (self.arriving if isinstance(self.arriving, dict) else self.arriving.result())[""]
                self.bytes, self.pinned, self.arriving = self.here[:0], None, None
            return self.here

    def of(self, layer: int) -> Arriving:
        return Share(self, layer)


class Share:
    """One layer of what is on its way."""

    def __init__(self, packed: Packed, layer: int) -> None:
        self.packed, self.layer = packed, layer

    def result(self) -> dict[str, Tensor]:
        here = self.packed.get()
        layout = self.packed.layout[self.layer]
        return {n: here[start:end].view(dtype).view(shape) for n, (start, end, dtype, shape) in layout.items()}


class Shipper:
    """Takes tensors by name, and gives them back on the CPU: at once, or as a promise.

    >>> Shipper().send({"x": torch.ones(2)})["x"].device.type
    'cpu'
    """

    def __init__(self) -> None:
        self._kept = 0
        self._pool: ThreadPoolExecutor | None = None
        self._room = threading.BoundedSemaphore(_UNDER_WAY)
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._stage: Tensor | None = None

    def send(self, tensors: dict[str, Tensor]) -> dict[str, Tensor] | Future[dict[str, Tensor]]:
        """The tensors on the CPU. They must be the caller's own: nobody else may write into them."""
        device = next(iter(tensors.values())).device
        if device.type != "cuda":
            if sum(tensor.nbytes for tensor in tensors.values()) < _LARGE:
                return {name: tensor.to("cpu") for name, tensor in tensors.items()}
            self._kept += 1
            if self._kept % _TRIM == 0:
                trim()
            return together(tensors)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="sightline-watch")
        stream = self._streams.setdefault(device, torch.cuda.Stream(device))
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(device))
        for tensor in tensors.values():
            # The memory is not given to others before the copy is done.
            tensor.record_stream(stream)
        self._room.acquire()
        try:
            return self._pool.submit(self._fetch, tensors, ready, stream)
        except BaseException:
            self._room.release()
            raise

    def send_all(self, layers: list[dict[str, Tensor]]) -> list[dict[str, Tensor] | Arriving]:
        """The tensors of several layers on the CPU; from a GPU all in one copy."""
        device = next(iter(layers[0].values())).device
        if device.type != "cuda":
            return [self.send(layer) for layer in layers]
        packed = Packed(layers)
        if packed.bytes.nbytes <= PINNED:
            packed.start()
        else:
            packed.arriving = self.send({"": packed.bytes})
        return [packed.of(i) for i in range(len(layers))]

    def _fetch(self, tensors: dict[str, Tensor], ready: torch.cuda.Event, stream: torch.cuda.Stream) -> dict:
        try:
            with torch.cuda.stream(stream):
                stream.wait_event(ready)
                return {name: self._copy(tensor, stream) for name, tensor in tensors.items()}
        finally:
            self._room.release()

    def _copy(self, tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
        if self._stage is None:
            self._stage = torch.empty(_STAGE, dtype=torch.uint8, device="cpu", pin_memory=True)
        source = tensor.contiguous().view(-1)
        out = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        step = _STAGE // tensor.element_size()
        for start in range(0, source.numel(), step):
            part = source[start : start + step]
            stage = self._stage.view(tensor.dtype)[: part.numel()]
            stage.copy_(part, non_blocking=True)
            stream.synchronize()
            out.view(-1)[start : start + step].copy_(stage)
        return out

    def close(self) -> None:
        """Take in no more. What is under way arrives, and whoever asks for it waits."""
        if self._pool is not None:
            self._pool.submit(self._forget_stage)
            self._pool.shutdown(wait=False)
            self._pool = None

    def _forget_stage(self) -> None:
        self._stage = None
