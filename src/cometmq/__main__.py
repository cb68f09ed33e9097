"""`python -m cometmq` is `cometmq`."""

import sys

from cometmq.errors import MissingExtraError
from cometmq.extras import needs


def main() -> None:
    try:
        with needs("cli", "the command cometmq"):
            from cometmq.cli.main import main as run
    except MissingExtraError as error:
        sys.stderr.write(f"cometmq: {error}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
