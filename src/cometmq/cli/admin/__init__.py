"""Provide `cometmq admin`, which has mqadmin's commands with mqadmin's names and options.

`app.py` has the table of commands and loads the module of the one that is called. `command.py` gives
every command its connection, its confirmation and its exit status, `output.py` prints its result.
"""
