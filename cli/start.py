"""Where the `pooled` command starts: as long as it loads its modules, Ctrl-C ends it at once and without a word."""

import os
import signal

STOPPED = 130


def main() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(STOPPED))
    from cli.main import main as run

    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, until a command takes it over
    run()


if __name__ == "__main__":
    main()
