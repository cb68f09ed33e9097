"""Make descriptors of the parts of `.proto` files that decoding needs: messages, enums, maps,
oneofs, groups.

Options other than `optional` of proto3 do not change how bytes are read, so they are left out, and so
are services and extensions (whose fields count as unknown).
"""

from __future__ import annotations

from typing import Any, Final

from antlr4.error.ErrorListener import ErrorListener  # type: ignore[import-untyped]  # it has no types
from google.protobuf import (
    any_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from proto_schema_parser import ast
from proto_schema_parser.parser import Parser

_WELL_KNOWN: Final = "google/protobuf/"
# A schema names files as imports; these names are never imported as Python modules.
_GOOGLES: Final = (
    any_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
_LABELS: Final = {
    None: FieldDescriptorProto.LABEL_OPTIONAL,
    ast.FieldCardinality.OPTIONAL: FieldDescriptorProto.LABEL_OPTIONAL,
    ast.FieldCardinality.REQUIRED: FieldDescriptorProto.LABEL_REQUIRED,
    ast.FieldCardinality.REPEATED: FieldDescriptorProto.LABEL_REPEATED,
}
_SCALARS: Final = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
}


def compiled(text: str) -> FileDescriptorProto:
    """Return the descriptor of a `.proto` file.

    It may import Google's own types (google/protobuf/…) only. Raises ValueError that names the fault.
    """
    parsed = Parser(setup_lexer=_be_strict, setup_parser=_be_strict).parse(text)
    made = FileDescriptorProto(name="schema.proto", syntax=parsed.syntax or "proto2")
    if parsed.edition is not None:
        made.syntax = "proto3"
    is_proto3 = made.syntax == "proto3"
    for element in parsed.file_elements:
        if isinstance(element, ast.Package):
            made.package = element.name
        elif isinstance(element, ast.Import):
            if not element.name.startswith(_WELL_KNOWN):
                raise ValueError(
                    f"it imports {element.name}, which is not here: put the messages "
                    "of that file into the schema, in place of the import"
                )
            made.dependency.append(element.name)
        elif isinstance(element, ast.Message):
            _fill(made.message_type.add(), element.name, element.elements, is_proto3)
        elif isinstance(element, ast.Enum):
            _fill_enum(made.enum_type.add(), element)
    return made


class _Faults(ErrorListener):  # type: ignore[misc]  # it has no types
    """Raises the first fault, where ANTLR would print it and guess what was meant."""

    def syntaxError(  # noqa: N802 - ANTLR's name
        self, _recognizer: Any, _symbol: Any, line: int, column: int, msg: str, _error: Any
    ) -> None:
        raise ValueError(f"line {line}, column {column + 1}: {msg[:200]}")


def _be_strict(reader: Any) -> None:
    reader.removeErrorListeners()
    reader.addErrorListener(_Faults())


def message_names(descriptor: FileDescriptorProto) -> list[str]:
    """Return the full names of all messages, those outside others first."""
    package = f"{descriptor.package}." if descriptor.package else ""
    found = [(package + message.name, message) for message in descriptor.message_type]
    names = []
    while found:
        names += [name for name, _ in found]
        found = [
            (f"{name}.{nested.name}", nested)
            for name, message in found
            for nested in message.nested_type
            if not nested.options.map_entry
        ]
    return names


def _fill(made: DescriptorProto, name: str, elements: list[Any], is_proto3: bool) -> None:
    made.name = name
    optional: list[FieldDescriptorProto] = []
    for element in elements:
        if isinstance(element, ast.Message):
            _fill(made.nested_type.add(), element.name, element.elements, is_proto3)
        elif isinstance(element, ast.Enum):
            _fill_enum(made.enum_type.add(), element)
        elif isinstance(element, ast.OneOf):
            made.oneof_decl.add(name=element.name)
            index = len(made.oneof_decl) - 1
            for inner in element.elements:
                if isinstance(inner, (ast.Field, ast.Group)):
                    _field(made, inner, is_proto3).oneof_index = index
        elif isinstance(element, ast.MapField):
            _map(made, element)
        elif isinstance(element, (ast.Field, ast.Group)):
            field = _field(made, element, is_proto3)
            if is_proto3 and element.cardinality is ast.FieldCardinality.OPTIONAL:
                optional.append(field)
    for field in optional:  # their own oneofs come after all others
        made.oneof_decl.add(name=f"_{field.name}")
        field.oneof_index, field.proto3_optional = len(made.oneof_decl) - 1, True


def _field(
    made: DescriptorProto, element: ast.Field | ast.Group, is_proto3: bool
) -> FieldDescriptorProto:
    label = _LABELS[element.cardinality]
    if isinstance(element, ast.Group):
        _fill(made.nested_type.add(), element.name, element.elements, is_proto3)
        field = made.field.add(name=element.name.lower(), number=element.number, label=label)
        field.type, field.type_name = FieldDescriptorProto.TYPE_GROUP, element.name
        return field
    field = made.field.add(name=element.name, number=element.number, label=label)
    _set_type(field, element.type)
    return field


def _map(made: DescriptorProto, element: ast.MapField) -> None:
    name = "".join(part.capitalize() for part in element.name.split("_")) + "Entry"
    entry = made.nested_type.add(name=name)
    entry.options.map_entry = True
    for number, part, type_ in ((1, "key", element.key_type), (2, "value", element.value_type)):
        field = entry.field.add(name=part, number=number, label=_LABELS[None])
        _set_type(field, type_)
    field = made.field.add(name=element.name, number=element.number)
    field.label, field.type_name = FieldDescriptorProto.LABEL_REPEATED, name


def _set_type(field: FieldDescriptorProto, type_: str) -> None:
    if type_ in _SCALARS:
        field.type = _SCALARS[type_]
    else:
        field.type_name = type_  # the pool looks it up, as an enum or a message


def _fill_enum(made: EnumDescriptorProto, element: ast.Enum) -> None:
    made.name = element.name
    for value in element.elements:
        if isinstance(value, ast.EnumValue):
            made.value.add(name=value.name, number=value.number)
        elif isinstance(value, ast.Option) and value.name == "allow_alias":
            made.options.allow_alias = bool(value.value)


def message_class(descriptor: FileDescriptorProto, name: str) -> Any:
    """Return the class of a message of a file. Raises ValueError for imports that are not Google's own."""
    pool = descriptor_pool.DescriptorPool()
    for needed in descriptor.dependency:
        for file in _google_files(needed):
            pool.Add(file)
    pool.Add(descriptor)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _google_files(name: str) -> list[FileDescriptorProto]:
    """Return one of Google's own files and those that it imports, imported files first."""
    made = FileDescriptorProto()
    for module in _GOOGLES:
        if module.DESCRIPTOR.name == name:
            module.DESCRIPTOR.CopyToProto(made)
            break
    else:
        raise ValueError(f"the schema imports {name}, which is not known here")
    return [*(file for needed in made.dependency for file in _google_files(needed)), made]
