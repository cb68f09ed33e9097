"""Select the messages of a pull: by tags, by properties, by a named predicate."""
