"""The metrics of the table service at their port."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import ExitStack

import pytest

from cometmq.errors import ConfigError
from cometmq.pipelines.table.board import Board
from cometmq.pipelines.table.metrics import TableMetrics, served
from cometmq.remoting.http.http_server import MAX_HTTP_CONNECTIONS


def test_connections_that_never_ask_take_no_threads_and_keep_no_scraper_out() -> None:
    threads = threading.active_count()
    with ExitStack() as stack:
        port = stack.enter_context(served(TableMetrics(Board(60)), ("127.0.0.1", 0)))
        for _ in range(MAX_HTTP_CONNECTIONS + 1):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"cometmq_table_running 0.0" in answer.read()
        assert threading.active_count() == threads + 1
    assert threading.active_count() == threads


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"{port} for metrics: .*; set another metrics"),
            served(TableMetrics(Board(60)), ("127.0.0.1", port)),
        ):
            pass
