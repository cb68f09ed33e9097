"""Decode bodies of messages into typed columns: JSON, Avro and Protobuf.

`frames.decode` is the public function for DataFrames. `kinds` has the types of columns. `readers` reads bodies
by a schema, with one module for each format (`json_bodies`, `avro_bodies`, `protobuf_bodies`). `columns` puts
the fields of several schemas into the columns of one table, and `batches` decodes Arrow batches in workers.
"""
