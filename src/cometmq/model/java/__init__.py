"""Define what Java gives its values: enums by name or ordinal, integers of 32 and 64 bits, hash codes."""
