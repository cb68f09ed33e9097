"""Publish an archive as tables: each of its commits is a snapshot of an Iceberg table and a version of a
Delta table, over files that the archive has written. docs/tables.md describes both.

`columns` fixes the tables' columns, `links` keeps files for readers of old snapshots, `changes` says
how the tables have to change, `iceberg` and `delta` change them, and `publisher` is the door.
"""
