"""Decode archived messages into typed tables, one or more for each topic that the file's [decode] names.

`settings` says how topics are decoded, `definitions` which tables there are and which columns they have, and
`decoding` moves them forward: the tables follow the archive as its published snapshots do, in an archive of
their own below `_decoded`, with the same commits. docs/tables.md describes the tables.
"""
