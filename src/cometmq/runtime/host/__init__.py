"""Look at the machine and the installation that a process runs on."""
