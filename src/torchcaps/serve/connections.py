"""Close idle connections. uvicorn's own keep-alive timeout starts only after a first request."""

from __future__ import annotations

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_IDLE_SECONDS = 10.0  # until the head of the first or next request must have arrived


class Connection(H11Protocol):
    _deadline: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._start_timer()

    def _start_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(MAX_IDLE_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        busy = self.cycle is not None and not self.cycle.response_complete
        if not busy:
            self.transport.close()
