"""Connections that come to an end: whoever sends no whole request, or takes no answer, is let go after a while.

uvicorn closes a connection that is idle between two requests, but waits without end for the rest of a request that has
begun. Here a request must arrive whole within some seconds, and there are never more than so many connections: a new
one takes the place of the one that has kept us waiting longest. An answer in progress, however long it takes to make
or to read, is not cut; one that nobody reads is.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds for a whole request, head and body.
PATIENCE = 15.0
# Seconds for some of an answer to be taken. The system tells us of it a megabyte at a time: long for a slow line.
UNREAD = 300.0
# Connections at a time. A browser opens six; a process may often have no more than a thousand files.
MOST = 256


class Connection(H11Protocol):
    """One client, and since when it keeps us waiting."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._asked = self._taken = self.loop.time()  # when the clocks of its request and of our answer were set
        self._begun, self._unsent = False, 0
        self._timer = self.loop.call_later(PATIENCE / 8, self._look)
        others = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        if len(others) > MOST:
            # Where all others are being answered, it is this one that goes.
            max(others, key=lambda one: (one.waited, one is self)).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._unset_keepalive_if_required()  # uvicorn leaves it if the connection broke
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._begun:  # the first byte of a request sets the clock, and no later one does
            self._asked, self._begun = self.loop.time(), True
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._asked, self._begun = self.loop.time(), False
        super().on_response_complete()

    def resume_writing(self) -> None:
        self._taken = self.loop.time()
        super().resume_writing()

    @property
    def waited(self) -> float:
        """For how many seconds nothing is being made or sent, because a request, or the rest of one, is to come.

        An answer that nobody has taken any of in that time counts too; 0 while the client need do nothing.
        """
        now = self.loop.time()
        if self.transport.get_write_buffer_size():
            return now - self._taken if now - self._taken > PATIENCE else 0.0
        answering = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        return 0.0 if answering else now - self._asked

    def _look(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent < self._unsent:
            self._taken = self.loop.time()
        if unsent:
            self._asked = self.loop.time()  # until it has the answer, it need not ask for more
        self._unsent = unsent
        if self.waited > (UNREAD if unsent else PATIENCE):
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(PATIENCE / 8, self._look)
