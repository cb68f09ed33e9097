"""Decode bodies of messages into typed columns: JSON, Avro and Protobuf.

`frames.decode` is the door for DataFrames. `kinds` has the types of columns, `readers` reads bodies by a
schema (`json_bodies`, `avro_bodies` and `protobuf_bodies` each know a format), `columns` puts the fields of
several schemas into the columns of one table, and `batches` decodes Arrow batches, in workers.
"""
