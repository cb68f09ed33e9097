"""Define mqadmin's commands, a module for each subject."""
