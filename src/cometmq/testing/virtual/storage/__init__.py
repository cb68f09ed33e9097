"""Keep the files of simulated machines in memory, with the faults of real disks."""
