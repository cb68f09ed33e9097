"""Read JSON as Java's fastjson writes it."""
