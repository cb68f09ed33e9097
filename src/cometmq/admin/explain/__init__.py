"""Answer questions such as why a group is behind, with evidence and remedies."""
