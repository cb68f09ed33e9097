"""`python -m cometmq` is `cometmq`."""

from cometmq.cli.main import main

main()
