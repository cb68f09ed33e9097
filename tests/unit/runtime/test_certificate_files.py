"""Certificates that are about to expire are logged in time, and not too often."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from cometmq.tls.certificate_files import EndWarning

DAY_MS = 86_400_000
END_MS = 1_000 * DAY_MS


def test_the_end_of_a_certificate_is_told_of_once_a_day() -> None:
    warning = EndWarning(Path("server.pem"))
    with capture_logs() as reported:
        warning.look(None, END_MS)
        warning.look(END_MS, END_MS - 15 * DAY_MS)
        assert reported == []
        for hours in (0, 1, 23, 24, 25):
            warning.look(END_MS, END_MS - 13 * DAY_MS + hours * DAY_MS // 24)
        warning.look(END_MS, END_MS + DAY_MS)
    assert [(line["event"], line["file"], line["days_left"]) for line in reported] == [
        ("the certificate expires soon", "server.pem", 13.0),
        ("the certificate expires soon", "server.pem", 12.0),
        ("the certificate has expired", "server.pem", 0.0),
    ]


def test_a_new_certificate_is_told_of_again_when_its_time_comes() -> None:
    warning = EndWarning(Path("server.pem"))
    with capture_logs() as reported:
        warning.look(END_MS, END_MS - DAY_MS)
        warning.look(2 * END_MS, END_MS - DAY_MS)
        warning.look(END_MS, END_MS - DAY_MS)
    assert len(reported) == 2
