"""Has the table of mqadmin's commands, and loads the module of the command that is called.

A command starts in a fraction of a second only if the other ninety are not built.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import typer

from cometmq.cli.help import Group

# The commands of each module, in the order in which help lists them.
MODULES: Final[dict[str, tuple[str, ...]]] = {
    "topics": ("topicList", "deleteTopic"),
    "messages": ("queryMsgById", "queryMsgByKey", "queryMsgByUniqueKey", "queryMsgByOffset"),
    "reading": ("printMsg", "printMsgByQueue", "consumeMessage", "dumpCompactionLog"),
}
# Other names that mqadmin knows commands by.
ALIASES: Final[dict[str, str]] = {}

_MODULE_OF: Final = {name: module for module, names in MODULES.items() for name in names}
# mqadmin does not look at the case of a command's name.
_NAMES: Final = {name.lower(): name for name in _MODULE_OF} | {
    alias.lower(): name for alias, name in ALIASES.items()
}


class AdminGroup(Group):
    def list_commands(self, ctx: Any) -> list[str]:
        del ctx  # the list is the same for all calls
        return list(_MODULE_OF)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        name = _NAMES.get(cmd_name.lower())
        if name is None:
            return None
        module = import_module(f"cometmq.cli.admin.{_MODULE_OF[name]}")
        return typer.main.get_group(module.app).commands[name]


app = typer.Typer(
    cls=AdminGroup,
    help="Inspect and manage clusters, with mqadmin's commands and options.",
    no_args_is_help=True,
)


@app.callback()
def _admin() -> None:
    """Let typer make a group of an application that has no command of its own yet."""
