"""The command `cometmq`: one thin module per sub-command, with heavy imports inside it."""
