"""Connections that ask nothing are closed: uvicorn by itself closes only those that have asked something."""

from __future__ import annotations

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.h11_impl import H11Protocol

SILENT_SECONDS = 10.0  # until the head of a request must have arrived: the first, or the next


class Connection(H11Protocol):
    _deadline: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_request()

    def _expect_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(SILENT_SECONDS, self._give_up)

    def _give_up(self) -> None:
        asked = self.cycle is not None and not self.cycle.response_complete
        if not asked:
            self.transport.close()
