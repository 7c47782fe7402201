"""The ranks of a group, and what they say to each other: point to point, so that an error can name who did not answer.

Tensors of a GPU go through the CPU where the group is one of gloo, which sends nothing else.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from sightline.errors import InputError, InputTypeError, RankError, SightlineError

# Bytes of what ranks tell each other before they begin; who has more to say sends it after these.
_HEADER = 2048


class Ranks:
    """The processes of a group, this one among them. Without a group that was begun it is this process alone."""

    def __init__(self, group: Any = None) -> None:
        """`group`: a process group, a DeviceMesh of one axis, or None for the default group."""
        self.group = _process_group(group)
        alone = self.group is None
        self.rank = 0 if alone else dist.get_rank(self.group)
        self.size = 1 if alone else dist.get_world_size(self.group)
        # As the whole world counts them: that is what errors name.
        self.members = [0] if alone else dist.get_process_group_ranks(self.group)
        self._staged = alone or "gloo" in dist.get_backend(self.group)

    @property
    def device(self) -> torch.device:
        """Where small messages lie: gloo sends those of the CPU, other backends those of their device."""
        return torch.device("cpu" if self._staged else torch.accelerator.current_accelerator() or "cpu")

    def source(self, step: int) -> int:
        """Whose tensors are here after so many steps around the ring."""
        return (self.rank - step) % self.size

    def agree(self, step: str, said: dict[str, Any]) -> list[dict[str, Any]]:
        """What every rank says of itself; who does not answer is named. `said` fits into JSON.

        What one of them refused, all refuse.
        """
        if self.size == 1:
            return [said]
        text = json.dumps(said).encode()
        others = [rank for rank in range(self.size) if rank != self.rank]
        head = (len(text).to_bytes(8, "little") + text[:_HEADER]).ljust(8 + _HEADER, b"\0")
        first = self._told(step, head, dict.fromkeys(others, len(head)))
        lengths = {rank: int.from_bytes(heard[:8], "little") for rank, heard in first.items()}
        # Rarely anybody has more to say, and then all know who.
        more = {rank: max(0, length - _HEADER) for rank, length in lengths.items()}
        rest = self._told(f"{step}, the rest", text[_HEADER:], more)
        heard = {rank: json.loads(first[rank][8 : 8 + lengths[rank]] + rest[rank]) for rank in others}
        for rank, other in heard.items():
            if "refused" in other and "refused" not in said:
                raise InputError(
                    f"rank {self.members[rank]} refused: {step}",
                    expected="what fits, on every rank",
                    got=f"there: {other['refused']}",
                    hint="mend what that rank was given; nothing was computed",
                )
        return [said if rank == self.rank else heard[rank] for rank in range(self.size)]

    def _told(self, step: str, mine: bytes, coming: dict[int, int]) -> dict[int, bytes]:
        """Some bytes for all others, and as many from each as are known to come."""
        sent = torch.tensor(list(mine), dtype=torch.uint8, device=self.device)
        messages = [_Message(sent, to, None) for to in coming if mine]
        messages += [_Message(None, at, sent.new_empty(n)) for at, n in coming.items() if n]
        found = iter(self._exchange(step, messages))
        return {at: bytes(next(found).tolist()) if n else b"" for at, n in coming.items()}

    @contextmanager
    def refusing(self, step: str) -> Iterator[None]:
        """Around what may be refused before `agree`: the others hear of it there, instead of waiting in vain."""
        try:
            yield
        except Exception as error:
            with suppress(SightlineError):
                self.agree(step, {"refused": " ".join(str(error).split())[:600]})
            raise

    def rotate(self, step: str, tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Give tensors to the next rank, and take those of the one before, whose shapes are these."""
        if self.size == 1:
            return list(tensors)
        following, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        arriving = [tensor.new_empty(tuple(shape)) for tensor, shape in zip(tensors, shapes, strict=True)]
        messages = [_Message(tensor, following, None) for tensor in tensors if tensor.numel()]
        messages += [_Message(None, before, like) for like in arriving if like.numel()]
        found = iter(self._exchange(step, messages))
        return [next(found) if like.numel() else like for like in arriving]

    def reduced(self, step: str, tensor: Tensor, join: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The tensors of all ranks joined in the order of the ranks, the same bits on each: down a chain, and back."""
        last = self.size - 1
        if self.rank > 0:
            (before,) = self._exchange(f"{step}, rank by rank", [_Message(None, self.rank - 1, tensor)])
            tensor = join(before, tensor)
        if self.rank < last:
            self._exchange(f"{step}, rank by rank", [_Message(tensor, self.rank + 1, None)])
            (tensor,) = self._exchange(f"{step}, the result", [_Message(None, self.rank + 1, tensor)])
        if self.rank > 0:
            self._exchange(f"{step}, the result", [_Message(tensor, self.rank - 1, None)])
        return tensor

    def shared(self, step: str, content: bytes) -> list[bytes]:
        """What every rank gives, in the order of the ranks."""
        lengths = [said["bytes"] for said in self.agree(f"{step}, how much", {"bytes": len(content)})]
        found = {self.rank: content}
        # A tensor over bytes that may be written to.
        mine = torch.frombuffer(bytearray(content or b"0"), dtype=torch.uint8)[: len(content)].to(self.device)
        for turn in range(1, self.size):
            source = self.source(turn)
            (mine,) = self.rotate(f"{step}, step {turn} of {self.size - 1}", [mine], [(lengths[source],)])
            found[source] = mine.cpu().numpy().tobytes()
        return [found[rank] for rank in range(self.size)]

    def _exchange(self, step: str, messages: list[_Message]) -> list[Tensor]:
        """Send and receive all messages at once; what was received, in their order."""
        begun: list[tuple[_Message, Tensor, Any]] = []
        if self._staged:
            for message in messages:
                begun.append(self._begin(step, message))
        else:
            operations = [
                dist.P2POp(dist.isend, message.tensor.contiguous(), self.members[message.peer], self.group)
                if message.tensor is not None
                else dist.P2POp(dist.irecv, torch.empty_like(message.like), self.members[message.peer], self.group)  # type: ignore[arg-type]
                for message in messages
            ]
            works = dist.batch_isend_irecv(operations)
            begun = [
                (message, one.tensor, works[min(i, len(works) - 1)])
                for i, (message, one) in enumerate(zip(messages, operations, strict=True))
            ]
        received = []
        for message, buffer, work in begun:
            try:
                work.wait()
            except (RuntimeError, ValueError) as error:
                raise self.lost(step, message.peer, error) from error
            if message.like is not None:
                received.append(buffer.to(message.like.device))
        return received

    def _begin(self, step: str, message: _Message) -> tuple[_Message, Tensor, Any]:
        peer = self.members[message.peer]
        # Ranks that are at different steps must not take each other's messages: gloo would end the process.
        tag = zlib.crc32(step.encode()) % (1 << 20)
        try:
            if message.tensor is not None:
                buffer = message.tensor.detach().cpu().contiguous()
                return message, buffer, dist.isend(buffer, peer, group=self.group, tag=tag)
            assert message.like is not None
            buffer = torch.empty(message.like.shape, dtype=message.like.dtype, device="cpu")
            return message, buffer, dist.irecv(buffer, peer, group=self.group, tag=tag)
        except (RuntimeError, ValueError) as error:
            raise self.lost(step, message.peer, error) from error

    def lost(self, step: str, peer: int | None, error: Exception) -> RankError:
        """The error over ranks that did not answer; None: nobody knows which of the others, if there are several."""
        others = [rank for i, rank in enumerate(self.members) if (i != self.rank if peer is None else i == peer)]
        who = f"rank {others[0]}" if len(others) == 1 else f"one of the ranks {', '.join(map(str, others))}"
        return RankError(
            f"{who} did not answer: {step}",
            expected=f"all of {self.size} ranks to take part, within the timeout of the group",
            got=f"{str(error).splitlines()[0][:300]} (on rank {self.members[self.rank]})",
            hint="look at what that rank said last: it died, hangs, took another path, or waited for a rank itself",
        )


class _Message(NamedTuple):
    """Something for another rank, or something from it that looks like this."""

    tensor: Tensor | None
    peer: int
    like: Tensor | None


def _process_group(group: Any) -> Any:
    if hasattr(group, "get_group"):  # a DeviceMesh
        if group.ndim != 1:
            raise InputError(
                "the sequence lies along one axis of the mesh",
                expected="a mesh of one axis",
                got=f"{group.ndim} axes, {tuple(group.mesh.shape)}",
                hint='mesh["cp"]',
            )
        return group.get_group()
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise InputTypeError(
            "a group is one of torch.distributed",
            expected="a process group, a DeviceMesh of one axis, or None for the default group",
            got=type(group).__name__,
            hint="torch.distributed.new_group(ranks)",
        )
    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.group.WORLD if group is None else group
