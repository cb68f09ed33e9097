"""`cometmq admin` has mqadmin's commands with mqadmin's options, and its errors say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.unit.cli.mqadmin_commands import COMMANDS
from typer.testing import CliRunner

from cometmq.cli.admin.app import MODULES, built
from cometmq.cli.admin.output import Form
from cometmq.cli.main import app as cometmq

REGISTERED: Final = {name for names in MODULES.values() for name in names}


def run(*arguments: str, **env: str) -> Any:
    return CliRunner().invoke(cometmq, ["admin", *arguments], env={"COLUMNS": "150", **env})


def test_every_command_of_mqadmin_is_there() -> None:
    assert COMMANDS.keys() - REGISTERED == set()


def test_every_command_has_mqadmins_options() -> None:
    names = sorted(COMMANDS.keys() & REGISTERED)
    assert len(names) > 80
    assert {name: wrong for name in names if (wrong := list(wrong_options(name)))} == {}


def wrong_options(name: str) -> Iterator[str]:
    """Yield how a command differs from mqadmin's."""
    command = built(name)
    options = {names: param for param in command.params for names in param.opts}
    if command.other_o is not None:  # it gets the values of -o that are no form of the output
        options["-o"] = options[command.other_o]
    for wanted in COMMANDS[name]:
        if missing := set(wanted.names) - options.keys():
            yield f"{wanted.names}: there is no {missing}"
            continue
        found = {options[each] for each in wanted.names}
        if len(found) != 1 or found.pop().is_flag != wanted.is_flag:
            yield f"{wanted.names}: not one option, or a flag in one of both only"


CONNECTING: Final = {
    "-o",
    "--output",
    "--namesrvAddr",
    "--timeoutMillis",
    "--accessKey",
    "--secretKey",
    "--credentials",
    "--tls",
    "--tlsConfigFile",
}


def test_every_command_prints_in_all_forms_and_connects_alike() -> None:
    """In all of them `-o` is the form of the output."""
    names = sorted(REGISTERED - set(MODULES["refused"]))
    assert len(names) > 80
    missing, outputs = {}, {}
    for name in names:
        missing[name] = CONNECTING - {each for param in built(name).params for each in param.opts}
        with built(name).make_context(name, ["-o", "json"], resilient_parsing=True) as context:
            outputs[name] = context.params["output"]
    assert {name: lacks for name, lacks in missing.items() if lacks} == {}
    assert {name: form for name, form in outputs.items() if form != Form.JSON} == {}


@pytest.mark.parametrize(
    ("name", "line", "option", "value"),
    [
        ("consumeMessage", "-t orders -b broker-a -i 0 -o 10", "offset", 10),
        ("queryMsgByOffset", "-t orders -b broker-a -i 0 -o 10 -o json", "offset", 10),
        ("updateTopic", "-t orders -b 127.0.0.1:1 -o true", "order", True),
        ("cloneGroupOffset", "-s one -d other -t orders -o true", "offline", "true"),
    ],
)
def test_lines_of_mqadmin_with_another_o_still_work(
    name: str, line: str, option: str, value: object
) -> None:
    with built(name).make_context(name, line.split()) as context:
        assert context.params[option] == value
        assert context.params["output"] == (Form.JSON if "json" in line else None)


def test_no_letter_has_two_meanings() -> None:
    for name in REGISTERED:
        letters = [each for param in built(name).params for each in param.opts]
        assert len(letters) == len(set(letters)), name


def test_help_lists_all_commands_in_panels() -> None:
    result = run("-h")
    assert result.exit_code == 0
    assert all(name in result.output for name in REGISTERED)
    assert "Name servers" in result.output


def test_help_of_a_command_is_found_in_any_case() -> None:
    result = run("help", "UPDATETOPIC")
    assert result.exit_code == 0
    assert "cometmq admin updateTopic" in result.output
    assert "--readQueueNums" in result.output


def test_an_unknown_command_is_told_the_nearest_one() -> None:
    result = run("topcRoute")
    assert result.exit_code == 2
    assert "did you mean topicRoute?" in result.output


@pytest.mark.parametrize("name", MODULES["refused"])
def test_a_refused_command_says_why(name: str) -> None:
    result = run(name)
    assert result.exit_code != 0
    assert "refused" in str(result.exception)


def test_a_value_that_is_neither_true_nor_false_is_refused() -> None:
    result = run("updateTopic", "-t", "orders", "-c", "c", "-o", "maybe", "-n", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "neither true nor false" in result.output


def test_an_option_that_is_missing_is_named() -> None:
    result = run("topicRoute", "-n", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "--topic" in result.output


def test_numbers_out_of_range_are_refused() -> None:
    result = run("clusterRT", "-a", "1", "-n", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "--amount" in result.output
