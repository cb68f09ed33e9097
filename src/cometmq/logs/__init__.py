"""Write the log of a process: loggers, levels, files, and limits of repeated lines."""
