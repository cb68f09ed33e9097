"""Decode archived messages into typed tables, one or more for each topic that [decode] names.

`settings` has the rules by which topics are decoded, `definitions` the tables with their columns, and
`decoding` adds to the tables what was archived. They follow the archive as its published snapshots do, in an
archive of their own below `_decoded`, which has commits of the same kind. docs/tables.md describes the tables.
"""
